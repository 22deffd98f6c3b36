//! Plans of attention over packed sequences: their text, proofs, CUDA, and what becomes of them when something in them
//! is another.

use mk_codegen::{emit, equivalence, passes::lower, plan::Plan, settings::Config, valid};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// A part of an attention of packed sequences, on one rank or over a ring: its program, sizes and plan.
struct Packed {
    program: Program,
    bound: Bound,
    plan: Plan,
}

impl Packed {
    fn new(body: &str, [tokens, entries, depth]: [u64; 3]) -> Packed {
        Packed::of(body, [tokens, entries, depth], 1, &Config::default())
    }

    /// Over a ring of so many ranks.
    fn ring(body: &str, sizes: [u64; 3], ranks: u32) -> Packed {
        Packed::of(body, sizes, 1, &Config { ranks, ..Config::default() })
    }

    fn of(body: &str, [tokens, entries, depth]: [u64; 3], batch: u64, config: &Config) -> Packed {
        let [at, turned] = match (body.contains("ring"), config.ranks) {
            (true, 2) => ["zigzag(1)", "zigzag(2)"],
            (true, _) => ["shard(1)", "shard(2)"],
            _ => ["replicate"; 2],
        };
        let more = match body.contains("do,") {
            true => format!(", do: bf16[B, T, H, D] @ {at}, stats: f32[B, H, T, 4] @ {turned}"),
            false => String::new(),
        };
        let keys = format!("bf16[B, T, G, D] @ {at}");
        let text = format!(
            "fn packed(q: bf16[B, T, H, D] @ {at}{more}, k: {keys}, v: {keys}, cu: i32[N]) {{ {body} }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let dims = [("B", batch), ("T", tokens), ("N", entries), ("H", 4), ("G", 2), ("D", depth)];
        let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let plan = lower(&program, &bound, config).unwrap_or_else(|e| panic!("{e}"));
        Packed { program, bound, plan }
    }

    fn judge(&self, plan: &Plan) -> Result<(), String> {
        valid::verify(plan).map_err(|e| e.to_string())?;
        let options = equivalence::Options::default();
        let found = equivalence::evaluate(plan, &self.program, &self.bound, &options);
        found.map(drop).map_err(|e| e.to_string())
    }
}

const FULL: &str = "let o = attention(q, k, v, cu_seqlens = cu); (o, o -> lse)";
const CAUSAL: &str = "let o = attention(q, k, v, causal, cu_seqlens = cu); (o, o -> lse)";
const WINDOW: &str = "attention(q, k, v, causal, window = 50, softcap = 30, cu_seqlens = cu)";
const DQ: &str = "attention_dq(q, do, stats, k, v, causal, cu_seqlens = cu)";
const DKV: &str =
    "let dk = attention_dk(k, v, q, do, stats, causal, cu_seqlens = cu); (dk, dk -> attention_dv)";

const RING: &str = "let o = ring(k, v) -> attention(q, causal, cu_seqlens = cu); (o, o -> lse)";
const RING_DQ: &str = "ring(k, v) -> attention_dq(q, do, stats, causal, cu_seqlens = cu)";
const RING_DKV: &str = "let dk = ring(q, do, stats) -> attention_dk(k, v, causal, cu_seqlens = cu);
    (dk, dk -> attention_dv)";

/// Plans are what they compute, of every mask, side, head and number of documents.
#[test]
fn proofs() {
    for body in [
        FULL,
        CAUSAL,
        WINDOW,
        DQ,
        &DQ.replace(", causal", ""),
        DKV,
        &DKV.replace(", causal", ""),
        &DKV.replace("causal", "causal, window = 50"),
    ] {
        for sizes in [[300, 5, 64], [129, 130, 64], [300, 2, 128], [64, 1, 64]] {
            let packed = Packed::new(body, sizes);
            packed
                .judge(&packed.plan)
                .unwrap_or_else(|e| panic!("{body} {sizes:?}: {e}\n{}", packed.plan));
        }
    }
    for body in [RING, RING_DQ, RING_DKV] {
        let masks = [", causal", "", ", causal, window = 50"];
        for (mask, ranks) in masks.iter().flat_map(|m| [2, 3].map(|ranks| (m, ranks))) {
            let body = body.replace(", causal", mask);
            let ring = Packed::ring(&body, [300, 5, 64], ranks);
            ring.judge(&ring.plan).unwrap_or_else(|e| panic!("{body} {ranks}: {e}\n{}", ring.plan));
        }
    }
    let two = Packed::of(CAUSAL, [300, 5, 64], 2, &Config::default());
    two.judge(&two.plan).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn texts() {
    for (name, body, ranks) in [
        ("packed_full", FULL, 1),
        ("packed_window", WINDOW, 1),
        ("packed_dq", DQ, 1),
        ("packed_dkv", DKV, 1),
        ("packed_ring", RING, 2),
        ("packed_ring_dkv", RING_DKV, 3),
    ] {
        let Packed { plan, .. } = Packed::ring(body, [2000, 9, 128], ranks);
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        let json = plan.to_json().expect("JSON");
        assert_eq!(Plan::from_json(&json).expect("a plan"), plan, "{name}");
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(name, text);
        if matches!(name, "packed_window" | "packed_dkv" | "packed_ring") {
            insta::assert_snapshot!(format!("cuda_{name}"), kernel.generated());
        }
    }
}

/// Every wait, and every post that somebody waits for, is needed: without any one of them the plan is rejected.
#[test]
fn nothing_can_be_left_out() {
    let mut n = 0;
    for (body, ranks) in [(CAUSAL, 1), (DQ, 1), (DKV, 1), (RING, 2), (RING_DKV, 2)] {
        let packed = Packed::ring(body, [2000, 5, 64], ranks);
        for (id, f) in packed.plan.families.iter() {
            let without: [fn(&mut Plan, _, usize); 3] = [
                |plan, id, i| drop(plan.families[id].waits.remove(i)),
                |plan, id, i| drop(plan.families[id].posts.remove(i)),
                |plan, id, i| drop(plan.families[id].accesses.remove(i)),
            ];
            let counts = [f.waits.len(), f.posts.len(), f.accesses.len()];
            for (without, count) in without.into_iter().zip(counts) {
                for i in 0..count {
                    let mut less = packed.plan.clone();
                    without(&mut less, id, i);
                    // Logarithms, and gradients of values, are results that a kernel need not have.
                    assert!(packed.judge(&less).is_err(), "{body}: {id} without line {i}\n{less}");
                    n += 1;
                }
            }
        }
    }
    assert!(n > 20, "{n}");
}

/// Plans with other bounds, of other rows, or of other keys, are no plans, or compute something else.
#[test]
fn other_bounds_compute_something_else() {
    // Of other rows of the tile's side, which are said to be at those places.
    let both = |text: &str, side: &str, to: &str| {
        let other = |line: &str| match line.trim_start() {
            x if x.starts_with("access bounds") || x.starts_with("access span") => {
                line.replacen("@ rank [", &format!("@ rank [{to}"), 1)
            }
            x if x.starts_with(side) => line.replacen(side, &format!("{side}{to}"), 1),
            _ => line.to_owned(),
        };
        text.lines().map(|line| other(line) + "\n").collect::<String>()
    };
    let windowed = "attention(q, k, v, causal, window = 50, cu_seqlens = cu)";
    for (body, changes) in [
        (
            CAUSAL,
            &[
                // Of the table and of who makes it, of the table alone.
                ("mask=causal", "mask=full"),
                ("mask=causal", "mask=window keys=100"),
                ("tab0 queries mask=causal", "tab0 queries mask=full"),
                ("queries mask=causal", "keys mask=causal"),
                ("rows=300", "rows=299"),
                // Of who reads it.
                ("mask=bounds", "mask=causal"),
                ("+= 1", "+= 0"),
                ("sig0[0] >= 1", "sig0[0] >= 0"),
            ][..],
        ),
        (
            windowed,
            &[
                ("keys=50", "keys=49"),
                ("keys=50", "keys=51"),
                ("mask=window keys=50", "mask=causal"),
            ],
        ),
        (FULL, &[("mask=full", "mask=causal")]),
        (DKV, &[("mask=causal", "mask=full"), ("keys mask=causal", "queries mask=causal")]),
        (DQ, &[("mask=causal", "mask=full"), ("mask=causal", "mask=window keys=100")]),
        (
            RING,
            &[
                ("mask=causal", "mask=full"),
                ("mask=bounds", "mask=causal"),
                ("rows=300", "rows=299"),
            ],
        ),
        (RING_DQ, &[("mask=causal", "mask=full")]),
        (RING_DKV, &[("mask=causal", "mask=full"), ("keys mask=causal", "queries mask=causal")]),
    ] {
        let packed = Packed::ring(body, [300, 5, 64], if body.contains("ring") { 2 } else { 1 });
        packed.judge(&packed.plan).unwrap_or_else(|e| panic!("{body}: {e}"));
        let text = packed.plan.to_string();
        let refused = |other: String, what: &str| {
            assert_ne!(other, text, "{body}: {what} changes nothing");
            let judged = other.parse::<Plan>().map_err(|e| e.to_string());
            let judged = judged.and_then(|plan| packed.judge(&plan));
            assert!(judged.is_err(), "{body}: {what}\n{other}");
        };
        for (from, to) in changes {
            refused(text.replace(from, to), &format!("{from} as {to}"));
        }
        // Keys of other places, and bounds of rows nearby: one row before, or behind.
        for side in ["position q", "position k"] {
            let line = text.lines().find(|l| l.trim_start().starts_with(side)).expect(side);
            refused(text.replacen(line, &format!("{line} + 1"), 1), side);
        }
        let side = if body.contains("attention_dk") { "position k " } else { "position q " };
        refused(both(&text, side, "1 + "), "bounds of the next row");
        refused(both(&text, side, "0 * "), "bounds of the first rows");
    }
}

/// What is wrong with where documents begin, as who gives it is told.
#[test]
fn documents_that_a_launch_cannot_have() {
    use mk_codegen::plan::TableSet;
    let Packed { plan, .. } = Packed::new(FULL, [8, 4, 64]);
    let refused = |begins: [i32; 4]| {
        let tables = TableSet::new(&plan, |_, _| begins.to_vec());
        tables.refused(&plan).map(|(_, why)| why)
    };
    assert_eq!(refused([0, 0, 8, 8]), None);
    assert_eq!(refused([0, 2, 3, 5]), None);
    for (begins, says) in [
        ([1, 2, 3, 8], "begins at 1"),
        ([0, 5, 3, 8], "entry 2 is 3, and the one before it 5"),
        ([0, 5, 8, 9], "the entry 9 is outside 0..=8"),
        ([0, -1, 8, 8], "the entry -1 is outside 0..=8"),
    ] {
        let why = refused(begins).expect("is refused");
        assert!(why.contains(says), "{begins:?}: {why}");
    }
}
