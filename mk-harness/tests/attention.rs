//! Attention on the executor against f64, on every world, mask, placement and schedule.

mod attend;
#[path = "sweep/drawn.rs"]
mod drawn;

use attend::{SMALL, Shape, withheld};
use drawn::some;
use mk_codegen::{
    passes::{LowerError, compile, lower},
    plan::{Leaf, Plan},
    settings::Config,
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, Dense, Inputs, judge, run_on_cpu};
use mk_syntax::{Bound, Op, Program};
use std::collections::BTreeMap;

/// `ring(k, v) -> attention(q)` in a placement, with its logarithms.
fn ring(shape: Shape, placement: &str, arguments: &str) -> (Program, Bound) {
    let Shape { dtype: t, batch, sequence, heads: [h, g], depth } = shape;
    let kv = format!("{t}[B, S, G, D] @ {placement}");
    let text = format!(
        "fn f(q: {t}[B, S, H, D] @ {placement}, k: {kv}, v: {kv}) {{ \
         let o = ring(k, v) -> attention(q{arguments}); (o, o -> lse) }}"
    );
    bind(&text, &[("B", batch), ("S", sequence), ("H", h), ("G", g), ("D", depth)])
}

fn bind(text: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

/// Few CTAs, so that each has several tiles.
fn on(ranks: u32, program: &Program) -> Config {
    let passed_on =
        program.nodes().iter().any(|n| matches!(n.op, Op::Attention { ring: Some(_), .. }));
    let intra_comm_sms = (ranks > 1 && passed_on).then_some(2);
    Config { ranks, compute_sms: Some(3), intra_comm_sms, copy_stages: 4, ..Config::default() }
}

#[track_caller]
fn plan((program, bound): &(Program, Bound), ranks: u32) -> Plan {
    match compile(program, bound, &on(ranks, program)) {
        Ok((plan, _)) => plan,
        Err(e) => panic!("{} on {ranks}: {e}", program.name()),
    }
}

#[track_caller]
fn passes(pipeline: &(Program, Bound), ranks: u32, schedules: &[Schedule]) {
    let plan = plan(pipeline, ranks);
    for (seed, schedule) in schedules.iter().enumerate() {
        let (program, bound) = pipeline;
        let case = Case { program, bound, ranks: ranks as usize };
        let options = CpuOptions {
            schedule: *schedule,
            seed: seed as u64,
            launches: 2,
            ..CpuOptions::default()
        };
        let run = run_on_cpu(case, &plan, &options).expect("runs");
        for (launch, ranks) in run.judged.iter().enumerate() {
            for (rank, judged) in ranks.iter().enumerate() {
                assert!(judged.passes(), "{schedule:?}, launch {launch}, rank {rank}: {judged}");
            }
        }
    }
}

const MASKS: [&str; 2] = ["", ", causal"];
const PLACEMENTS: [&str; 2] = ["shard(1)", "zigzag(1)"];
const RANDOM: &[Schedule] = &[Schedule::Random];

#[test]
fn worlds() {
    for ranks in some([1, 2, 3, 5], 4) {
        for (mask, placement) in MASKS.iter().flat_map(|m| PLACEMENTS.map(|p| (m, p))) {
            passes(&ring(SMALL, placement, mask), ranks, RANDOM);
        }
    }
}

#[test]
fn schedules() {
    for (mask, placement) in [("", "shard(1)"), (", causal", "zigzag(1)")] {
        let shape = Shape { sequence: 150, ..SMALL };
        passes(&ring(shape, placement, mask), 3, &Schedule::all(3));
    }
}

/// Each agent of each family held back on one rank.
#[test]
fn withheld_agents() {
    let ring = ring(Shape { sequence: 40, ..SMALL }, "zigzag(1)", ", causal");
    passes(&ring, 2, &withheld(&plan(&ring, 2)));
}

/// A thousand tokens, in worlds of one, four and eight ranks.
#[test]
fn a_thousand_tokens() {
    let worlds = [
        (1, [1, 1], "shard(1)", ", causal"),
        (4, [2, 1], "zigzag(1)", ", causal"),
        (8, [1, 1], "shard(1)", ""),
    ];
    for (ranks, heads, placement, mask) in some(worlds, 3) {
        let shape = Shape { sequence: 1000, heads, ..SMALL };
        passes(&ring(shape, placement, mask), ranks, RANDOM);
    }
}

#[test]
fn heads_types_and_depths() {
    let shape = Shape { sequence: 150, ..SMALL };
    for (heads, depth, dtype) in
        [([8, 8], 64, "bf16"), ([8, 2], 64, "f16"), ([8, 1], 64, "bf16"), ([4, 1], 128, "f16")]
    {
        let shape = Shape { heads, depth, dtype, ..shape };
        passes(&ring(shape, "zigzag(1)", ", causal, scale = 0.3"), 2, RANDOM);
    }
    passes(&ring(Shape { batch: 3, ..shape }, "shard(1)", ", causal"), 2, RANDOM);
}

/// Ranks without rows, and chunks shorter than a tile, or none at all.
#[test]
fn ragged_sequences() {
    for (ranks, sequence) in some([(4, 9), (8, 17), (4, 300), (3, 384)], 4) {
        for (mask, placement) in MASKS.iter().flat_map(|m| PLACEMENTS.map(|p| (m, p))) {
            passes(&ring(Shape { sequence, ..SMALL }, placement, mask), ranks, RANDOM);
        }
    }
}

/// One kernel for all lengths up to a bound: what it is verified for is what runs.
#[test]
fn lengths_that_come_with_each_launch() {
    for (mask, placement, ranks) in
        [("", "shard(1)", 3), (", causal", "zigzag(1)", 2), (", causal", "replicate", 1)]
    {
        let kv = format!("bf16[1, S, 1, 64] @ {placement}");
        let body = match ranks {
            1 => format!("let o = attention(q, k, v{mask}); (o, o -> lse)"),
            _ => format!("let o = ring(k, v) -> attention(q{mask}); (o, o -> lse)"),
        };
        let text = format!(
            "fn f<S: dyn <= 300>(q: bf16[1, S, 2, 64] @ {placement}, k: {kv}, v: {kv}) {{ {body} }}"
        );
        let (program, most) = bind(&text, &[]);
        plan(&(program.clone(), most.clone()), ranks);
        for length in [300, 257, 129, 5, 1] {
            let launch = BTreeMap::from([("S".to_string(), length)]);
            let bound = program.rebind(&most, &launch).expect("binds again");
            let plan = lower(&program, &bound, &on(ranks, &program)).expect("lowers");
            let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
            let options = CpuOptions { launches: 1, ..CpuOptions::default() };
            let run = run_on_cpu(case, &plan, &options).expect("runs");
            for judged in run.judged.iter().flatten() {
                assert!(judged.passes(), "{placement}{mask}, {length}: {judged}");
            }
        }
    }
}

/// Without a ring: whole tensors, or queries, batches or heads by rank.
#[test]
fn one_rank_has_all_it_needs() {
    for (q, kv) in [
        ("replicate", "replicate"),
        ("shard(1)", "replicate"),
        ("zigzag(1)", "replicate"),
        ("shard(0)", "shard(0)"),
        ("shard(2)", "shard(2)"),
    ] {
        let text = format!(
            "fn f(q: bf16[B, S, H, D] @ {q}, k: bf16[B, S, G, D] @ {kv}, v: bf16[B, S, G, D] @ {kv}) \
             {{ attention(q, k, v, causal) }}"
        );
        let dims = [("B", 3), ("S", 140), ("H", 4), ("G", 2), ("D", 64)];
        passes(&bind(&text, &dims), 2, RANDOM);
    }
}

/// Keys of another length than queries: the last of both have one place, and the first of more queries see none.
#[test]
fn keys_of_another_length() {
    for (s, t) in some([(140, 300), (1, 257), (300, 140), (129, 641), (641, 129)], 5) {
        for (q, kv, ranks) in [
            ("replicate", "replicate", 1),
            ("shard(1)", "replicate", 2),
            ("zigzag(1)", "replicate", 2),
        ] {
            for mask in ["", ", causal", ", causal, window = 100"] {
                let text = format!(
                    "fn f(q: bf16[1, S, 2, 64] @ {q}, k: bf16[1, T, 1, 64] @ {kv}, v: bf16[1, T, 1, 64] @ {kv}) \
                     {{ let o = attention(q, k, v{mask}); (o, o -> lse) }}"
                );
                passes(&bind(&text, &[("S", s), ("T", t)]), ranks, RANDOM);
            }
        }
    }
    // One of them comes with each launch.
    for dynamic in ["S", "T"] {
        let text = format!(
            "fn f<{dynamic}: dyn <= 300>(q: bf16[1, S, 2, 64], k: bf16[1, T, 1, 64], v: bf16[1, T, 1, 64]) \
             {{ attention(q, k, v, causal) }}"
        );
        let (program, most) = bind(&text, &[(if dynamic == "S" { "T" } else { "S" }, 130)]);
        plan(&(program.clone(), most.clone()), 1);
        for length in [300, 131, 130, 7] {
            let launch = BTreeMap::from([(dynamic.to_string(), length)]);
            let bound = program.rebind(&most, &launch).expect("binds again");
            let plan = lower(&program, &bound, &on(1, &program)).expect("lowers");
            let case = Case { program: &program, bound: &bound, ranks: 1 };
            let run = run_on_cpu(case, &plan, &CpuOptions::default()).expect("runs");
            for judged in run.judged.iter().flatten() {
                assert!(judged.passes(), "{dynamic} {length}: {judged}");
            }
        }
    }
}

/// Few queries behind many keys: parts of the keys side by side, put together in the kernel. Lengths that no block
/// divides; heads that share keys; windows, caps, sinks; lengths of a launch.
#[test]
fn parts_of_keys() {
    let plain = "attention(q, k, v, causal)";
    let all = [
        (1, 1, 8192, [4, 2], [64, 64], "replicate", "attention(q, k, v)"),
        (2, 1, 7001, [4, 1], [64, 64], "replicate", plain),
        (1, 1, 9000, [2, 2], [64, 64], "replicate", "attention(q, k, v, causal, sinks = s)"),
        (1, 3, 6000, [2, 1], [64, 64], "replicate", plain),
        (1, 16, 5000, [2, 1], [128, 128], "replicate", "attention(q, k, v, causal, softcap = 2)"),
        (1, 20, 5000, [2, 1], [192, 128], "replicate", "attention(q, k, v, causal, window = 3600)"),
        (1, 2, 6000, [4, 2], [64, 64], "shard(2)", "attention(q, k, v, causal, sinks = s)"),
        (2, 1, 9000, [2, 1], [64, 64], "shard(0)", "attention(q, k, v, causal, window = 8000)"),
        (1, 5, 4000, [14, 2], [64, 64], "replicate", "attention(q, k, v, causal, window = 3000)"),
        (1, 50, 4000, [4, 1], [64, 64], "replicate", plain),
    ];
    for (b, s, t, [h, g], [d, e], placement, body) in some(all, 5) {
        let ranks = if placement == "replicate" { 1 } else { 2 };
        let sinks = if placement == "shard(2)" { "shard(0)" } else { "replicate" };
        let sinks =
            if body.contains("sinks") { format!(", s: f32[H] @ {sinks}") } else { String::new() };
        let text = format!(
            "fn f(q: bf16[B, S, H, D] @ {placement}, k: bf16[B, T, G, D] @ {placement}, \
             v: bf16[B, T, G, E] @ {placement}{sinks}) {{ let o = {body}; (o, o -> lse) }}"
        );
        let sizes = [("B", b), ("S", s), ("T", t), ("H", h), ("G", g), ("D", d), ("E", e)];
        let pipeline = bind(&text, &sizes);
        let merges = |f: &mk_codegen::plan::Family| f.leaf.name() == "merge_tile";
        let plan = plan(&pipeline, ranks);
        assert!(plan.families.values().any(merges), "{text}");
        // As many heads that share their keys are rows as there is room for.
        let rows = plan.families.values().find_map(|f| match &f.leaf {
            Leaf::AttendTile(tile) => Some(tile.heads),
            _ => None,
        });
        assert_eq!(rows, Some(if s == 50 { 2 } else { h / g } as u32), "{text}");
        passes(&pipeline, ranks, RANDOM);
    }
}

/// Key blocks that tiles of a rank go through.
fn key_blocks(plan: &Plan, rank: usize) -> i64 {
    use mk_codegen::plan::{AttendTile, Operand, Point, Points, TableSet};
    let tables = TableSet::default();
    let points = Points::new(plan, &tables);
    let mut blocks = 0;
    for (id, f) in plan.families.iter() {
        let Leaf::AttendTile(AttendTile { block, .. }) = f.leaf else { continue };
        for task in points.tasks(id, rank, 1).expect("tasks") {
            for step in 0..points.inner(&task).expect("steps") {
                for a in f.accesses.iter().filter(|a| a.operand == Operand::K) {
                    assert_eq!(a.at, Point::Inner);
                    points
                        .for_each::<mk_codegen::plan::PointError>(
                            &task,
                            step,
                            None,
                            a.when.as_ref(),
                            |at| {
                                let keys = points.region(at, a)?.map_or(0, |r| r.len()) / 128;
                                blocks += (keys + i64::from(block[1]) - 1) / i64::from(block[1]);
                                Ok(())
                            },
                        )
                        .expect("a region");
                }
            }
        }
    }
    blocks
}

#[test]
fn zigzag_balances_causal_masks() {
    for ranks in [2, 4, 8] {
        let spread = |placement| {
            let shape = Shape { sequence: 16384, heads: [2, 1], depth: 128, ..SMALL };
            let (program, bound) = ring(shape, placement, ", causal");
            let config = Config { ranks, ..Config::default() };
            let plan = lower(&program, &bound, &config).expect("lowers");
            let all: Vec<i64> = (0..ranks as usize).map(|r| key_blocks(&plan, r)).collect();
            let (max, sum) = (all.iter().max().copied().unwrap_or(0), all.iter().sum::<i64>());
            max as f64 * f64::from(ranks) / sum as f64
        };
        let (zigzag, sharded) = (spread("zigzag(1)"), spread("shard(1)"));
        assert!(zigzag <= 1.02, "{ranks} ranks: {zigzag}");
        assert!(sharded > 1.3, "{ranks} ranks: {sharded}");
    }
}

/// Of a window tiles go through the blocks that hold some key which some query sees, and no others.
#[test]
fn windows_skip_blocks() {
    for (placement, ranks, window) in
        [("replicate", 1, 1000), ("replicate", 1, 128), ("shard(1)", 4, 2048), ("zigzag(1)", 2, 1)]
    {
        let shape = Shape { sequence: 8192, heads: [1, 1], depth: 128, ..SMALL };
        let words = format!(", causal, window = {window}");
        let (program, bound) = match ranks {
            1 => bind(
                &format!(
                    "fn f(q: bf16[1, 8192, 1, 128], k: bf16[1, 8192, 1, 128], v: bf16[1, 8192, 1, 128]) {{ attention(q, k, v{words}) }}"
                ),
                &[],
            ),
            _ => ring(shape, placement, &words),
        };
        let config = Config { ranks, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect("lowers");
        let found: i64 = (0..ranks as usize).map(|rank| key_blocks(&plan, rank)).sum();
        // A chunk begins its blocks anew.
        let chunk = 8192 / if placement == "zigzag(1)" { 2 * ranks } else { ranks };
        let of_tile = |tile: u32| -> u32 {
            let (first, end) = ((tile * 128).saturating_sub(window - 1), tile * 128 + 128);
            let pieces =
                (0..8192 / chunk).map(|c| (first.max(c * chunk), end.min(c * chunk + chunk)));
            pieces.map(|(from, to)| to.saturating_sub(from).div_ceil(128)).sum()
        };
        let want: u32 = (0..8192 / 128).map(of_tile).sum();
        assert_eq!(found, i64::from(want), "{placement} {window}");
    }
}

#[test]
fn refused_by_name() {
    let refused = |(program, bound): (Program, Bound), ranks| match lower(
        &program,
        &bound,
        &Config { ranks, ..Config::default() },
    ) {
        Err(e @ LowerError::Unsupported { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    };
    let depth = |depth| refused(ring(Shape { depth, ..SMALL }, "shard(1)", ""), 2);
    assert!(depth(96).contains("heads have 96 elements"));
    assert!(depth(512).contains("use 64, 128, 192 or 256"));
    let heads = ring(Shape { heads: [5, 2], ..SMALL }, "shard(1)", "");
    assert!(refused(heads, 2).contains("5 heads of queries cannot share 2"));
    let text = |body: &str| {
        let text = format!(
            "fn f<B: dyn <= 64>(q: bf16[B, 9, 4, 64], k: bf16[B, 9, 4, 64], v: bf16[B, 9, 4, 64]) {{ {body} }}"
        );
        refused(bind(&text, &[]), 1)
    };
    let batch = text("attention(q, k, v)");
    assert!(batch.contains("`B` comes with each launch, and is no length"), "{batch}");
    assert!(text("attention(q, k, v) -> gelu").contains("`attention` is in the same pipeline"));
}

#[test]
fn a_bound_on_work_judges_some_queries() {
    let (program, bound) = ring(SMALL, "shard(1)", ", causal");
    let case = Case { program: &program, bound: &bound, ranks: 1 };
    let (dense, o) = (Dense::new(Inputs::new(case, 3), 1), program.results()[0]);
    let expected = |dense: Dense<'_>| dense.expected(o).expect("evaluates").remove(0);
    let whole = expected(dense.clone());
    let mut got: Vec<f32> = whole.matrix.data.iter().map(|x| *x as f32).collect();
    assert_eq!(judge(&got, &whole).judged, 257 * 2 * 64);
    // Twice what one query of each head takes: the first and the last.
    let few = expected(dense.within(2 * 2 * 257 * 2 * 64));
    let judged = judge(&got, &few);
    assert!(judged.passes() && judged.judged == 2 * 2 * 64, "{judged:?}");
    got[128 * 128] += 1.0;
    assert!(judge(&got, &few).passes() && !judge(&got, &whole).passes());
    got[256 * 128 + 3] += 1.0;
    assert!(!judge(&got, &few).passes());
}
