//! Pipelines over nodes, on the executor: right for every number of nodes and ranks in them, in order and unordered, ragged and with a
//! run-time dimension, under every schedule.

use mk_codegen::{
    passes::compile,
    settings::{Config, NicOrdering, Reduction},
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Pipelines; `M` rows, and every other extent a few tiles of the settings below at most.
const PIPELINES: &[&str] = &[
    "fn f(a: bf16[M, K] @ shard(0)) { gather(a) }",
    "fn f(x: bf16[M, K] @ partial) { reduce_scatter(x) }",
    "fn f(x: bf16[M, K] @ partial) { all_reduce(x) }",
    "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N]) { gather(a) -> gemm(b) -> gelu }",
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> all_reduce }",
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
         let whole = gather(x);
         (whole -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter -> add(x), whole)
     }",
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
         gather(x) -> gemm(w) -> silu -> gemm(v) -> cast(f32) -> all_reduce
     }",
];

/// Nodes and ranks in each.
const WORLDS: &[(u32, u32)] = &[(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (8, 1)];

/// A small machine: tasks queue up on few CTAs.
fn config((nodes, local): (u32, u32), net: NicOrdering, reduction: Reduction) -> Config {
    let (compute_sms, intra_comm_sms) = (Some(3), Some(2));
    let (block, chunk_bytes) = ([64, 128, 64], 4096);
    let ranks = nodes * local;
    Config {
        ranks,
        nodes,
        net,
        block,
        chunk_bytes,
        reduction,
        compute_sms,
        intra_comm_sms,
        copy_stages: 4,
        ..Config::default()
    }
}

/// Lowers, verifies, runs and judges.
fn right(source: &str, rows: u64, config: &Config, schedule: Schedule, seed: u64) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{source}: {e}"));
    let dims = [("M", rows), ("K", 136), ("N", 72), ("F", 200)];
    let dims: BTreeMap<_, _> = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let used = |name: &String| {
        source.contains(&format!("{name},")) || source.contains(&format!(" {name}]"))
    };
    let dims = dims.into_iter().filter(|(name, _)| used(name)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let mut config = config.clone();
    // Only a kernel that multiplies takes these, and only one with such CTAs that.
    if !source.contains("gemm") {
        config.block = Config::default().block;
    }
    let alone = config.ranks == config.nodes;
    if (config.reduction == Reduction::AfterLastWave || alone) && !source.contains("gather") {
        config.intra_comm_sms = None;
    }
    let what =
        format!("{source} of {rows} rows on {} nodes of {} ranks", config.nodes, config.ranks);
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{what}: {e}"));
    let case = Case { program: &program, bound: &bound, ranks: config.ranks as usize };
    let options = CpuOptions { schedule, seed, launches: 2, ..CpuOptions::default() };
    let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (launch, judged) in run.judged.iter().enumerate() {
        for (rank, judged) in judged.iter().enumerate() {
            assert!(judged.passes(), "{what}, {schedule}, launch {launch}, rank {rank}: {judged}");
        }
    }
}

const ORDERINGS: [NicOrdering; 2] = [NicOrdering::InOrder, NicOrdering::Unordered];

#[test]
fn every_world() {
    for (n, source) in (0..).zip(PIPELINES) {
        for (w, world) in (0..).zip(WORLDS) {
            // Rows that no number of ranks divides, and so few that ranks have none.
            let rows = if (n + w) % 3 == 0 { 11 } else { 300 };
            let net = ORDERINGS[(n + w) as usize % 2];
            let reduction =
                match source.contains("gemm") && source.contains("reduce") && (n + w) % 4 == 0 {
                    true => Reduction::AfterLastWave,
                    false => Reduction::DedicatedSms,
                };
            let config = config(*world, net, reduction);
            right(source, rows, &config, Schedule::Random, n * 100 + w);
        }
    }
}

#[test]
fn every_schedule() {
    for (n, source) in (0..).zip(PIPELINES) {
        for net in ORDERINGS {
            let config = config((2, 2), net, Reduction::DedicatedSms);
            for schedule in Schedule::all(4) {
                right(source, 150, &config, schedule, n);
            }
        }
    }
}

#[test]
fn rows_of_a_launch() {
    let source = "fn f<M: dyn <= 300>(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
                      gather(x) -> gemm(w) -> gelu -> gemm(v) -> all_reduce
                  }";
    for net in ORDERINGS {
        for rows in [300, 7] {
            let config = config((2, 2), net, Reduction::DedicatedSms);
            right(source, rows, &config, Schedule::Srd, rows);
        }
    }
}
