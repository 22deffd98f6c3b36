//! Several instances, worlds and threads in one process.

use crate::rig::{Case, GATHER, Rig, options};
use crate::{Watchdog, alone, world};
use mk::runtime::{Error, InstanceOptions, World};
use std::time::Duration;

const HALF: Case = Case { sms: Some([58, 8]), ..GATHER };

#[test]
fn plans_over_the_budget_are_refused_at_bind() {
    let _alone = alone();
    let Some(world) = world("plans_over_the_budget") else { return };
    let _watchdog = Watchdog::new("plans_over_the_budget", Duration::from_secs(60));
    let beside = InstanceOptions { overlap: true, ..options() };
    let mut first = Rig::new(&world, &HALF, &beside).expect("fits");
    let mut second = Rig::new(&world, &HALF, &beside).expect("fits beside it");
    let refused = Rig::new(&world, &HALF, &beside).err().expect("no SM is left");
    println!("  {refused}");
    assert!(matches!(refused, Error::SmBudget { wants: 66, held: 132, sms: 132, .. }), "{refused}");
    // Another world of this process has the same SMs.
    let other = World::local(world.size() as usize).expect("a world");
    let elsewhere = Rig::new(&other, &HALF, &beside).err().expect("no SM is left");
    assert!(matches!(elsewhere, Error::SmBudget { .. }), "{elsewhere}");
    // One that does not overlap takes turns with both.
    let mut whole = Rig::new(&world, &GATHER, &options()).expect("takes turns");
    let alone: Vec<_> =
        [&mut first, &mut second, &mut whole].map(|r| r.step(1).expect("runs")).into();
    for _ in 0..20 {
        for rig in [&mut first, &mut whole, &mut second] {
            rig.refill(1).expect("fills");
        }
        for turn in [0, 1, 2, 1, 0] {
            let rig = [&mut first, &mut second, &mut whole].into_iter().nth(turn);
            rig.expect("three").launch().expect("launches");
        }
        for (rig, expected) in [&mut first, &mut second, &mut whole].into_iter().zip(&alone) {
            rig.instance.synchronize().expect("ends");
            assert_eq!(&rig.hashes().expect("downloads"), expected);
        }
    }
    drop(second);
    Rig::new(&world, &HALF, &beside).expect("there is room again").step(1).expect("runs");
    println!("ok plans over the budget");
}

/// Both plans are enqueued at once. Side by side they take about as long as one; in turns, as long as both.
#[test]
fn plans_within_the_budget_run_at_the_same_time() {
    let _alone = alone();
    let Some(world) = world("plans_within_the_budget") else { return };
    let _watchdog = Watchdog::new("plans_within_the_budget", Duration::from_secs(60));
    let large = Case { size: (4096, 4096, 4096), ..HALF };
    let mut took = Vec::new();
    for overlap in [true, false] {
        let beside = InstanceOptions { overlap, ..options() };
        let mut rigs = [&large, &large].map(|c| Rig::new(&world, c, &beside).expect("fits"));
        for rig in &mut rigs {
            rig.step(1).expect("runs");
        }
        let mut best = Duration::MAX;
        for _ in 0..10 {
            let begin = std::time::Instant::now();
            for _ in 0..5 {
                for rig in &mut rigs {
                    rig.launch().expect("launches");
                }
            }
            for rig in &mut rigs {
                rig.instance.synchronize().expect("ends");
            }
            best = best.min(begin.elapsed());
        }
        took.push(best.as_secs_f64() * 1e3 / 5.0);
    }
    println!(
        "  two plans of half a GPU each: side by side {:.3} ms, in turns {:.3} ms",
        took[0], took[1]
    );
    assert!(took[0] < 0.8 * took[1], "{took:?}");
    println!("ok plans within the budget");
}

/// Two threads, two worlds, the same GPUs: launches of both are in one order on every GPU.
#[test]
fn two_worlds_and_two_threads() {
    let _alone = alone();
    let Some(first) = world("two_worlds_and_two_threads") else { return };
    let _watchdog = Watchdog::new("two_worlds_and_two_threads", Duration::from_secs(90));
    let second = World::local(first.size() as usize).expect("a second world");
    let scatter = Case { pipeline: "gemm(a, b) -> reduce_scatter", ..GATHER };
    std::thread::scope(|scope| {
        for (world, case) in [(&first, &GATHER), (&second, &scatter)] {
            scope.spawn(move || {
                // Binding and dropping beside the other thread's launches, too.
                for _ in 0..4 {
                    let mut rig = Rig::new(world, case, &options()).expect("binds");
                    let expected = rig.step(1).expect("runs");
                    for _ in 0..50 {
                        rig.launch().expect("launches");
                    }
                    rig.instance.synchronize().expect("ends");
                    assert_eq!(rig.hashes().expect("downloads"), expected);
                }
            });
        }
    });
    println!("ok two worlds, two threads: 400 launches, 8 binds");
}
