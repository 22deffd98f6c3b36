//! Pipelines beyond one chain of bf16: f16, f32 results, gates, transposed operands, several results, rows that come with
//! each launch. Judged by the harness: fp32 on the GPUs, some rows in f64 on the host.

use crate::{
    common::{VARIANTS, Variant},
    pipelines::{PIPELINES, Wide},
    rig::{alone, in_parallel},
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
        jit::{self, Compiled, JitOptions},
    },
    settings::{Config, Gather},
};
use mk_harness::{Case, gpu::Session};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

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

/// A pipeline of certain sizes, compiled for a world.
struct Kernel {
    what: String,
    program: Program,
    bound: Bound,
    source: KernelSource,
    compiled: Compiled,
}

fn source(program: &Program, bound: &Bound, config: &Config) -> KernelSource {
    let (plan, _) = passes::compile(program, bound, config)
        .unwrap_or_else(|e| panic!("{}: {e}", program.name()));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", program.name()))
}

impl Kernel {
    fn new(what: String, program: Program, bound: Bound, config: &Config) -> Kernel {
        let source = source(&program, &bound, config);
        let compiled =
            jit::compile(&source, &JitOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        Kernel { what, program, bound, source, compiled }
    }

    fn wide(wide: &Wide, world: &World) -> Kernel {
        let program = Program::parse(wide.0).unwrap_or_else(|e| panic!("{e}"));
        let bound = bind(&program, wide.1);
        let what = format!("{} {:?} on {} ranks", program.name(), wide.1, world.size());
        Kernel::new(what, program, bound, &config_for(world, &Config::default()))
    }

    fn variant(v: &Variant, world: &World) -> Kernel {
        let (name, text, _, shapes) = v.case;
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let runtime = text.contains("dyn").then(|| ("M".to_string(), 403));
        let shapes = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
        let bound = program
            .bind(&runtime.into_iter().collect(), &shapes)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut config = config_for(world, &Config::default());
        (v.set)(&mut config);
        Kernel::new(format!("{name} on {} ranks", world.size()), program, bound, &config)
    }

    fn bind<'k>(&'k self, world: &World, options: &InstanceOptions, seed: u64) -> Session<'k> {
        let ranks = world.size() as usize;
        let case = Case { program: &self.program, bound: &self.bound, ranks };
        Session::bind(world, case, &self.source, &self.compiled, options, seed)
            .unwrap_or_else(|e| panic!("{}: {e}", self.what))
    }

    fn judge(&self, world: &World, count: u64, options: &InstanceOptions, replays: u64) {
        let what = &self.what;
        let began = Instant::now();
        let mut session = self.bind(world, options, 11);
        let mut worst = launches(&mut session, what, 1..=count);
        if replays > 0 {
            session.capture().unwrap_or_else(|e| panic!("{what}: {e}"));
            worst = worst.max(launches(&mut session, what, count + 1..=count + replays));
        }
        println!(
            "ok {what}: {count} launches, {replays} replays in {:.1?}, error {worst:.2e}",
            began.elapsed()
        );
    }
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

/// Products alone, of which CTAs share tiles or load together.
const ALONE: &[&str] = &[
    "fn plain(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }",
    "fn read(a: bf16[M, K], b: bf16[K, N], c: bf16[N], y: bf16[M, N]) { gemm(a, b) -> bias(c) -> gelu -> add(y) }",
    "fn gated(a: f16[M, K], b: f16[K, 2, N]) { gemm(a, b) -> swiglu }",
    "fn transposed(a: bf16[K, M], b: bf16[N, K]) { gemm(a.t, b.t) }",
    "fn wide(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) -> cast(f32) }",
];

/// With one tile for each cluster and with several; of rows and columns that end in a tile, in a cluster's first tile, and beside lines.
#[test]
fn products_in_clusters() {
    let _alone = alone();
    let Some(world) = worlds("products_in_clusters").into_iter().next() else { return };
    let shared = ["cluster=2", "cluster=3", "cluster=8"].map(|c| format!("block=128x128x64 {c}"));
    let together = ["2x1", "1x2", "2x2"].map(|m| format!("multicast={m}"));
    let parts = ["2 multicast=2x1", "3 multicast=1x2", "2 multicast=2x2", "4 multicast=2x1"];
    let parts = parts.map(|way| format!("block=128x128x64 cluster={way}"));
    let small = together.clone().map(|m| format!("block=128x128x64 {m}"));
    let ways: Vec<_> = shared.into_iter().chain(together).chain(small).chain(parts).collect();
    // Operands swapped, of one tile for each CTA and several.
    let swapped = [
        "block=144x128x64",
        "block=240x128x64",
        "block=160x256x64",
        "block=80x256x64 multicast=2x1",
        "block=112x128x64 multicast=2x2",
        "block=112x256x64 cluster=3",
        "block=48x128x64 cluster=2 multicast=1x2",
        // Of three warpgroups, and of one.
        "block=176x192x64",
        "block=144x192x64 multicast=2x2",
        "block=96x192x64 multicast=1x2",
        "block=64x64x64",
        "block=16x64x64 cluster=4",
        "block=144x64x64 multicast=2x2",
        "block=240x64x64 cluster=2 multicast=2x1",
    ];
    let swapped = swapped.map(String::from).to_vec();
    let gated = swapped[2..5].iter().filter(|way| !way.contains("160x")).cloned();
    let gated: Vec<_> =
        gated.map(|way| way.replace("x128x", "x256x")).chain(["block=48x256x64".into()]).collect();
    let fits = |way: &&String| !way.contains("160x256") && !way.contains("176x192");
    let chained: Vec<_> = swapped.iter().filter(fits).cloned().collect();
    let by_rows = "fn by_rows(a: f16[M, K], b: f16[N, K]) { gemm(a, b.t) }";
    let swapped =
        [(ALONE[0], &swapped), (by_rows, &swapped), (ALONE[1], &chained), (ALONE[2], &gated)];
    // Three warpgroups, which borrow all of a stage, or have one panel each, or three.
    let others = ["", " stages=3", " tile_scheduler=dynamic", " compute_sms=3"].map(String::from);
    let loads = ["2x1", "1x2", "2x2"].map(|m| format!(" multicast={m}"));
    let three = others.iter().chain(&loads).map(|way| format!("block=192x192x64{way}"));
    let three: Vec<_> = three.collect();
    let of_three = [ALONE[0], by_rows, ALONE[1], ALONE[3], ALONE[4]].map(|text| (text, &three));
    let mut cases = Vec::new();
    let all = ALONE.iter().map(|text| (*text, &ways)).chain(swapped).chain(of_three);
    for (text, ways) in all {
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
        for [m, k, n] in [[72, 1032, 264], [304, 640, 1000], [4104, 584, 3000]] {
            let bound = bind(&program, &[("M", m), ("K", k), ("N", n)]);
            let case = |way| (program.clone(), bound.clone(), way, [m, k, n]);
            cases.extend(ways.iter().map(case));
        }
    }
    let kernels = in_parallel(&cases, |(program, bound, way, shape)| {
        let mut config = config_for(&world, &Config::default());
        mk::settings::read(&mut config, way).unwrap_or_else(|e| panic!("{e}"));
        let what = format!("{} {shape:?} {way}", program.name());
        Kernel::new(what, program.clone(), bound.clone(), &config)
    });
    kernels.iter().for_each(|k| k.judge(&world, 2, &options(), 0));
}

/// One CTA of a cluster finishes all that few rows have, over five waves and more: the others have nothing to wait for
/// (docs/decisions/clusters.md).
#[test]
fn few_rows_in_several_waves_of_clusters() {
    let _alone = alone();
    let name = "few_rows_in_several_waves_of_clusters";
    let Some(world) = worlds(name).into_iter().next() else { return };
    let ways = ["16x128x64 cluster=4", "16x64x64 cluster=4", "48x128x64 cluster=2"]
        .map(|way| format!("block={way} compute_sms=16"));
    let ways = ways.into_iter().chain(["block=16x64x64 cluster=2 multicast=1x2".into()]);
    let program = Program::parse(ALONE[0]).unwrap_or_else(|e| panic!("{e}"));
    for way in ways {
        for [m, k, n] in [[2, 4096, 10_368], [10, 10_816, 4032]] {
            let bound = bind(&program, &[("M", m), ("K", k), ("N", n)]);
            let mut config = config_for(&world, &Config::default());
            mk::settings::read(&mut config, &way).unwrap_or_else(|e| panic!("{e}"));
            let what = format!("{} {:?} {way}", program.name(), [m, k, n]);
            let kernel = Kernel::new(what, program.clone(), bound, &config);
            kernel.judge(&world, 5, &options(), 0);
        }
    }
}

/// Rows of B that begin at any element, in tiles that shift them: K that ends before eight rows, in a step and behind
/// several; columns that end beside a tile; rows of A that are repacked beside clusters.
#[test]
fn few_rows_by_odd_columns() {
    let _alone = alone();
    let Some(world) = worlds("few_rows_by_odd_columns").into_iter().next() else { return };
    let ways =
        ["16x64x64", "48x128x64", "144x192x64", "16x64x64 cluster=4", "112x128x64 cluster=2"];
    let texts = [
        ALONE[0],
        "fn f(a: f16[M, K], b: f16[K, N], c: f16[N], y: f16[M, N]) { gemm(a, b) -> bias(c) -> gelu -> add(y) }",
    ];
    let shapes =
        [[1, 545, 6900], [7, 71, 131], [16, 4096, 4095], [47, 1033, 1218], [128, 8825, 577]];
    let mut cases = Vec::new();
    for text in texts {
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
        for [m, k, n] in shapes {
            let bound = bind(&program, &[("M", m), ("K", k), ("N", n)]);
            let fits = |way: &&&str| k >= 256 || !way.contains("cluster");
            cases.extend(
                ways.iter()
                    .filter(fits)
                    .map(|way| (program.clone(), bound.clone(), *way, [m, k, n])),
            );
        }
    }
    let kernels = in_parallel(&cases, |(program, bound, way, shape)| {
        let mut config = config_for(&world, &Config::default());
        let way = format!("block={way}");
        mk::settings::read(&mut config, &way).unwrap_or_else(|e| panic!("{e}"));
        Kernel::new(
            format!("{} {shape:?} {way}", program.name()),
            program.clone(),
            bound.clone(),
            &config,
        )
    });
    kernels.iter().for_each(|k| k.judge(&world, 3, &options(), 0));
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
    let _alone = alone();
    ways("ways_of_lowering", |v| !few_rows(v));
}

#[test]
fn ways_of_lowering_few_rows() {
    let _alone = alone();
    ways("ways_of_lowering_few_rows", few_rows);
}

/// Strategies other than the defaults: plainly, replayed, and with agents that sleep. Those whose names begin as `MK_GPU_WAYS`
/// says, as in `ring,lent`, if it is set.
fn ways(test: &str, of: fn(&&Variant) -> bool) {
    let named = std::env::var("MK_GPU_WAYS").unwrap_or_default();
    let wanted = |v: &&Variant| named.split(',').any(|start| v.case.0.starts_with(start));
    if !named.is_empty() {
        println!("{test}: only {named} (MK_GPU_WAYS)");
    }
    let variants: Vec<_> = VARIANTS.iter().filter(of).filter(wanted).collect();
    for world in worlds(test) {
        // A copy engine stands still while kernels that wait for it hold all of its GPU (docs/decisions/gathers.md).
        let able = |v: &Variant| !world.shares_gpus() || !uses_copy_engine(v);
        let variants: Vec<_> = variants.iter().copied().filter(|v| able(v)).collect();
        let began = Instant::now();
        let kernels = in_parallel(&variants, |v| Kernel::variant(v, &world));
        println!("{test}: {} kernels in {:.1?}", kernels.len(), began.elapsed());
        for kernel in kernels {
            kernel.judge(&world, 20, &options(), 100);
            let sleepy = InstanceOptions {
                chaos_seed: 9,
                chaos_max: Duration::from_micros(100),
                ..options()
            };
            kernel.judge(&world, 5, &sleepy, 0);
        }
    }
}

fn uses_copy_engine(v: &Variant) -> bool {
    let mut config = Config::default();
    (v.set)(&mut config);
    matches!(config.gather, Gather::CopyEngine { .. })
}

/// Needs no GPU: what a machine without one can tell is told there.
#[test]
fn wide_pipelines_have_kernels_for_every_world() {
    for ranks in [1, 2, 3, 4, 8] {
        for (text, dims) in PIPELINES.iter().chain(SMALL) {
            let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
            source(&program, &bind(&program, dims), &Config { ranks, ..Config::default() });
        }
    }
}

#[test]
fn wide_pipelines() {
    let _alone = alone();
    for world in worlds("wide_pipelines") {
        for kernel in in_parallel(PIPELINES, |wide| Kernel::wide(wide, &world)) {
            kernel.judge(&world, 2, &options(), 0);
        }
    }
}

#[test]
fn wide_pipelines_delayed_and_repeated() {
    let _alone = alone();
    for world in worlds_of_several("wide_pipelines_delayed") {
        let kernels = in_parallel(PIPELINES, |wide| Kernel::wide(wide, &world));
        for (seed, kernel) in kernels.iter().enumerate() {
            let chaos = InstanceOptions {
                chaos_seed: seed as u32 + 1,
                chaos_max: Duration::from_micros(100),
                ..options()
            };
            kernel.judge(&world, 5, &chaos, 0);
        }
    }
    let Some(world) = worlds("wide_pipelines_repeated").pop() else { return };
    for kernel in in_parallel(PIPELINES, |wide| Kernel::wide(wide, &world)) {
        kernel.judge(&world, 20, &options(), 100);
    }
}

/// One kernel for every number of rows, in any order of launches.
#[test]
fn rows_that_come_with_each_launch() {
    let _alone = alone();
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
        (
            "fn dyn_depth<M: dyn <= 3000>(x: bf16[M, K], dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1)) {
                 let dw = gemm(x.t, dy);
                 let dx = gemm(dy, w.t) -> reduce_scatter;
                 (dw, dx)
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
            let config = config_for(&world, &Config::default());
            let name = program.name().to_string();
            let kernel = Kernel::new(name.clone(), program, bounds[0].clone(), &config);
            let mut session = kernel.bind(&world, &options(), 3);
            let mut worst = 0.0f64;
            for (n, (bound, m)) in bounds.iter().zip(sizes).enumerate() {
                session.rebind(bound).expect("allocates");
                let what = format!("{name} with M = {m} on {} ranks", world.size());
                let first = n as u64 * 10 + 1;
                worst = worst.max(launches(&mut session, &what, first..=first + 2));
            }
            let (ranks, sizes) = (world.size(), sizes.len());
            println!("ok {name} on {ranks} ranks: {sizes} sizes, error {worst:.2e}");
        }
    }
}

/// What a sanitizer can run in minutes (docs/reliability.md).
#[test]
fn every_leaf_once() {
    let _alone = alone();
    for world in worlds("every_leaf_once").into_iter().take(2) {
        // A sanitizer slows kernels down a thousand times.
        let patient = InstanceOptions { wait_limit: Duration::from_secs(300), ..options() };
        for kernel in in_parallel(SMALL, |small| Kernel::wide(small, &world)) {
            kernel.judge(&world, 1, &patient, 0);
        }
    }
}
