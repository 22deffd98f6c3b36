//! Faults and refusals within one process.

use crate::rig::{BESIDE, Case, GATHER, Rig, options};
use crate::{Watchdog, alone, world, world_or_shared};
use mk::abi::device::FaultKind;
use mk::runtime::{
    Error, FaultCause, Graph, InstanceOptions, RankTensors, Stream, TensorRef, World, bench::Delay,
    jit::JitOptions,
};
use std::time::{Duration, Instant};

fn begin(test: &str) -> Option<World> {
    world(test)
}

/// A millisecond, and agents that sleep up to a millisecond before each of many tasks: somebody waits too long. Being
/// late at the launch is another matter, and has its own limit.
#[test]
fn a_bound_of_a_millisecond() {
    let _alone = alone();
    let Some(world) = begin("a_bound_of_a_millisecond") else { return };
    let _watchdog = Watchdog::new("a_bound_of_a_millisecond", Duration::from_secs(60));
    let short = InstanceOptions { wait_limit: Duration::from_millis(1), ..options() };
    let mut rig = Rig::new(&world, &GATHER, &short).expect("binds");
    let fine = rig.step(1).expect("no wait takes that long");
    let delay = Delay::new(&world, &JitOptions::default()).expect("loads");
    delay.enqueue(1, &rig.streams[1], 50_000_000).expect("delays");
    rig.launch().expect("launches");
    rig.instance.synchronize().expect("a late launch is no fault");
    assert_eq!(rig.hashes().expect("downloads"), fine);
    drop(rig);
    let slow =
        InstanceOptions { chaos_seed: 1, chaos_max: Duration::from_millis(1), ..short.clone() };
    // Many chunks to send for few tiles to compute.
    let long = Case { size: (8192, 4096, 256), ..GATHER };
    let mut rig = Rig::new(&world, &long, &slow).expect("binds");
    let start = Instant::now();
    let error = rig.step(1).expect_err("somebody waits too long");
    println!("  after {:.3} s: {error}", start.elapsed().as_secs_f64());
    let Error::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.cause, FaultCause::Known(FaultKind::WaitTimeout));
    assert!(fault.edge_text.is_some() && fault.waited_ns >= 1_000_000, "{fault:?}");
    assert!(matches!(rig.launch(), Err(Error::Poisoned { .. })));
    drop(rig);
    assert_eq!(Rig::new(&world, &GATHER, &short).expect("binds").step(1).expect("runs"), fine);
    println!("ok a bound of a millisecond");
}

#[test]
fn an_aborted_instance_does_not_run_again() {
    let _alone = alone();
    let Some(world) = world_or_shared("an_aborted_instance") else { return };
    let _watchdog = Watchdog::new("an_aborted_instance", Duration::from_secs(60));
    let mut rig = Rig::new(&world, &BESIDE[0], &options()).expect("binds");
    rig.step(1).expect("runs");
    let mut known = rig.capture().expect("captures");
    // As somebody else's capture: this thread's does not hear of the launch.
    let (refs, args) = (rig.refs(), rig.args());
    let instance = &mut rig.instance;
    let mut foreign = Graph::capture(&rig.streams, || {
        std::thread::scope(|s| s.spawn(|| instance.launch(&refs, &args)).join().expect("no panic"))
    })
    .expect("captures");
    for graph in [&mut known, &mut foreign] {
        rig.refill(2).expect("fills");
        for (graph, stream) in graph.iter_mut().zip(&refs) {
            graph.launch(*stream).expect("replays");
        }
        for stream in &rig.streams {
            stream.synchronize().expect("ends");
        }
        rig.instance.check().expect("nothing is wrong");
    }
    rig.instance.abort();
    let refused = rig.launch().expect_err("aborted");
    let Error::Poisoned { cause } = &refused else { panic!("{refused}") };
    assert!(matches!(**cause, Error::Aborted), "{refused}");
    let refused = known[0].launch(refs[0]).expect_err("aborted");
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    // Nobody refuses this one: the kernel itself must give up, and soon.
    let start = Instant::now();
    for (graph, stream) in foreign.iter_mut().zip(&refs) {
        graph.launch(*stream).expect("replays");
    }
    for stream in &rig.streams {
        stream.synchronize().expect("ends");
    }
    println!("  a replay nobody refused gave up after {:.3} s", start.elapsed().as_secs_f64());
    let error = rig.instance.check().expect_err("the kernels gave up");
    let Error::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.cause, FaultCause::Known(FaultKind::PeerAborted));
    drop((known, foreign));
    drop(rig);
    Rig::new(&world, &BESIDE[0], &options()).expect("binds").step(3).expect("runs");
    println!("ok an aborted instance");
}

/// One rank's kernel waits for a rank that does not come, and forty launches of another instance, each on streams of its own, wait for
/// that: nothing that is enqueued on any stream gets past them. They run when it has given up.
#[test]
fn an_abort_gets_past_what_is_queued() {
    let _alone = alone();
    let Some(world) = world_or_shared("an_abort_past_what_is_queued") else { return };
    let _watchdog = Watchdog::new("an_abort_past_what_is_queued", Duration::from_secs(60));
    let patient = InstanceOptions {
        wait_limit: Duration::from_secs(30),
        entry_limit: Duration::from_secs(30),
        ..options()
    };
    let mut rig = Rig::new(&world, &BESIDE[0], &patient).expect("binds");
    let mut behind = Rig::new(&world, &BESIDE[1], &patient).expect("binds");
    rig.step(1).expect("runs");
    let fine = behind.step(2).expect("runs");
    behind.refill(2).expect("fills");
    let streams: Vec<_> = (0..40).map(|_| Stream::per_rank(&world).expect("streams")).collect();
    let mut alone = rig.capture().expect("captures");
    let refs = rig.refs();
    alone[0].launch(refs[0]).expect("replays");
    let args = behind.args();
    behind.instance.launch(&refs, &args).expect("launches");
    for streams in streams {
        behind.change_streams(streams);
        behind.launch().expect("launches");
    }
    std::thread::sleep(Duration::from_millis(100));
    rig.instance.check().expect("waits");
    let start = Instant::now();
    rig.instance.abort();
    rig.streams[0].synchronize().expect("ends");
    let took = start.elapsed();
    let error = rig.instance.check().expect_err("the kernel gave up");
    let Error::Fault(fault) = &error else { panic!("{error}") };
    println!("  after {:.3} s: {error}", took.as_secs_f64());
    assert_eq!(fault.cause, FaultCause::Known(FaultKind::PeerAborted));
    assert!(fault.waited_ns >= 100_000_000, "{fault:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    behind.instance.synchronize().expect("its turn has come");
    assert_eq!(behind.hashes().expect("downloads"), fine);
    println!("ok an abort past what is queued");
}

#[test]
fn streams_of_which_some_capture_are_refused() {
    let _alone = alone();
    let Some(world) = begin("streams_of_which_some_capture") else { return };
    let _watchdog = Watchdog::new("streams_of_which_some_capture", Duration::from_secs(60));
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("binds");
    let fine = rig.step(1).expect("runs");
    let (refs, args) = (rig.refs(), rig.args());
    let instance = &mut rig.instance;
    let refused = Graph::capture(&rig.streams[..1], || instance.launch(&refs, &args));
    let refused = refused.expect_err("one of several");
    assert!(matches!(refused, Error::MixedCapture { captured: 0, eager: 1, .. }), "{refused}");
    // Nothing was launched and nothing is broken.
    assert_eq!(rig.step(1).expect("runs"), fine);
    println!("ok mixed capture: {refused}");
}

#[test]
fn memory_of_another_gpu_or_of_none_is_refused() {
    let _alone = alone();
    let Some(world) = begin("memory_of_another_gpu") else { return };
    let _watchdog = Watchdog::new("memory_of_another_gpu", Duration::from_secs(60));
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("binds");
    let fine = rig.step(1).expect("runs");
    let refs = rig.refs();
    let good = rig.args();
    let mut swapped = good.clone();
    swapped[0] = good[1].clone();
    let refused = rig.instance.launch(&refs, &swapped).expect_err("rank 1's memory");
    assert!(
        matches!(&refused, Error::Tensor { rank: 0, what, .. } if what.contains("is on GPU 1")),
        "{refused}"
    );
    println!("  {refused}");
    let heap = vec![0u64; 1 << 20];
    let bytes = good[0].tensors[0].size_bytes();
    let at = (heap.as_ptr() as u64).next_multiple_of(16);
    // SAFETY: never used: the launch must refuse it.
    let lost = unsafe { TensorRef::from_raw(at, bytes) };
    let mut pageable: Vec<RankTensors> = good.clone();
    pageable[0].tensors[0] = lost;
    let refused = rig.instance.launch(&refs, &pageable).expect_err("the heap");
    assert!(
        matches!(&refused, Error::Tensor { what, .. } if what.contains("neither")),
        "{refused}"
    );
    assert_eq!(rig.step(1).expect("runs"), fine);
    println!("ok memory that is not the rank's");
}
