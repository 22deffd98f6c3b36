//! The backward of attention on the executor against f64: statistics, gradients of queries, gradients of keys and values.

mod attend;
#[path = "sweep/drawn.rs"]
mod drawn;

use attend::{SMALL, Shape, withheld};
use drawn::some;
use mk_codegen::{passes::compile, plan::Plan, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::{Bound, Op, Program};
use std::collections::BTreeMap;

/// The placement of `[B, H, S]` beside one of `[B, S, H, D]`.
fn turned(placement: &str) -> &str {
    match placement {
        "shard(1)" => "shard(2)",
        "shard(2)" => "shard(1)",
        "zigzag(1)" => "zigzag(2)",
        other => other,
    }
}

/// A part of the backward of attention, over a ring or of operands that a rank has.
fn part(shape: Shape, placements: [&str; 2], words: &str, ring: bool, body: &str) -> Pipeline {
    let Shape { batch, sequence, heads: [h, g], depth, .. } = shape;
    let text = text(shape.dtype, placements, words, ring, body);
    bind(&text, &[("B", batch), ("S", sequence), ("H", h), ("G", g), ("D", depth)])
}

fn text(t: &str, placements: [&str; 2], words: &str, ring: bool, body: &str) -> String {
    let [q, kv] = placements;
    let stats = turned(q);
    format!(
        "fn f(q: {t}[B, S, H, D] @ {q}, do: {t}[B, S, H, D] @ {q}, stats: f32[B, H, S, 4] @ {stats}, \
         k: {t}[B, S, G, D] @ {kv}, v: {t}[B, S, G, D] @ {kv}) {{ {} }}",
        match (body, ring) {
            ("dq", true) => format!("ring(k, v) -> attention_dq(q, do, stats{words})"),
            ("dq", false) => format!("attention_dq(q, do, stats, k, v{words})"),
            (_, true) => format!(
                "let dk = ring(q, do, stats) -> attention_dk(k, v{words}); (dk, dk -> attention_dv)"
            ),
            (_, false) => format!(
                "let dk = attention_dk(k, v, q, do, stats{words}); (dk, dk -> attention_dv)"
            ),
        }
    )
}

type Pipeline = (Program, Bound);

fn bind(text: &str, dims: &[(&str, u64)]) -> Pipeline {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

#[track_caller]
fn plan((program, bound): &Pipeline, ranks: u32) -> Plan {
    let passed_on = |op| {
        matches!(op, Op::AttentionDq { ring: Some(_), .. } | Op::AttentionDk { ring: Some(_), .. })
    };
    let ring = program.nodes().iter().any(|n| passed_on(n.op)) && ranks > 1;
    let intra_comm_sms = ring.then_some(2);
    let config =
        Config { ranks, compute_sms: Some(3), intra_comm_sms, copy_stages: 4, ..Config::default() };
    match compile(program, bound, &config) {
        Ok((plan, _)) => plan,
        Err(e) => panic!("{program} on {ranks}: {e}"),
    }
}

#[track_caller]
fn passes(pipeline: &Pipeline, ranks: u32, schedules: &[Schedule]) {
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

const RANDOM: &[Schedule] = &[Schedule::Random];

/// Every mask and placement of a ring.
fn rings() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let masks = ["", ", causal"].into_iter();
    let placed = masks.flat_map(|m| ["shard(1)", "zigzag(1)"].map(|p| (m, p)));
    placed.flat_map(|(m, p)| ["dq", "dkv"].map(|body| (m, p, body)))
}

#[test]
fn worlds() {
    for ranks in some([1, 2, 3, 5], 4) {
        for (mask, placement, body) in rings() {
            let shape = Shape { sequence: 150, ..SMALL };
            passes(&part(shape, [placement; 2], mask, true, body), ranks, RANDOM);
        }
    }
}

/// One kernel for all lengths up to a bound.
#[test]
fn lengths_that_come_with_each_launch() {
    for (body, placement, ranks) in
        [("dq", "zigzag(1)", 2), ("dkv", "zigzag(1)", 2), ("dkv", "shard(1)", 3)]
    {
        let fixed = text("bf16", [placement; 2], ", causal", true, body);
        let text = fixed.replacen("fn f(", "fn f<S: dyn <= 150>(", 1);
        let (program, most) = bind(&text, &[("B", 1), ("H", 2), ("G", 1), ("D", 64)]);
        let verified = plan(&(program.clone(), most.clone()), ranks);
        for length in [150, 37, 2] {
            let launch = BTreeMap::from([("S".to_string(), length)]);
            let bound = program.rebind(&most, &launch).expect("binds again");
            let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
            let options = CpuOptions { launches: 1, ..CpuOptions::default() };
            let run = run_on_cpu(case, &verified, &options).expect("runs");
            for judged in run.judged.iter().flatten() {
                assert!(judged.passes(), "{body} {placement}, {length}: {judged}");
            }
        }
    }
}

#[test]
fn schedules() {
    let shape = Shape { sequence: 150, ..SMALL };
    for body in ["dq", "dkv"] {
        let ring = part(shape, ["zigzag(1)"; 2], ", causal", true, body);
        passes(&ring, 3, &[Schedule::Reversed, Schedule::Starve(1), Schedule::EpochApart]);
    }
}

/// Each agent of each family held back on one rank.
#[test]
fn withheld_agents() {
    let shape = Shape { sequence: 40, ..SMALL };
    for body in ["dq", "dkv"] {
        let ring = part(shape, ["zigzag(1)"; 2], ", causal", true, body);
        passes(&ring, 2, &withheld(&plan(&ring, 2)));
    }
}

#[test]
fn heads_types_and_depths() {
    for (heads, depth, dtype) in
        [([8, 8], 64, "bf16"), ([8, 2], 64, "f16"), ([8, 1], 64, "bf16"), ([4, 1], 128, "f16")]
    {
        let shape = Shape { sequence: 80, heads, depth, dtype, ..SMALL };
        for body in ["dq", "dkv"] {
            let ring = part(shape, ["zigzag(1)"; 2], ", causal, scale = 0.1", true, body);
            passes(&ring, 2, RANDOM);
        }
    }
}

/// Ranks without rows, chunks shorter than a tile, or none at all, and of one more than whole tiles.
#[test]
fn ragged_sequences() {
    for (ranks, sequence) in some([(4, 9), (8, 17), (3, 384), (2, 514)], 4) {
        for (mask, placement, body) in rings() {
            let heads = if sequence > 500 { [1, 1] } else { [2, 1] };
            let shape = Shape { sequence, heads, ..SMALL };
            passes(&part(shape, [placement; 2], mask, true, body), ranks, RANDOM);
        }
    }
}

/// Without a ring: whole tensors, or queries, batches or heads by rank. Keys that all ranks have get a part from each.
#[test]
fn one_rank_has_all_it_needs() {
    let all = [
        ["replicate"; 2],
        ["shard(1)", "replicate"],
        ["zigzag(1)", "replicate"],
        ["shard(0)"; 2],
        ["shard(2)"; 2],
    ];
    for placements in some(all, 3) {
        let shape = Shape { batch: 3, sequence: 140, heads: [4, 2], ..SMALL };
        for body in ["dq", "dkv"] {
            passes(&part(shape, placements, ", causal", false, body), 2, RANDOM);
        }
    }
}

/// Keys of another length than queries, the last of which have one place.
#[test]
fn keys_of_another_length() {
    for (s, t) in some([(140, 300), (1, 257), (300, 140), (129, 513)], 4) {
        for placements in [["replicate"; 2], ["shard(1)", "replicate"], ["zigzag(1)", "replicate"]]
        {
            for (mask, body) in ["", ", causal", ", causal, window = 100"]
                .into_iter()
                .flat_map(|m| ["dq", "dkv"].map(|body| (m, body)))
            {
                let text =
                    text("bf16", placements, mask, false, body).replace("[B, S, G", "[B, T, G");
                let dims = [("B", 1), ("S", s), ("T", t), ("H", 2), ("G", 1), ("D", 64)];
                passes(
                    &bind(&text, &dims),
                    if placements[0] == "replicate" { 1 } else { 2 },
                    RANDOM,
                );
            }
        }
    }
}

#[test]
fn statistics() {
    for placement in ["replicate", "shard(0)", "shard(1)", "shard(2)", "zigzag(1)"] {
        let stats = turned(placement);
        let text = format!(
            "fn f(o: bf16[B, S, H, 128] @ {placement}, do: bf16[B, S, H, 128] @ {placement}, \
             logs: f32[B, H, S] @ {stats}) {{ o -> attention_stats(do, logs) }}"
        );
        passes(&bind(&text, &[("B", 3), ("S", 141), ("H", 4)]), 2, RANDOM);
    }
}

/// Of sinks, of odd numbers of queries and heads; of what each rank has, where queries are shared.
#[test]
fn sinks() {
    for (placement, sinks) in [
        ("replicate", "replicate"),
        ("shard(0)", "replicate"),
        ("shard(1)", "shard(0)"),
        ("shard(2)", "replicate"),
        ("zigzag(2)", "replicate"),
    ] {
        let text = format!(
            "fn f(stats: f32[B, H, S, 4] @ {placement}, s: f32[H] @ {sinks}) {{ attention_dsinks(stats, s) }}"
        );
        for (ranks, b, s, h) in [(2, 3, 141, 4), (2, 1, 1, 2), (2, 2, 300, 5), (4, 2, 3, 3)] {
            passes(&bind(&text, &[("B", b), ("S", s), ("H", h)]), ranks, RANDOM);
        }
    }
}
