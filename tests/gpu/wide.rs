//! Pipelines beyond one chain of bf16: f16, f32 results, gates, transposed operands, several results, rows that come with
//! each launch. Judged by the harness: fp32 on the GPUs, some rows in f64 on the host.

use crate::{
    common::{VARIANTS, Variant},
    pipelines::{PIPELINES, Wide},
    scenario::config_for,
    worlds, worlds_of_several,
};
use mk::{
    Bound, Program,
    abi::KernelSource,
    emit,
    passes::{self},
    runtime::{
        InstanceOptions, World,
        jit::{self, JitOptions},
    },
    settings::Config,
};
use mk_harness::{Case, gpu::Session};
use std::{collections::BTreeMap, time::Duration};

fn options() -> InstanceOptions {
    InstanceOptions {
        poison: Some(0xFF),
        wait_limit: Duration::from_secs(10),
        ..InstanceOptions::default()
    }
}

fn bind(program: &Program, dims: &[(&str, u64)]) -> Bound {
    let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{}: {e}", program.name()))
}

fn compile(program: &Program, bound: &Bound, config: &Config) -> KernelSource {
    let (plan, _) = passes::compile(program, bound, config)
        .unwrap_or_else(|e| panic!("{}: {e}", program.name()));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", program.name()))
}

/// Launches with fresh inputs; the first is also compared in f64.
fn launches(session: &mut Session<'_>, what: &str, range: std::ops::RangeInclusive<u64>) -> f64 {
    let tolerance = session.tolerance().unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut worst = 0.0f64;
    for launch in range.clone() {
        session.fill(launch).unwrap_or_else(|e| panic!("{what}, launch {launch}: {e}"));
        session.launch().unwrap_or_else(|e| panic!("{what}, launch {launch}: {e}"));
        let norms = session.norms().unwrap_or_else(|e| panic!("{what}: {e}"));
        for (rank, norms) in norms.iter().enumerate() {
            assert!(tolerance.accepts(norms), "{what}, launch {launch}, rank {rank}: {norms:?}");
            worst = worst.max(norms.global);
        }
        if launch == *range.start() {
            let rows = session.sampled_rows(launch, 5).unwrap_or_else(|e| panic!("{what}: {e}"));
            for (rank, rows) in rows.iter().enumerate() {
                assert!(rows.passes(), "{what}, rank {rank}: sampled rows: {rows}");
            }
        }
    }
    worst
}

fn check(wide: &Wide, world: &World, count: u64, options: &InstanceOptions, replays: u64) {
    let program = Program::parse(wide.0).unwrap_or_else(|e| panic!("{e}"));
    let bound = bind(&program, wide.1);
    let what = format!("{} {:?} on {} ranks", program.name(), wide.1, world.size());
    let source = compile(&program, &bound, &config_for(world, &Config::default()));
    judge(&what, &program, &bound, &source, world, count, options, replays);
}

#[expect(clippy::too_many_arguments, reason = "each is one independent fact")]
fn judge(
    what: &str,
    program: &Program,
    bound: &Bound,
    source: &KernelSource,
    world: &World,
    count: u64,
    options: &InstanceOptions,
    replays: u64,
) {
    let compiled =
        jit::compile(source, &JitOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let case = Case { program, bound, ranks: world.size() as usize };
    let mut session = Session::bind(world, case, source, &compiled, options, 11)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut worst = launches(&mut session, what, 1..=count);
    if replays > 0 {
        session.capture().unwrap_or_else(|e| panic!("{what}: {e}"));
        worst = worst.max(launches(&mut session, what, count + 1..=count + replays));
    }
    println!("ok {what}: {count} launches, {replays} replays, error {worst:.2e}");
}

/// Every leaf and every way through it, on few tiles.
const SMALL: &[Wide] = &[
    (
        "fn tma(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1), c: bf16[N] @ shard(0)) {
             gather(a) -> gemm(b) -> bias(c) -> gelu
         }",
        &[("M", 200), ("K", 128), ("N", 512)],
    ),
    (
        "fn direct(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1), y: bf16[M, N] @ shard(1)) {
             gather(a) -> gemm(b) -> mul(y) -> silu
         }",
        &[("M", 150), ("K", 65), ("N", 131)],
    ),
    ("fn bulk(a: bf16[M, K] @ shard(0)) { gather(a) }", &[("M", 300), ("K", 128)]),
    ("fn rows(a: f16[M, K] @ shard(0)) { gather(a) }", &[("M", 100), ("K", 33)]),
    (
        "fn scattered(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
        &[("M", 200), ("K", 128), ("N", 264)],
    ),
    (
        "fn summed(a: f16[M, K] @ shard(1), b: f16[K, N] @ shard(0)) { gemm(a, b) -> cast(f32) -> all_reduce }",
        &[("M", 130), ("K", 128), ("N", 67)],
    ),
    (
        "fn chain(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[K, F] @ shard(1)) {
             let whole = gather(x);
             (whole -> gemm(w1) -> swiglu -> gemm(w2.t) -> reduce_scatter, whole)
         }",
        &[("M", 200), ("K", 128), ("F", 256)],
    ),
    (
        "fn gradient(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> reduce_scatter }",
        &[("M", 200), ("K", 132), ("N", 256)],
    ),
    (
        "fn rows_at_launch<M: dyn <= 512>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) {
             gather(a) -> gemm(b)
         }",
        &[("M", 70), ("K", 128), ("N", 512)],
    ),
];

fn few_rows(v: &&Variant) -> bool {
    ["rows64", "by_columns", "parts"].iter().any(|few| v.case.0.starts_with(few))
}

#[test]
fn ways_of_lowering() {
    ways("ways_of_lowering", |v| !few_rows(v));
}

#[test]
fn ways_of_lowering_few_rows() {
    ways("ways_of_lowering_few_rows", few_rows);
}

/// Other than the default ways of lowering: plainly, replayed, and with agents that sleep. Those whose names begin as `MK_GPU_WAYS`
/// says, as in `ring,lent`, if it is set.
fn ways(test: &str, of: fn(&&Variant) -> bool) {
    let named = std::env::var("MK_GPU_WAYS").unwrap_or_default();
    let wanted = |v: &&Variant| named.split(',').any(|start| v.case.0.starts_with(start));
    if !named.is_empty() {
        println!("{test}: only {named} (MK_GPU_WAYS)");
    }
    for world in worlds(test) {
        for v in VARIANTS.iter().filter(of).filter(wanted) {
            let (name, text, _, shapes) = v.case;
            let program = Program::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            let runtime = text.contains("dyn").then(|| ("M".to_string(), 403));
            let shapes: BTreeMap<_, _> =
                shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
            let bound = program
                .bind(&runtime.into_iter().collect(), &shapes)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut config = config_for(&world, &Config::default());
            (v.set)(&mut config);
            let source = compile(&program, &bound, &config);
            let what = format!("{name} on {} ranks", world.size());
            judge(&what, &program, &bound, &source, &world, 20, &options(), 100);
            let sleepy = InstanceOptions {
                chaos_seed: 9,
                chaos_max: Duration::from_micros(100),
                ..options()
            };
            judge(&what, &program, &bound, &source, &world, 5, &sleepy, 0);
        }
    }
}

/// Needs no GPU: what a machine without one can tell is told there.
#[test]
fn wide_pipelines_have_kernels_for_every_world() {
    for ranks in [1, 2, 3, 4, 8] {
        for (text, dims) in PIPELINES.iter().chain(SMALL) {
            let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
            compile(&program, &bind(&program, dims), &Config { ranks, ..Config::default() });
        }
    }
}

#[test]
fn wide_pipelines() {
    for world in worlds("wide_pipelines") {
        for wide in PIPELINES {
            check(wide, &world, 2, &options(), 0);
        }
    }
}

#[test]
fn wide_pipelines_delayed_and_repeated() {
    for world in worlds_of_several("wide_pipelines_delayed") {
        for (seed, wide) in PIPELINES.iter().enumerate() {
            let chaos = InstanceOptions {
                chaos_seed: seed as u32 + 1,
                chaos_max: Duration::from_micros(100),
                ..options()
            };
            check(wide, &world, 5, &chaos, 0);
        }
    }
    let Some(world) = worlds("wide_pipelines_repeated").pop() else { return };
    for wide in PIPELINES {
        check(wide, &world, 20, &options(), 100);
    }
}

/// One kernel for every number of rows, in any order of launches.
#[test]
fn rows_that_come_with_each_launch() {
    const CASES: &[Wide] = &[
        (
            "fn dyn_mlp<M: dyn <= 2048>(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1),
                     y: bf16[M, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
                 gather(x) -> gemm(w1) -> mul(y) -> gemm(w2) -> reduce_scatter
             }",
            &[("K", 512), ("F", 2048)],
        ),
        (
            "fn dyn_sums<M: dyn <= 1000>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
            &[("K", 264), ("N", 328)],
        ),
        (
            "fn dyn_gather<M: dyn <= 3000>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
                 let whole = gather(x);
                 (whole -> gemm(w), whole)
             }",
            &[("K", 520), ("N", 1024)],
        ),
    ];
    for world in worlds("rows_that_come_with_each_launch") {
        for (text, fixed) in CASES {
            let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
            let at = |m: u64| bind(&program, &[fixed, &[("M", m)][..]].concat());
            let sizes = [1000, 1, 999, 3, 128, 513, 64, 1000, 257, 2, 640];
            let bounds: Vec<_> = sizes.iter().map(|m| at(*m)).collect();
            let source = compile(&program, &bounds[0], &config_for(&world, &Config::default()));
            let compiled = jit::compile(&source, &JitOptions::default()).expect("compiles");
            let case = Case { program: &program, bound: &bounds[0], ranks: world.size() as usize };
            let mut session = Session::bind(&world, case, &source, &compiled, &options(), 3)
                .unwrap_or_else(|e| panic!("{}: {e}", program.name()));
            let mut worst = 0.0f64;
            for (n, (bound, m)) in bounds.iter().zip(sizes).enumerate() {
                session.rebind(bound).expect("allocates");
                let what = format!("{} with M = {m} on {} ranks", program.name(), world.size());
                let first = n as u64 * 10 + 1;
                worst = worst.max(launches(&mut session, &what, first..=first + 2));
            }
            println!(
                "ok {} on {} ranks: {} sizes, error {worst:.2e}",
                program.name(),
                world.size(),
                sizes.len()
            );
        }
    }
}

/// What a sanitizer can run in minutes (docs/reliability.md).
#[test]
fn every_leaf_once() {
    for world in worlds("every_leaf_once").into_iter().take(2) {
        // A sanitizer slows kernels down a thousand times.
        let patient = InstanceOptions { wait_limit: Duration::from_secs(300), ..options() };
        for small in SMALL {
            check(small, &world, 1, &patient, 0);
        }
    }
}
