//! A process per GPU gives the bits that one process gives, whatever the timing.

use crate::children::{Children, say, world as connect};
use crate::rig::{Case, Rig, options};
use crate::{Watchdog, alone, world};
use mk::runtime::{InstanceOptions, World};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CASES: &[Case] = &[
    Case { pipeline: "gather(a) -> gemm(b)", size: (1024, 512, 1024), sms: &[] },
    Case { pipeline: "gather(a) -> gemm(b)", size: (777, 264, 333), sms: &[] },
    Case { pipeline: "gemm(a, b) -> reduce_scatter", size: (1024, 512, 1024), sms: &[] },
    Case { pipeline: "gemm(a, b) -> reduce_scatter", size: (777, 264, 333), sms: &[] },
    Case { pipeline: "gemm(a, b) -> all_reduce", size: (1000, 264, 520), sms: &[] },
    Case {
        pipeline: "gather(a) -> gemm(b) -> gelu -> gemm(d) -> reduce_scatter",
        size: (1000, 264, 520),
        sms: &[],
    },
];
const LAUNCHES: u64 = 10;
const REPLAYS: u64 = 100;

/// Fresh inputs at each launch; then with delays inside the kernel; then a graph, replayed.
fn play(world: &World, case: &Case, seed: u32, mut told: impl FnMut(u64, u32, u64)) {
    let chaos = InstanceOptions {
        chaos_seed: seed,
        chaos_max: Duration::from_micros(if seed == 0 { 0 } else { 100 }),
        ..options()
    };
    let mut rig = Rig::new(world, case, &chaos).expect("binds");
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

pub fn child(_rank: u32, _size: u32) {
    let world = connect();
    for (i, case) in CASES.iter().enumerate() {
        for seed in [0, 7] {
            play(&world, case, seed, |epoch, rank, hash| {
                say(format!("HASH {i} {epoch} {rank} {hash:x}"));
            });
        }
    }
}

#[test]
fn processes_give_the_bits_of_one_process() {
    let _alone = alone();
    let Some(world) = world("processes_give_the_bits_of_one_process") else { return };
    let _watchdog =
        Watchdog::new("processes_give_the_bits_of_one_process", Duration::from_secs(200));
    let begin = Instant::now();
    let mut expected = BTreeMap::new();
    for (i, case) in CASES.iter().enumerate() {
        play(&world, case, 0, |epoch, rank, hash| {
            expected.insert(format!("{i} {epoch} {rank}"), format!("{hash:x}"));
        });
    }
    let size = world.size();
    drop(world);
    let local = begin.elapsed();
    let said = Children::start("same", 0..size, size).finish("HASH ", Duration::from_secs(100));
    let mut seen = 0;
    for (_, line) in &said {
        let (key, hash) = line.rsplit_once(' ').expect("a hash");
        assert_eq!(expected.get(key).map(String::as_str), Some(hash), "case, epoch, rank: {key}");
        seen += 1;
    }
    // Without delays and with them.
    assert_eq!(seen, 2 * expected.len());
    println!(
        "ok {} cases on {size} processes: {seen} results bitwise equal to one process's ({local:.1?}, then {:.1?})",
        CASES.len(),
        begin.elapsed() - local
    );
}
