//! How long the compiler takes on the CPU, stage by stage: `cargo bench --bench compiler`.
//!
//! Three pipelines at sizes of production on 8 ranks, the first two with 4096 tiles of 128 × 256 on every rank. *lower*
//! is text to plan, *verify* the proof, *emit* plan to CUDA text; NVRTC is not in it. For a layer of experts, *bind* is
//! all that comes before NVRTC: plan, proof by smaller plans, and evaluation beside the pipeline.

use criterion::{BenchmarkId, Criterion};
use mk::{Bound, Program, emit, passes, valid};
use std::{collections::BTreeMap, hint::black_box, time::Duration};

const RANKS: u32 = 8;

const MLP: &str = "pub fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
}";

/// A pipeline's name and text, and the global shapes of its parameters.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static [u64])]);

const CASES: &[Case] = &[
    ("gather-gemm", "gather(a) -> gemm(b)", &[("a", &[16384, 4096]), ("b", &[4096, 65536])]),
    (
        "gemm-reduce_scatter",
        "gemm(a, b) -> reduce_scatter",
        &[("a", &[16384, 8192]), ("b", &[8192, 8192])],
    ),
    ("mlp", MLP, &[("x", &[8192, 8192]), ("w", &[8192, 28672]), ("v", &[28672, 8192])]),
];

const EXPERTS: &str = "pub fn experts(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// 8192 tokens on each of 8 ranks, 8 of 128 experts each.
const OF_EXPERTS: [(&str, u64); 5] = [("T", 65536), ("K", 8), ("E", 128), ("H", 2048), ("I", 768)];

type Res<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Res<()> {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    for case in CASES {
        stages(&mut criterion, case)?;
    }
    bind(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

/// Plan and proof of a layer of experts.
fn bind(criterion: &mut Criterion) -> Res<()> {
    let config = mk::settings::Config { ranks: RANKS, ..mk::settings::Config::default() };
    let dims = OF_EXPERTS.map(|(name, size)| (name.to_string(), size)).into();
    let bind = || {
        let program = Program::parse(black_box(EXPERTS)).map_err(|e| e.to_string())?;
        let bound = program.bind(&dims, &BTreeMap::new()).map_err(|e| e.to_string())?;
        passes::compile(&program, &bound, &config).map_err(|e| e.to_string())
    };
    bind()?;
    let mut group = criterion.benchmark_group("compiler");
    group.measurement_time(Duration::from_secs(20));
    group.bench_function(BenchmarkId::new("bind", "experts"), |b| b.iter(bind));
    group.finish();
    Ok(())
}

fn stages(criterion: &mut Criterion, (name, text, shapes): &Case) -> Res<()> {
    let config = mk::settings::Config { ranks: RANKS, ..mk::settings::Config::default() };
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect();
    let (program, bound) = read(text, &shapes)?;
    let plan = passes::lower(&program, &bound, &config)?;
    // What is measured below succeeds.
    valid::verify(&plan)?;
    emit::emit(&plan)?;

    let mut group = criterion.benchmark_group("compiler");
    group.bench_function(BenchmarkId::new("lower", name), |b| {
        b.iter(|| {
            let (program, bound) = read(black_box(text), &shapes)?;
            Ok::<_, Box<dyn std::error::Error>>(passes::lower(&program, &bound, &config)?)
        })
    });
    group.bench_function(BenchmarkId::new("verify", name), |b| {
        b.iter(|| valid::verify(black_box(&plan)))
    });
    group.bench_function(BenchmarkId::new("emit", name), |b| {
        b.iter(|| emit::emit(black_box(&plan)))
    });
    group.finish();
    Ok(())
}

fn read(text: &str, shapes: &BTreeMap<String, Vec<u64>>) -> Res<(Program, Bound)> {
    let program = Program::parse(text).map_err(|e| e.to_string())?;
    let bound = program.bind(&BTreeMap::new(), shapes).map_err(|e| e.to_string())?;
    Ok((program, bound))
}
