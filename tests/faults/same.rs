//! A process per GPU gives the bits that one process gives, whatever the timing.

use crate::children::{Children, say, world as connect};
use crate::pipelines::PIPELINES;
use crate::rig::{Case, ENGINE, GATHER, Rig, compile, compile_wide, options};
use crate::{Watchdog, alone, worlds};
use mk::abi::KernelSource;
use mk::runtime::{InstanceOptions, World};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CASES: &[Case] = &[
    GATHER,
    Case { size: (777, 264, 333), ..GATHER },
    ENGINE,
    Case { size: (777, 264, 333), ..ENGINE },
    Case { pipeline: "gemm(a, b) -> reduce_scatter", ..GATHER },
    Case { pipeline: "gemm(a, b) -> reduce_scatter", size: (777, 264, 333), ..GATHER },
    Case { pipeline: "gemm(a, b) -> all_reduce", size: (1000, 264, 520), ..GATHER },
    Case {
        pipeline: "gather(a) -> gemm(b) -> gelu -> gemm(d) -> reduce_scatter",
        size: (1000, 264, 520),
        ..GATHER
    },
];
const LAUNCHES: u64 = 10;
const REPLAYS: u64 = 100;

/// Kernels of all cases: those above, then the wide ones.
fn sources(ranks: u32) -> impl Iterator<Item = KernelSource> {
    let wide = PIPELINES.iter().map(move |w| compile_wide(w, ranks));
    CASES.iter().map(move |case| compile(case, ranks)).chain(wide)
}

/// Fresh inputs at each launch; then with delays inside the kernel; then a graph, replayed.
fn play(world: &World, source: KernelSource, seed: u32, mut told: impl FnMut(u64, u32, u64)) {
    let chaos = InstanceOptions {
        chaos_seed: seed,
        chaos_max: Duration::from_micros(if seed == 0 { 0 } else { 100 }),
        ..options()
    };
    let mut rig = Rig::with(world, source, &chaos).expect("binds");
    for epoch in 1..=LAUNCHES {
        for (rank, hash) in rig.step(epoch).expect("runs") {
            told(epoch, rank, hash);
        }
    }
    let mut graphs = rig.capture().expect("captures");
    let refs = rig.refs();
    for epoch in LAUNCHES + 1..=LAUNCHES + REPLAYS {
        rig.refill(epoch).expect("fills");
        for (graph, stream) in graphs.iter_mut().zip(&refs) {
            graph.launch(*stream).expect("replays");
        }
        rig.wait().expect("ends");
        if epoch % 5 == 0 {
            for (rank, hash) in rig.hashes().expect("downloads") {
                told(epoch, rank, hash);
            }
        }
    }
}

pub fn child(_rank: u32, size: u32) {
    let world = connect();
    for (i, source) in sources(size).enumerate() {
        for seed in [0, 7] {
            play(&world, source.clone(), seed, |epoch, rank, hash| {
                say(format!("HASH {i} {epoch} {rank} {hash:x}"));
            });
        }
    }
}

/// What one process computes, by case, epoch and rank.
fn one_process(world: &World, seed: u32) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (i, source) in sources(world.size()).enumerate() {
        play(world, source, seed, |epoch, rank, hash| {
            out.insert(format!("{i} {epoch} {rank}"), format!("{hash:x}"));
        });
    }
    out
}

#[test]
fn processes_give_the_bits_of_one_process() {
    let _alone = alone();
    for world in worlds("processes_give_the_bits_of_one_process") {
        let size = world.size();
        let what = "processes_give_the_bits_of_one_process";
        let _watchdog = Watchdog::new(what, Duration::from_secs(200));
        let begin = Instant::now();
        let expected = one_process(&world, 0);
        // From run to run, and with delays, too.
        assert!(one_process(&world, 3) == expected, "one process on {size} GPUs, run again");
        drop(world);
        let local = begin.elapsed();
        let said = Children::start("same", 0..size, size).finish("HASH ", Duration::from_secs(100));
        let mut seen = 0;
        for (_, line) in &said {
            let (key, hash) = line.rsplit_once(' ').expect("a hash");
            assert_eq!(
                expected.get(key).map(String::as_str),
                Some(hash),
                "case, epoch, rank: {key}"
            );
            seen += 1;
        }
        // Without delays and with them.
        assert_eq!(seen, 2 * expected.len());
        println!(
            "ok {} cases on {size} processes: {seen} results bitwise equal to one process's ({local:.1?}, then {:.1?})",
            CASES.len() + PIPELINES.len(),
            begin.elapsed() - local
        );
    }
}
