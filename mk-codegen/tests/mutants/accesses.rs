//! Mutants of accesses and tables: the verifier and the evaluation against the pipeline refuse those that the executor shows to be wrong.
//!
//! CI takes random ones, for so many seconds; `MK_SWEEP=all` takes all, plan by plan, and says of each how it went; a miss
//! is printed when it is seen. `MK_SEED` repeats a run, `MK_MUTANTS_CASE` takes the plans whose names contain it. A mutant
//! is *wrong* if the executor fails it, or if its results differ from the plan's by more than roundings, with some
//! numbers, routings and orders.

use crate::{
    alike::first_alike,
    cases::{self, Case},
    in_parallel,
    mutate::{Kind, Mutant, of_accesses},
};
use mk_codegen::{
    check::Claim,
    passes::NotProved,
    plan::{BufId, Plan, TabId, TableSource},
    settings::Config,
    sim::{self, Callbacks, Options, Schedule},
    valid::{self, TableKind},
};
use mk_syntax::{Placement, Program};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Seconds that CI spends here.
const SECONDS: u64 = 5;
/// Of mutants that are the same at every point, how many there are for one that is judged beside the first.
const EVERY: usize = 16;
/// Mutants of a plan that are judged before the next plan.
const AT_ONCE: usize = 24;

/// Pipelines of this version that no other list here has in small, with their sizes and a setting.
type Small = (&'static str, u32, &'static [(&'static str, u64)], &'static str);

const LAYER: &str =
    "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, DROPS) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";
const BACK: &str =
    "fn f(rows: bf16[R, I] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    ragged(rows, ids) -> grouped_gemm(w2) -> combine(gate)
}";
const THERE: &str = "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0)) -> bf16[R, N] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w)
}";

const RING: &str = "fn f(q: bf16[1, T, 2, 64] @ zigzag(1), k: bf16[1, T, 1, 64] @ zigzag(1),
    v: bf16[1, T, 1, 64] @ zigzag(1), cu: i32[N]) {
    ring(k, v) -> attention(q, causal, cu_seqlens = cu)
}";
const RING_DKV: &str = "fn f(q: bf16[1, T, 2, 64] @ shard(1), do: bf16[1, T, 2, 64] @ shard(1), stats: f32[1, 2, T, 4] @ shard(2),
    k: bf16[1, T, 1, 64] @ shard(1), v: bf16[1, T, 1, 64] @ shard(1), cu: i32[N]) {
    ring(q, do, stats) -> attention_dk(k, v, cu_seqlens = cu)
}";

const SMALL: &[Small] = &[
    (LAYER, 2, &[("T", 140), ("H", 8), ("K", 2), ("E", 4), ("I", 8)], "capacity = 512, drop"),
    (BACK, 2, &[("T", 9), ("H", 8), ("K", 2), ("E", 4), ("I", 8), ("R", 512)], ""),
    (THERE, 3, &[("T", 10), ("H", 8), ("K", 2), ("E", 6), ("N", 8), ("R", 768)], ""),
    (RING, 2, &[("T", 24), ("N", 4)], ""),
    (RING_DKV, 3, &[("T", 24), ("N", 4)], ""),
];

/// A file of `examples`, ranks, and sizes.
type Example = (&'static str, u32, &'static [(&'static str, u64)]);

/// The examples, in small.
const EXAMPLES: &[Example] = &[
    ("moe_layer", 2, &[("T", 7), ("H", 8), ("I", 8), ("E", 4), ("K", 2)]),
    ("experts", 2, &[("R", 512), ("H", 8), ("I", 8), ("E", 2)]),
    ("gather", 3, &[("M", 7), ("K", 8)]),
    ("gather_gemm", 2, &[("M", 260), ("K", 16), ("N", 24)]),
    ("gemm", 2, &[("M", 260), ("K", 16), ("N", 24)]),
    ("mlp_up", 2, &[("M", 6), ("K", 8), ("F", 16)]),
    ("ring_attention", 2, &[("B", 1), ("S", 48), ("H", 2), ("G", 1), ("D", 64)]),
];

fn bound(name: String, text: &str, ranks: u32, dims: &[(&str, u64)]) -> Case {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{name}: {e}"));
    Case::lowered(name, program, bound, &Config { ranks, ..Config::default() })
}

fn cases(all: bool) -> Vec<Case> {
    let mut out = Vec::new();
    for (text, ranks, dims, with) in SMALL {
        let text = text.replace("DROPS", with);
        out.push(bound(format!("{text}, {ranks} ranks"), &text, *ranks, dims));
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for (name, ranks, dims) in EXAMPLES {
        let path = folder.join(format!("{name}.mk"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        out.push(bound(format!("example {name}, {ranks} ranks"), &text, *ranks, dims));
    }
    out.extend(cases::experts(!all));
    out.extend(cases::nodes(!all));
    out.extend(cases::meshes(!all));
    out.extend(cases::attention(!all));
    out.extend(cases::small(true));
    if let Ok(part) = std::env::var("MK_MUTANTS_CASE") {
        out.retain(|c| c.name.contains(&part));
    }
    out
}

fn mix(list: impl IntoIterator<Item = u64>) -> u64 {
    list.into_iter().fold(0, |h, x| {
        let x = (h ^ x).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

/// Different experts of each token of a rank; one of them is rather popular.
fn route(seed: u64, rank: usize, [tokens, slots]: [usize; 2], experts: u64) -> Vec<f32> {
    let popular = mix([seed]) % experts;
    let of = |token: usize| {
        let hash = |e: u64, salt: u64| mix([seed, rank as u64, token as u64, e, salt]) >> 8;
        let mut all: Vec<u64> = (0..experts).collect();
        all.sort_by_key(|e| hash(*e, 0) / if *e == popular { 16 } else { 1 });
        all.truncate(slots);
        all.sort_by_key(|e| hash(*e, 1));
        all.into_iter().map(|e| e as f32)
    };
    (0..tokens).flat_map(of).collect()
}

type Outputs = BTreeMap<(i64, usize, BufId), Vec<f32>>;

/// The results of two launches.
fn outputs(case: &Case, plan: &Plan, seed: u64, schedule: Schedule) -> Result<Outputs, String> {
    let original = &case.plan;
    let counts = valid::sample_tables(original, TableKind::Random(seed));
    let program = case.pipeline.as_ref().map(|p| &p.0);
    let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
        let whole = |id: BufId| {
            let tensor = program.and_then(|p| p.tensor(&original.buffers[id].name));
            tensor.is_some_and(|t| t.ty.placement.first() == Some(&Placement::Replicate))
        };
        let place = if whole(id) { 0 } else { rank as u64 + 1 };
        let seed = mix([seed, epoch as u64]);
        if let Some((table, t)) = original.tables.iter().find(|(_, t)| t.stored == Some(id)) {
            let routed = original.tables.values().filter_map(|t| t.routed).any(|r| r.ids == table);
            // Two documents, and tokens of none; the same on all ranks.
            if let Some(tokens) = mk_codegen::plan::tokens(original, table) {
                let behind = |i| mix([seed, i]) % u64::try_from(tokens + 1).unwrap_or(1);
                let mut begins: Vec<u64> = (1..shape[0] as u64).map(behind).collect();
                begins.sort_unstable();
                return [0].into_iter().chain(begins).map(|x| x as f32).collect();
            }
            return match (&t.source, shape) {
                (TableSource::Runtime { max, .. }, [tokens, slots]) if routed => {
                    route(seed, rank, [*tokens, *slots], *max as u64 + 1)
                }
                _ => {
                    let rank = if whole(id) { 0 } else { rank };
                    counts.values(rank, table).iter().map(|n| *n as f32).collect()
                }
            };
        }
        let number = id.to_string()[3..].parse().expect("a number");
        let one = |i: usize| {
            let n = mix([seed, place, number, i as u64]);
            ((n >> 8) % 7 + 1) as f32 / if n.is_multiple_of(2) { 4.0 } else { -4.0 }
        };
        (0..shape.iter().product()).map(one).collect()
    };
    let table = |_: i64, rank: usize, id: TabId| -> Vec<i32> { counts.values(rank, id).to_vec() };
    let mut found = Outputs::new();
    let output = |epoch: i64, rank: usize, id: BufId, _: &[usize], values: &[f32]| {
        found.insert((epoch, rank, id), values.to_vec());
    };
    let options = Options { schedule, launches: 2, ..Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options).map_err(|e| e.to_string())?;
    Ok(found)
}

/// Whether results differ by more than other orders of sums explain, and, of memory of another type, roundings. What is not written, is nobody's.
fn differ(kind: Kind, right: &Outputs, found: &Outputs) -> bool {
    let most = right.values().flatten().map(|x| x.abs()).fold(0.0, f32::max);
    let rounded = if kind == Kind::OtherType { 0.02 * most } else { 0.0 };
    let near = |x: f32, y: f32| (x - y).abs() <= 0.06 * (1.0 + x.abs()) + rounded;
    let far = |(x, y): (&f32, &f32)| !x.is_nan() && !near(*x, *y);
    let other = |((k, x), (l, y)): ((&_, &Vec<f32>), (&_, &Vec<f32>))| {
        k != l || x.len() != y.len() || x.iter().zip(y).any(far)
    };
    right.len() != found.len() || right.iter().zip(found).any(other)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unordered,
    Values,
    Near,
    Equal,
    Missed,
}

const RUNS: [(u64, Schedule); 3] =
    [(1, Schedule::Random), (2, Schedule::Reversed), (3, Schedule::EpochApart)];

#[derive(Clone)]
struct Judged {
    kind: Kind,
    outcome: Outcome,
    says: String,
}

impl Judged {
    fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::Unordered | Outcome::Values | Outcome::Near)
    }
}

fn judge(case: &Case, right: &[Outputs], mutant: &Mutant) -> Judged {
    let (program, bound) = case.pipeline.as_ref().expect("a pipeline");
    let plan = &mutant.plan;
    let wrong = || {
        RUNS.iter().zip(right).find_map(|((seed, schedule), right)| {
            match outputs(case, plan, *seed, *schedule) {
                Ok(found) if !differ(mutant.kind, right, &found) => None,
                Ok(_) => Some("other results".to_string()),
                Err(e) => Some(e),
            }
        })
    };
    let (outcome, says) = match Claim::read(plan, Some((program, bound))).prove() {
        Err(e @ NotProved::Verify(_)) => (Outcome::Unordered, e.to_string()),
        Err(e) if wrong().is_some() => (Outcome::Values, e.to_string()),
        Err(e) => (Outcome::Near, e.to_string()),
        Ok(_) => match wrong() {
            None => (Outcome::Equal, String::new()),
            Some(e) => (Outcome::Missed, e),
        },
    };
    Judged { kind: mutant.kind, outcome, says: format!("{}\n  {}: {says}", case.name, mutant.name) }
}

fn right(case: &Case) -> Vec<Outputs> {
    let run = |(seed, schedule): &(u64, Schedule)| {
        outputs(case, &case.plan, *seed, *schedule).unwrap_or_else(|e| panic!("{}: {e}", case.name))
    };
    RUNS.iter().map(run).collect()
}

/// How it went with the mutants of a plan.
fn line(
    case: &Case,
    mutants: &[Mutant],
    judged: &BTreeMap<usize, Judged>,
    took: Duration,
) -> String {
    let refused = judged.values().filter(|j| j.is_refused()).count();
    let of = |outcome| judged.values().filter(|j| j.outcome == outcome).count();
    let (equal, missed) = (of(Outcome::Equal), of(Outcome::Missed));
    let name = case.name.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "{} mutants, {} judged: {refused} refused, {equal} equivalent, {missed} missed, {:.1} s: {name}",
        mutants.len(),
        judged.len(),
        took.as_secs_f64()
    )
}

/// Prints what came of mutants, and stops at those that are wrong and accepted.
fn report(judged: &[Judged]) {
    let mut table: BTreeMap<Kind, [usize; 5]> = BTreeMap::new();
    for j in judged {
        table.entry(j.kind).or_default()[j.outcome as usize] += 1;
    }
    println!(
        "| changed | mutants | refused by the verifier | by the evaluation, wrong | by the evaluation, no run shows it | accepted, equal | missed |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut sums = [0; 5];
    for (kind, n) in &table {
        let all: usize = n.iter().sum();
        let [a, b, c, d, e] = n;
        println!("| {} | {all} | {a} | {b} | {c} | {d} | {e} |", kind.name());
        sums.iter_mut().zip(n).for_each(|(sum, n)| *sum += n);
    }
    let [a, b, c, d, e] = sums;
    println!("| all | {} | {a} | {b} | {c} | {d} | {e} |", judged.len());
    let of = |outcome| judged.iter().filter(move |j| j.outcome == outcome).map(|j| &*j.says);
    if let Ok(which) = std::env::var("MK_MUTANTS_SAY") {
        for outcome in [Outcome::Near, Outcome::Equal] {
            if which == format!("{outcome:?}") {
                of(outcome).for_each(|says| println!("{outcome:?}: {says}"));
            }
        }
    }
    let missed: Vec<_> = of(Outcome::Missed).collect();
    assert!(missed.is_empty(), "wrong, and accepted:\n{}", missed.join("\n"));
}

#[test]
fn wrong_accesses_and_tables_are_refused() {
    let all = !crate::few();
    let begin = Instant::now();
    let seed = crate::drawn::seed();
    let mut cases = cases(all);
    if all {
        // Quick ones first.
        cases.sort_by_cached_key(|c| {
            let proof = valid::verify(&c.plan).unwrap_or_else(|e| panic!("{}: {e}", c.name));
            proof.accesses * proof.tables.max(1) * of_accesses(&c.plan).len()
        });
        println!("{} plans", cases.len());
    } else {
        // Tables first.
        cases.sort_by_key(|c| mix([seed, c.name.len() as u64, c.plan.families.len() as u64]));
        let tabulated = cases.iter().position(|c| !c.plan.tables.is_empty()).unwrap_or(0);
        cases.swap(0, tabulated);
    }
    let (mut judged, mut apart) = (Vec::new(), Vec::new());
    for case in &cases {
        if !all && begin.elapsed() > Duration::from_secs(SECONDS) {
            break;
        }
        let mut mutants = of_accesses(&case.plan);
        if !all {
            let mut i = 0;
            mutants.sort_by_cached_key(|_| {
                i += 1;
                mix([seed, i])
            });
            mutants.truncate(AT_ONCE);
        }
        let start = Instant::now();
        let first = first_alike(&case.plan, mutants.iter().map(|m| &m.plan));
        // Of those that are alike, one more now and then, which must fare as the first one.
        let again = |i: &usize| first[*i] == *i || !all || i.is_multiple_of(EVERY);
        let list: Vec<usize> = (0..mutants.len()).filter(again).collect();
        let right = right(case);
        let found = in_parallel(&list, |i| {
            let judged = judge(case, &right, &mutants[*i]);
            if judged.outcome == Outcome::Missed {
                println!("missed: {}", judged.says);
            }
            (*i, judged)
        });
        let found: BTreeMap<usize, Judged> = found.into_iter().collect();
        for (i, j) in &found {
            let one = &found[&first[*i]];
            if j.is_refused() != one.is_refused() {
                apart.push(format!("{}\nand\n{}", j.says, one.says));
            }
        }
        println!("{}", line(case, &mutants, &found, start.elapsed()));
        judged.extend(
            (0..mutants.len())
                .map(|i| Judged { kind: mutants[i].kind, ..found[&first[i]].clone() }),
        );
    }
    println!("{} plans in {:.0?}", cases.len(), begin.elapsed());
    report(&judged);
    assert!(apart.is_empty(), "alike, and judged otherwise:\n{}", apart.join("\n"));
}
