//! Attention of packed sequences over a ring: chunks go to the ranks that meet them, and to no others; and what becomes
//! of plans in which owners and readers ask about different ones.

use mk_codegen::{
    emit, equivalence,
    passes::lower,
    plan::{
        Expr, FamId, Family, Leaf, Mask, Operand, Plan, Side, TableSet, TableSource, Tabulate,
        Tabulation,
    },
    settings::Config,
    sim::{self, Callbacks, Options, Schedule},
    valid,
};
use mk_syntax::{Bound, Program};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, ops::Range};

const FORWARD: &str = "let o = ring(k, v) -> attention(qWORDS, cu_seqlens = cu); (o, o -> lse)";
const DQ: &str = "ring(k, v) -> attention_dq(q, do, statsWORDS, cu_seqlens = cu)";
const DKV: &str = "let dk = ring(q, do, stats) -> attention_dk(k, vWORDS, cu_seqlens = cu); (dk, dk -> attention_dv)";

const MASKS: [&str; 3] = ["", ", causal", ", causal, window = 7"];

/// An attention of documents over a ring.
struct Ring {
    program: Program,
    bound: Bound,
    plan: Plan,
    zigzag: bool,
    ranks: usize,
    tokens: usize,
    entries: usize,
}

const HEADS: usize = 2;
const GROUPS: usize = 1;
const DEPTH: usize = 64;

impl Ring {
    fn new(
        body: &str,
        mask: &str,
        zigzag: bool,
        ranks: usize,
        [tokens, entries]: [usize; 2],
    ) -> Ring {
        let [at, turned] = match zigzag {
            true => ["zigzag(1)", "zigzag(2)"],
            false => ["shard(1)", "shard(2)"],
        };
        let more = match body.contains("do,") {
            true => format!(", do: bf16[1, T, H, D] @ {at}, stats: f32[1, H, T, 4] @ {turned}"),
            false => String::new(),
        };
        let (keys, body) = (format!("bf16[1, T, G, D] @ {at}"), body.replace("WORDS", mask));
        let text = format!(
            "fn f(q: bf16[1, T, H, D] @ {at}{more}, k: {keys}, v: {keys}, cu: i32[N]) {{ {body} }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("T", tokens), ("N", entries), ("H", HEADS), ("G", GROUPS), ("D", DEPTH)];
        let sizes: BTreeMap<_, _> = sizes.map(|(name, n)| (name.to_string(), n as u64)).into();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        let config = Config {
            ranks: ranks as u32,
            compute_sms: Some(3),
            intra_comm_sms: (ranks > 1).then_some(2),
            copy_stages: 4,
            ..Config::default()
        };
        let plan = lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
        Ring { program, bound, plan, zigzag, ranks, tokens, entries }
    }

    fn judge(&self, plan: &Plan) -> Result<(), String> {
        valid::verify(plan).map_err(|e| e.to_string())?;
        let options = equivalence::Options::default();
        let found = equivalence::evaluate(plan, &self.program, &self.bound, &options);
        found.map(drop).map_err(|e| e.to_string())
    }

    fn parts(&self) -> usize {
        self.ranks * (1 + usize::from(self.zigzag))
    }

    /// The rows of a chunk.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        let rows = self.tokens.div_ceil(self.parts());
        (chunk * rows).min(self.tokens)..((chunk + 1) * rows).min(self.tokens)
    }

    fn owner(&self, chunk: usize) -> usize {
        if chunk < self.ranks { chunk } else { self.parts() - 1 - chunk }
    }

    /// Bytes that go from rank to rank, by what each pair of rows says: of each chunk to each peer that has a row that
    /// meets one of it.
    fn bytes(&self, begins: &[i32], mask: &str, queries_move: bool) -> u64 {
        let document = |row: usize| {
            let of = |d: &[i32]| (d[0] as usize..d[1] as usize).contains(&row);
            begins.windows(2).position(of)
        };
        let sees = |q: usize, k: usize| {
            let same = document(q).is_some() && document(q) == document(k);
            same && (mask.is_empty() || k <= q) && (!mask.contains("window") || k + 7 > q)
        };
        let row = match queries_move {
            // Queries, output gradients and statistics.
            true => HEADS * (2 * DEPTH * 2 + 4 * 4),
            false => GROUPS * 2 * DEPTH * 2,
        };
        let mut bytes = 0;
        for chunk in 0..self.parts() {
            for peer in (0..self.ranks).filter(|peer| *peer != self.owner(chunk)) {
                let theirs = || (0..self.parts()).filter(|c| self.owner(*c) == peer);
                let mut rows = theirs().flat_map(|c| self.chunk(c));
                let meets = |own: usize| {
                    self.chunk(chunk).any(|other| match queries_move {
                        true => sees(other, own),
                        false => sees(own, other),
                    })
                };
                if rows.any(meets) {
                    bytes += self.chunk(chunk).len() * row;
                }
            }
        }
        bytes as u64
    }

    /// Runs two launches, and returns the bytes that went from rank to rank. Every element that is read was written in
    /// its launch, and no result is missing.
    fn run(&self, plan: &Plan, documents: &[Vec<i32>], seed: u64) -> Result<u64, String> {
        let mut missing = None;
        let input = |epoch: i64, rank: usize, id, shape: &[usize]| {
            let n = shape.iter().product::<usize>();
            let buffer: &mk_codegen::plan::Buffer = &plan.buffers[id];
            if buffer.dtype.is_integer() {
                return documents[epoch as usize - 1].iter().map(|x| *x as f32).collect();
            }
            let mut rng = SmallRng::seed_from_u64(seed ^ (epoch as u64) << 32 ^ (rank as u64) << 8);
            (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
        };
        let output = |epoch: i64, rank: usize, id, _: &[usize], values: &[f32]| {
            if values.iter().any(|x| x.is_nan()) {
                missing = Some(format!("launch {epoch}, rank {rank}: {id} is not a number"));
            }
        };
        let options = Options {
            schedule: Schedule::Random,
            seed,
            launches: documents.len() as u32,
            check: true,
            ..Options::default()
        };
        let mut caller = Callbacks { input, table: |_, _, _| Vec::new(), output };
        let report = sim::run(plan, &mut caller, &options).map_err(|e| e.to_string())?;
        missing.map_or(Ok(report.pushed_bytes.iter().sum()), Err)
    }

    /// Documents of some lengths, of which the last tokens may be in none.
    fn documents(&self, rng: &mut SmallRng) -> Vec<i32> {
        let mut all: Vec<i32> =
            (1..self.entries).map(|_| rng.random_range(0..=self.tokens as i32)).collect();
        if rng.random_range(0..3) > 0 {
            all[0] = self.tokens as i32;
        }
        all.sort_unstable();
        [vec![0], all].concat()
    }
}

/// The plan in which owners push whatever meets what.
fn sends_all(plan: &Plan) -> Plan {
    let mut all = plan.clone();
    let without = |a: &mut mk_codegen::plan::Access| *a = plan.whether_or_not(a);
    let copies = all.families.iter_mut().filter(|(_, x)| x.leaf.copies());
    copies.for_each(|(_, x)| x.accesses.iter_mut().for_each(without));
    all
}

/// Bytes equal the formula, whatever the documents, the mask and the placement; and they do not where all is sent.
#[test]
fn chunks_go_to_those_who_meet_them() {
    let mut rng = SmallRng::seed_from_u64(7);
    let (mut fewer, mut n) = (0, 0);
    for (body, queries_move) in [(FORWARD, false), (DQ, false), (DKV, true)] {
        for (mask, zigzag) in MASKS.iter().flat_map(|m| [false, true].map(|z| (*m, z))) {
            for ranks in [1, 2, 3, 4, 8] {
                let tokens = rng.random_range(1..60);
                let ring = Ring::new(body, mask, zigzag, ranks, [tokens, rng.random_range(2..9)]);
                let launches = [ring.documents(&mut rng), ring.documents(&mut rng)];
                let place = format!("{body} {mask:?} {zigzag} {ranks} {tokens} {launches:?}");
                let want: u64 = launches.iter().map(|d| ring.bytes(d, mask, queries_move)).sum();
                let seed = rng.random();
                let bytes = ring.run(&ring.plan, &launches, seed);
                assert_eq!(bytes, Ok(want), "{place}\n{}", ring.plan);
                // What no mask hides is sent, then.
                let all = ring.run(&sends_all(&ring.plan), &launches, seed).expect("runs");
                assert!(all >= want, "{place}: {all} bytes, and {want} by the formula");
                (fewer, n) = (fewer + usize::from(all > want), n + 1);
            }
        }
    }
    assert!(2 * fewer > n, "of {n} rings only {fewer} send less than all");
}

/// An access that depends on whether parts meet, with another entry.
fn other_entry(
    plan: &mut Plan,
    family: FamId,
    operand: Option<Operand>,
    to: impl Fn(&[Expr]) -> Vec<Expr>,
) {
    let old = plan.clone();
    for a in &mut plan.families[family].accesses {
        let named = operand.is_none_or(|o| o == a.operand);
        if let Some(meeting) = old.meeting(a.when.as_ref()).filter(|_| named) {
            let entry = Expr::Table(meeting.table, to(meeting.index));
            a.when = Some(match meeting.rest {
                Some(rest) => entry.select(rest.clone(), 0),
                None => entry,
            });
        }
    }
}

/// Owners and readers that ask about different entries are refused, and so are those who ask about none, or another
/// table; an owner that sends all is not.
#[test]
fn both_ends_ask_the_same() {
    let mut n = 0;
    for (body, mask, zigzag, ranks) in [
        (FORWARD, ", causal", true, 2),
        (FORWARD, "", false, 3),
        (FORWARD, ", causal, window = 7", true, 3),
        (DQ, "", true, 2),
        (DKV, ", causal", false, 3),
        (DKV, "", true, 2),
    ] {
        let ring = Ring::new(body, mask, zigzag, ranks, [40, 5]);
        let place = format!("{body} {mask:?} {zigzag} {ranks}");
        ring.judge(&ring.plan).unwrap_or_else(|e| panic!("{place}: {e}\n{}", ring.plan));
        ring.judge(&sends_all(&ring.plan)).unwrap_or_else(|e| panic!("{place}, all is sent: {e}"));
        let meets =
            ring.plan.tables.iter().find(|(_, t)| matches!(t.source, TableSource::Meets { .. }));
        let (table, of) = meets.expect("a table");
        let sizes = [of.shape[0] as i32, of.shape[1] as i32];
        let mut refused = |plan: Plan, what: &str| {
            assert_ne!(plan, ring.plan, "{place}: {what} changes nothing");
            // Who never reads reads nothing that is not there, and computes something else.
            let verdict = match what.ends_with("never") {
                true => ring.judge(&plan),
                false => valid::verify(&plan).map(drop).map_err(|e| e.to_string()),
            };
            assert!(verdict.is_err(), "{place}: {what}\n{plan}");
            n += 1;
        };
        let asks =
            |x: &Family| x.accesses.iter().any(|a| ring.plan.meeting(a.when.as_ref()).is_some());
        for (id, x) in ring.plan.families.iter().filter(|(_, x)| asks(x)) {
            let mut operands: Vec<_> = x.accesses.iter().map(|a| Some(a.operand)).collect();
            operands.retain(|o| {
                ring.plan.families[id]
                    .accesses
                    .iter()
                    .any(|a| Some(a.operand) == *o && ring.plan.meeting(a.when.as_ref()).is_some())
            });
            operands.sort();
            operands.dedup();
            for operand in operands.into_iter().chain([None]) {
                let told = format!("{id} {:?} {operand:?}", x.name);
                for d in 0..2 {
                    let mut other = ring.plan.clone();
                    other_entry(&mut other, id, operand, |index| {
                        let mut index = index.to_vec();
                        index[d] = (index[d].clone() + 1) % sizes[d];
                        index
                    });
                    refused(other, &format!("{told}: the next entry along {d}"));
                    let mut other = ring.plan.clone();
                    other_entry(&mut other, id, operand, |index| {
                        let mut index = index.to_vec();
                        index[d] = 0.into();
                        index
                    });
                    refused(other, &format!("{told}: the first entry along {d}"));
                }
                let mut other = ring.plan.clone();
                for a in &mut other.families[id].accesses {
                    if ring.plan.meeting(a.when.as_ref()).is_some()
                        && operand.is_none_or(|o| o == a.operand)
                    {
                        // What a copy reads it writes; what a tile reads somebody has written.
                        *a = ring.plan.whether_or_not(a);
                    }
                }
                // Sources may be read for nothing.
                if !x.leaf.copies() || operand == Some(Operand::Dst) {
                    refused(other, &format!("{told}: always"));
                }
                let mut other = ring.plan.clone();
                for a in &mut other.families[id].accesses {
                    if ring.plan.meeting(a.when.as_ref()).is_some()
                        && operand.is_none_or(|o| o == a.operand)
                    {
                        a.when = Some(0.into());
                    }
                }
                refused(other, &format!("{told}: never"));
                let mut other = ring.plan.clone();
                for a in &mut other.families[id].accesses {
                    if let Some(m) = ring
                        .plan
                        .meeting(a.when.as_ref())
                        .filter(|_| operand.is_none_or(|o| o == a.operand))
                    {
                        let turned = m.entry.clone().equals(0);
                        a.when = Some(
                            m.rest.map_or(turned.clone(), |rest| turned.select(rest.clone(), 0)),
                        );
                    }
                }
                refused(other, &format!("{told}: where they do not meet"));
            }
        }
        // The table is of other documents, rows, pairs or parts than the bounds; or who makes it says so.
        for what in 0..4 {
            let mut other = ring.plan.clone();
            if let TableSource::Meets { side, mask, rows, .. } = &mut other.tables[table].source {
                match what {
                    0 => *side = if *side == Side::Keys { Side::Queries } else { Side::Keys },
                    1 => *mask = if *mask == Mask::Full { Mask::Causal } else { Mask::Full },
                    2 => *rows += 1,
                    _ => *mask = Mask::Window(3),
                }
            }
            let both = |other: &mut Plan| {
                let TableSource::Meets { side, mask, rows, .. } = other.tables[table].source else {
                    return;
                };
                for (_, x) in other.families.iter_mut() {
                    if let Leaf::Tabulate(Tabulate {
                        of: Tabulation::Meets { part, side: s, mask: m, .. },
                    }) = &mut x.leaf
                    {
                        (*part, *s, *m) = (rows as u32, side, mask);
                    }
                }
            };
            refused(other.clone(), &format!("another table, {what}"));
            both(&mut other);
            refused(other, &format!("another table and another task, {what}"));
        }
    }
    println!("{n} mutants refused");
    assert!(n > 200, "{n}");
}

/// Readers of what was not sent are found by the executor, too.
#[test]
fn what_was_not_sent_is_missed() {
    let ring = Ring::new(FORWARD, "", false, 3, [30, 4]);
    // Each rank has its own document.
    let launches = [vec![0, 10, 20, 30], vec![0, 10, 20, 30]];
    assert_eq!(ring.run(&ring.plan, &launches, 1), Ok(0));
    let mut reads_all = ring.plan.clone();
    for (_, x) in reads_all.families.iter_mut().filter(|(_, x)| ring.plan.knows_meetings(x)) {
        x.accesses.iter_mut().for_each(|a| *a = ring.plan.whether_or_not(a));
    }
    let error = ring.run(&reads_all, &launches, 1).expect_err("reads what nobody wrote");
    assert!(error.contains("reads buf") && error.contains("k_all"), "{error}");
    // Chunks of the launch before, which somebody had met, are none of this one's.
    let launches = [vec![0, 30, 30, 30], vec![0, 10, 20, 30]];
    let error = ring.run(&reads_all, &launches, 1).expect_err("reads what the launch before wrote");
    assert!(error.contains("epoch 2 reads buf"), "{error}");
    // Owners that send to the wrong ones.
    let mut elsewhere = ring.plan.clone();
    let push = ring.plan.families.iter().find(|(_, x)| x.leaf.copies()).map(|(id, _)| id);
    other_entry(&mut elsewhere, push.expect("a push"), None, |index| {
        vec![(index[0].clone() + 1) % 3, index[1].clone()]
    });
    let launches = [vec![0, 20, 30, 30], vec![0, 20, 30, 30]];
    ring.run(&elsewhere, &launches, 1).expect_err("what was to come went elsewhere");
    // Ranks with other documents have no launch.
    let table = ring.plan.tables.iter().find(|(_, t)| t.name == "documents").map(|(id, _)| id);
    let own = |rank: usize, id| match Some(id) == table {
        true => vec![0, 10 + rank as i32, 20, 30],
        false => Vec::new(),
    };
    let (rank, why) = TableSet::new(&ring.plan, own).refused(&ring.plan).expect("is refused");
    assert_eq!(rank, 1);
    assert!(why.contains("others than those of rank 0"), "{why}");
}

/// Over nodes owners send what ranks of their own node meet, and everything to other nodes.
#[test]
fn other_nodes_are_sent_all() {
    for body in [FORWARD, DKV] {
        let ring = Ring::new(body, ", causal", true, 4, [40, 5]);
        let nodes = Config { ranks: 4, nodes: 2, ..Config::default() };
        let plan = lower(&ring.program, &ring.bound, &nodes).unwrap_or_else(|e| panic!("{e}"));
        ring.judge(&plan).unwrap_or_else(|e| panic!("{body}: {e}\n{plan}"));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{body}: {e}"));
        let moves = |x: &Family| x.accesses.iter().any(|a| plan.meeting(a.when.as_ref()).is_some());
        for (_, x) in plan.families.iter().filter(|(_, x)| x.leaf.copies() || x.leaf.sends()) {
            assert_eq!(moves(x), x.name.starts_with("push"), "{}", x.name);
        }
        let launches = [vec![0, 5, 10, 15, 40], vec![0, 40, 40, 40, 40]];
        ring.run(&plan, &launches, 3).unwrap_or_else(|e| panic!("{body}: {e}"));
    }
}
