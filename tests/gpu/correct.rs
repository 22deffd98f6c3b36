//! The right answer: shapes, dtypes, epilogues, worlds, delays, repeated launches.

use crate::{
    rig::{alone, in_parallel},
    scenario::{Case, Kernel, Scenario, good},
    worlds, worlds_of_several,
};
use mk::{
    runtime::{Graph, InstanceOptions, World, bench::Delay, jit::JitOptions},
    settings::Config,
};
use std::time::Duration;

/// With every byte of workspace poisoned, so that nothing is right by luck.
fn poisoned() -> InstanceOptions {
    InstanceOptions {
        poison: Some(0xFF),
        wait_limit: Duration::from_secs(10),
        ..InstanceOptions::default()
    }
}

fn case(pipeline: &'static str, m: u64, k: u64, n: u64) -> Case {
    let shapes: &[(&str, &str, Vec<u64>)] = &[
        ("(a", "a", vec![m, k]),
        ("b)", "b", vec![k, n]),
        ("bias(c)", "c", vec![n]),
        ("mul(y)", "y", vec![m, n]),
        ("add(z)", "z", vec![m, n]),
        ("gemm(d)", "d", vec![n, k]),
        ("bias(e)", "e", vec![k]),
        ("(x)", "x", vec![m, n]),
    ];
    let used = shapes.iter().filter(|(text, ..)| pipeline.contains(text));
    Case {
        pipeline,
        shapes: used.map(|(_, name, shape)| (*name, shape.clone())).collect(),
        config: Config::default(),
    }
}

/// A dimension of an operand; 0 if the pipeline has none.
fn size(case: &Case, tensor: usize, dim: usize) -> u64 {
    case.shapes.get(tensor).and_then(|s| s.1.get(dim)).copied().unwrap_or(0)
}

/// Judges every launch of every case. Their kernels are compiled side by side.
fn check_all(cases: &[Case], world: &World, launches: u64, options: &InstanceOptions) {
    for (case, kernel) in cases.iter().zip(in_parallel(cases, |case| Kernel::new(case, world))) {
        let what = format!("{} {:?} on {} ranks", case.pipeline, case.shapes, world.size());
        let kernel = kernel.unwrap_or_else(|e| panic!("{what}: {e}"));
        check(&what, &kernel, world, launches, options);
    }
}

fn check(what: &str, kernel: &Kernel, world: &World, launches: u64, options: &InstanceOptions) {
    let (case, begin) = (&kernel.case, std::time::Instant::now());
    let mut s = Scenario::bind(kernel, world, options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut worst = (0.0f64, 0.0f64);
    for epoch in 1..=launches {
        let norm = s.step(epoch).unwrap_or_else(|e| panic!("{what}, launch {epoch}: {e}"));
        assert!(good(&norm), "{what}, launch {epoch}: {norm:?}");
        worst = (worst.0.max(norm.global), worst.1.max(norm.worst_tile));
        // On the host, so only once and where it takes no minutes.
        let (m, k, n) = (size(case, 0, 0), size(case, 0, 1), size(case, 1, 1));
        if epoch == 1 && k * n < 1 << 24 {
            let rows = s.sampled_rows(epoch).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(rows < 5e-3, "{what}: sampled rows of {m} differ from f64 by {rows:e}");
        }
    }
    println!(
        "ok {what}: {launches} launches, error {:.2e}, tile {:.2e}, {:.1?}",
        worst.0,
        worst.1,
        begin.elapsed()
    );
}

const PIPELINES: &[&str] =
    &["gather(a) -> gemm(b)", "gather(a) -> gemm(b) -> bias(c) -> gelu", "gemm(a, b)", "gather(a)"];

#[test]
fn aligned_and_ragged_shapes() {
    let _alone = alone();
    let shapes: &[(u64, u64, u64)] = &[
        (1024, 512, 1024),
        (4000, 1032, 3000),
        (4000, 1032, 3001),
        (4000, 1033, 3001),
        (129, 64, 257),
        (3, 8, 8),
        (3, 4096, 512),
        (1, 1, 1),
    ];
    for world in worlds("aligned_and_ragged_shapes") {
        let of = |pipeline| shapes.iter().map(move |(m, k, n)| case(pipeline, *m, *k, *n));
        let cases: Vec<_> = PIPELINES.iter().copied().flat_map(of).collect();
        check_all(&cases, &world, 3, &poisoned());
    }
}

#[test]
fn every_epilogue() {
    let _alone = alone();
    for world in worlds("every_epilogue") {
        let long = "gemm(a, b) -> mul(y) -> silu -> scale(0.5) -> add(z) -> relu";
        let short = "gather(a) -> gemm(b) -> bias(c) -> silu";
        let cases = [512, 333].map(|n| [case(long, 300, 256, n), case(short, 700, 128, n)]);
        check_all(cases.as_flattened(), &world, 2, &poisoned());
    }
}

/// Pipelines that end in a sum over ranks, and chains of products.
const SUMS: &[&str] = &[
    "gemm(a, b) -> reduce_scatter",
    "gemm(a, b) -> all_reduce",
    "gather(a) -> gemm(b) -> reduce_scatter",
    "gather(a) -> gemm(b) -> gelu -> gemm(d) -> reduce_scatter",
    "gather(a) -> gemm(b) -> bias(c) -> silu -> gemm(d) -> all_reduce",
    "gather(a) -> gemm(b) -> relu -> gemm(d)",
    "gemm(a, b) -> bias(c) -> gemm(d) -> bias(e)",
    "reduce_scatter(x)",
    "all_reduce(x)",
];

#[test]
fn sums_and_chains() {
    let _alone = alone();
    for world in worlds("sums_and_chains") {
        let shapes = [(1024, 512, 1024), (1000, 264, 520), (777, 264, 333), (5, 64, 64)];
        let of = |pipeline| shapes.iter().map(move |(m, k, n)| case(pipeline, *m, *k, *n));
        let cases: Vec<_> = SUMS.iter().copied().flat_map(of).collect();
        check_all(&cases, &world, 3, &poisoned());
    }
}

#[test]
fn sums_and_chains_repeatedly_and_delayed() {
    let _alone = alone();
    for world in worlds_of_several("sums_and_chains_repeatedly") {
        let cases: Vec<_> = SUMS.iter().map(|pipeline| case(pipeline, 1500, 256, 512)).collect();
        let kernels = in_parallel(&cases, |case| Kernel::new(case, &world));
        for (seed, kernel) in kernels.into_iter().enumerate() {
            let what = format!("{} on {} ranks", SUMS[seed], world.size());
            let kernel = kernel.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&what, &kernel, &world, 50, &poisoned());
            let chaos = InstanceOptions {
                chaos_seed: seed as u32 + 1,
                chaos_max: Duration::from_micros(100),
                ..poisoned()
            };
            check(&what, &kernel, &world, 10, &chaos);
        }
    }
}

#[test]
fn large_shapes() {
    let _alone = alone();
    let Some(world) = worlds("large_shapes").pop() else { return };
    let cases = [
        case(PIPELINES[0], 8192, 8192, 8192),
        case(PIPELINES[0], 16384, 16384, 4096 * u64::from(world.size())),
        case(PIPELINES[1], 8192, 8192, 8192),
        case(PIPELINES[3], 16384, 16384, 0),
    ];
    check_all(&cases, &world, 2, &poisoned());
}

#[test]
fn a_hundred_launches_with_changing_inputs() {
    let _alone = alone();
    for world in worlds("a_hundred_launches") {
        let cases = [case(PIPELINES[0], 2048, 1024, 2048), case(PIPELINES[0], 1000, 1032, 1000)];
        check_all(&cases, &world, 100, &poisoned());
    }
}

#[test]
fn delays_before_every_task() {
    let _alone = alone();
    for world in worlds("delays_before_every_task") {
        for seed in 1..=4 {
            let chaos = InstanceOptions {
                chaos_seed: seed,
                chaos_max: Duration::from_micros(50 * u64::from(seed)),
                ..poisoned()
            };
            let cases = [case(PIPELINES[0], 2000, 520, 1000), case(PIPELINES[3], 2000, 520, 0)];
            check_all(&cases, &world, 5, &chaos);
        }
    }
}

/// Each rank reaches each launch up to 2 ms after the others, in another order every time.
#[test]
fn ranks_that_enter_apart() {
    let _alone = alone();
    for world in worlds_of_several("ranks_that_enter_apart") {
        let delay = Delay::new(&world, &JitOptions::default()).expect("loads");
        for pipeline in [PIPELINES[0], PIPELINES[3], SUMS[0], SUMS[1]] {
            let case = case(pipeline, 2000, 520, 1000);
            let mut s = Scenario::new(&case, &world, &poisoned()).expect("binds");
            for epoch in 1..=30 {
                s.refill(epoch).expect("fills");
                for (rank, stream) in s.streams.iter().enumerate() {
                    let late = (epoch * 7919 + rank as u64 * 104_729) % 2003 * 1000;
                    delay.enqueue(rank, stream, late).expect("delays");
                }
                s.launch().expect("launches");
                s.instance.synchronize().expect("finishes");
                let norm = s.worst(epoch).expect("compares");
                assert!(
                    good(&norm),
                    "{pipeline} on {} ranks, launch {epoch}: {norm:?}",
                    world.size()
                );
            }
            println!("ok {pipeline} on {} ranks entering apart: 30 launches", world.size());
        }
    }
}

#[test]
fn every_split_gives_the_same_bits() {
    let _alone = alone();
    let Some(world) = worlds("every_split").pop() else { return };
    let mut first: Option<Vec<Vec<f32>>> = None;
    let budget = world.sm_budget(0);
    for comm in [1, 4, 16, 40].into_iter().filter(|comm| comm + 1 < budget) {
        let mut c = case(PIPELINES[1], 2048, 1024, 2048);
        if world.size() > 1 {
            c.config.intra_comm_sms = Some(comm);
        }
        let mut s = Scenario::new(&c, &world, &poisoned()).expect("binds");
        let norm = s.step(7).expect("runs");
        assert!(good(&norm), "{comm} CTAs: {norm:?}");
        let out: Vec<Vec<f32>> = s
            .tensors
            .iter()
            .map(|t| t.last().expect("a result").download_f32().expect("downloads"))
            .collect();
        assert!(
            first.get_or_insert_with(|| out.clone()) == &out,
            "{comm} communication CTAs change the result"
        );
    }
    println!("ok bitwise equal over splits");
}

#[test]
fn a_captured_launch_replays() {
    let _alone = alone();
    let Some(world) = worlds("a_captured_launch_replays").pop() else { return };
    let mut s =
        Scenario::new(&case(PIPELINES[0], 2048, 1024, 2048), &world, &poisoned()).expect("binds");
    s.step(1).expect("runs");
    let (refs, args) = (s.stream_refs(), s.args());
    let instance = &mut s.instance;
    let mut graphs =
        Graph::capture(&s.streams, || instance.launch(&refs, &args)).expect("captures");
    for epoch in 2..=100 {
        s.refill(epoch).expect("fills");
        for (graph, stream) in graphs.iter_mut().zip(&refs) {
            graph.launch(*stream).expect("replays");
        }
        // An instance knows its launches, and not replays.
        s.streams.iter().for_each(|stream| stream.synchronize().expect("finishes"));
        s.instance.check().expect("no fault");
        if epoch % 9 == 1 {
            let norm = s.worst(epoch).expect("compares");
            assert!(good(&norm), "replay {epoch}: {norm:?}");
        }
    }
    println!("ok 99 replays");
}
