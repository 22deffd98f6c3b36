//! A wait that nobody satisfies ends as a typed error on every rank, and a new instance works.

use crate::{alone, bind, kernels, refs, world_on, worlds};
use mk_abi::DType;
use mk_abi::device::FaultKind;
use mk_runtime::gpu::{DeviceTensor, Stream};
use mk_runtime::launch::{InstanceOptions, RankTensors};
use mk_runtime::world::World;
use mk_runtime::{Error, FaultCause};
use std::time::{Duration, Instant};

/// The argument of the `stuck` kernel: what each rank's word must reach.
pub fn expected(world: &World, value: impl Fn(u32) -> i32) -> Vec<DeviceTensor> {
    world
        .local_ranks()
        .map(|r| {
            let tensor = DeviceTensor::new(world, r, DType::I32, &[4]).unwrap();
            tensor.upload_i32(&[value(r), 0, 0, 0]).unwrap();
            tensor
        })
        .collect()
}

fn args(tensors: &[DeviceTensor]) -> Vec<RankTensors> {
    tensors.iter().map(|t| RankTensors::new([t])).collect()
}

#[test]
fn a_timeout_names_the_edge_and_poisons() {
    let _alone = alone();
    for world in worlds() {
        let source = kernels::stuck(world.size());
        let options = InstanceOptions {
            wait_limit: Duration::from_millis(300),
            ..InstanceOptions::default()
        };
        let mut instance = bind(&world, &source, &options);
        let streams = Stream::per_rank(&world).unwrap();
        let fine = expected(&world, |_| 0);
        instance.launch(&refs(&streams), &args(&fine)).unwrap();
        instance.synchronize().unwrap();

        // Only rank 0 waits for something; the others follow nobody.
        let never = expected(&world, |r| if r == 0 { 8 } else { 0 });
        let start = Instant::now();
        instance.launch(&refs(&streams), &args(&never)).unwrap();
        // Nothing yet, and the look does not wait.
        instance.check().unwrap();
        assert!(start.elapsed() < Duration::from_millis(250));
        let fault = match instance.synchronize() {
            Err(Error::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        };
        println!("{fault}");
        assert_eq!(fault.rank, 0);
        assert_eq!(fault.cause, FaultCause::Known(FaultKind::WaitTimeout));
        assert_eq!((fault.edge, fault.tile, fault.epoch, fault.word), (7, 42, 2, 256));
        assert_eq!((fault.expected, fault.seen), (8, 0));
        assert!(fault.waited_ns >= 300_000_000);
        assert_eq!(fault.role.as_deref(), Some("compute"));
        assert!(fault.to_string().contains("wait sig0 \"never\""));
        assert!(start.elapsed() < Duration::from_secs(5));

        match instance.launch(&refs(&streams), &args(&fine)) {
            Err(Error::Poisoned { cause }) => assert!(matches!(*cause, Error::Fault(_))),
            other => panic!("{other:?}"),
        }
        drop(instance);
        let mut again = bind(&world, &source, &options);
        assert_eq!(again.generation(), 2);
        again.launch(&refs(&streams), &args(&fine)).unwrap();
        again.synchronize().unwrap();
    }
}

#[test]
fn followers_are_not_the_cause() {
    let _alone = alone();
    for world in worlds().into_iter().filter(|w| w.size() > 1) {
        let options = InstanceOptions {
            wait_limit: Duration::from_millis(300),
            ..InstanceOptions::default()
        };
        let mut instance = bind(&world, &kernels::stuck(world.size()), &options);
        let streams = Stream::per_rank(&world).unwrap();
        let never = expected(&world, |_| 8);
        instance.launch(&refs(&streams), &args(&never)).unwrap();
        let start = Instant::now();
        let fault = match instance.synchronize() {
            Err(Error::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        };
        println!("{fault}");
        assert_eq!(fault.cause, FaultCause::Known(FaultKind::WaitTimeout));
        assert_eq!(fault.others.len() as u32, world.size() - 1);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn the_host_can_abort() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let mut instance = bind(&world, &kernels::stuck(1), &InstanceOptions::default());
    let streams = Stream::per_rank(&world).unwrap();
    let never = expected(&world, |_| 8);
    let start = Instant::now();
    instance.launch(&refs(&streams), &args(&never)).unwrap();
    instance.abort();
    match instance.synchronize() {
        Err(Error::Fault(fault)) => {
            assert_eq!(fault.cause, FaultCause::Known(FaultKind::PeerAborted));
        }
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() < Duration::from_secs(10), "the limit is 30 s");
}

/// Each launch waits for the one before, on a stream of its own. With eight of them nothing that is enqueued on another stream gets through.
#[test]
fn the_host_can_abort_what_others_are_queued_behind() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let mut instance = bind(&world, &kernels::stuck(1), &InstanceOptions::default());
    let streams: Vec<_> = (0..40).map(|_| Stream::per_rank(&world).unwrap()).collect();
    let never = expected(&world, |_| 8);
    for streams in &streams {
        instance.launch(&refs(streams), &args(&never)).unwrap();
    }
    let start = Instant::now();
    instance.abort();
    match instance.synchronize() {
        Err(Error::Fault(fault)) => {
            assert_eq!(fault.cause, FaultCause::Known(FaultKind::PeerAborted));
        }
        other => panic!("{other:?}"),
    }
    println!("ended {:.3} s behind the abort", start.elapsed().as_secs_f64());
    assert!(start.elapsed() < Duration::from_secs(2), "the limit is 30 s, for each");
}
