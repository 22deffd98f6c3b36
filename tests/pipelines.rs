//! Pipelines on the CPU executor against the dense reference: what the language says is what the plans compute.

#[path = "../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use drawn::some;
use mk::{Program, passes::lower, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use std::collections::BTreeMap;

/// Small tiles and chunks, so that small shapes have several of each kind, where the pipeline has any.
fn config(ranks: u32, source: &str) -> Config {
    let mut config = Config { ranks, ..Config::default() };
    if source.contains("gemm") {
        config.block = [128, 128, 64];
    }
    // A consumer has whole blocks of gates and ups.
    if source.contains("swiglu") && source.contains("quantize") {
        config.block = [128, 256, 64];
    }
    if source.contains("gather") {
        config.chunk_bytes = 16 * 1024;
    }
    config
}

/// Sizes that are small enough for a reference in f64: a quarter of the case's, ragged as they were.
fn small(shape: &[u64]) -> Vec<u64> {
    shape.iter().map(|n| if *n > 16 { n.div_ceil(4) } else { *n }).collect()
}

#[test]
fn every_case_computes_what_it_says() {
    some(common::CASES, 12).for_each(|case| check(case, |_| ()));
}

#[test]
fn every_way_of_lowering_computes_the_same() {
    some(common::VARIANTS, 12).for_each(|v| check(&v.case, v.set));
}

/// Rows and columns that end anywhere in tiles of three warpgroups, one step and more than there are stages; operands that lie either way.
#[test]
fn three_warpgroups_compute_what_two_do() {
    const WAYS: &[&str] = &[
        "fn f(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }",
        "fn f(a: f16[K, M], b: f16[N, K], c: f16[N]) { gemm(a.t, b.t) -> bias(c) -> gelu }",
        "fn f(a: bf16[M, K], b: bf16[N, K], y: bf16[M, N]) { gemm(a, b.t) -> silu -> add(y) }",
    ];
    for source in some(WAYS, 3) {
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
        for m in [1, 65, 130, 193, 385] {
            for (k, n) in [(40, 8), (320, 200), (136, 584)] {
                let dims = [("M", m), ("K", k), ("N", n)].map(|(name, n)| (name.to_string(), n));
                let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
                let config = Config { block: [192, 192, 64], ..Config::default() };
                let what = format!("{source} of {m} x {k} x {n}");
                let plan =
                    lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{what}: {e}"));
                let case = Case { program: &program, bound: &bound, ranks: 1 };
                let run = run_on_cpu(case, &plan, &CpuOptions { seed: 5, ..CpuOptions::default() });
                for judged in run.unwrap_or_else(|e| panic!("{what}: {e}")).judged.iter().flatten()
                {
                    assert!(judged.passes(), "{what}: {judged}");
                }
            }
        }
    }
}

fn check((name, source, ranks, shapes): &common::Case, set: fn(&mut Config)) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{name}: {e}"));
    // Rows that are normalised are multiples of 16 bytes; four ranks do not cut blocks.
    let whole = match () {
        () if source.contains("rmsnorm") => 8,
        // Whole heads on each rank.
        () if source.contains("rope") => 128,
        () if source.contains("scaled(128, 128)") => 512,
        () => 1,
    };
    let small = |s: &[u64]| small(s).iter().map(|n| n.next_multiple_of(whole)).collect::<Vec<_>>();
    let shapes: BTreeMap<_, _> = shapes.iter().map(|(n, s)| (n.to_string(), small(s))).collect();
    for m in [None, Some(1), Some(200), Some(403)] {
        let runtime = program.symbols().iter().any(|s| s.name == "M") && source.contains("dyn");
        let dims = match m {
            Some(_) if !runtime => continue,
            Some(m) => BTreeMap::from([("M".to_string(), m)]),
            None if runtime => BTreeMap::from([("M".to_string(), 500)]),
            None => BTreeMap::new(),
        };
        let bound = program.bind(&dims, &shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut config = config(*ranks, source);
        set(&mut config);
        let plan = lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
        let case = Case { program: &program, bound: &bound, ranks: *ranks as usize };
        for schedule in [Schedule::Random, Schedule::Reversed] {
            let options = CpuOptions { schedule, seed: 5, launches: 2, ..CpuOptions::default() };
            let run = run_on_cpu(case, &plan, &options)
                .unwrap_or_else(|e| panic!("{name} at {m:?}, {schedule}: {e}"));
            for judged in run.judged.iter().flatten() {
                assert!(judged.passes(), "{name} at {m:?}, {schedule}: {judged}");
            }
        }
    }
}
