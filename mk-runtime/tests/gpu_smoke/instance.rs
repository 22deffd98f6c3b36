//! Launches: parameters, symmetric memory, tensor maps, graphs, refusals, host time.

use crate::{alone, bind, common, compile, kernels, refs, world_on, worlds};
use mk_abi::DType;
use mk_runtime::Error;
use mk_runtime::gpu::{DeviceTensor, Graph, Stream, TensorRef};
use mk_runtime::launch::{Instance, InstanceOptions, RankTensors};
use mk_runtime::mem::SymmetricMemory;
use mk_runtime::world::World;
use std::time::{Duration, Instant};

pub fn outputs(world: &World) -> Vec<DeviceTensor> {
    world
        .local_ranks()
        .map(|r| DeviceTensor::zeros(world, r, DType::I32, &[world.size().into()]).unwrap())
        .collect()
}

pub fn args(tensors: &[DeviceTensor]) -> Vec<RankTensors> {
    tensors.iter().map(|t| RankTensors::new([t])).collect()
}

pub fn check_exchange(world: &World, out: &[DeviceTensor], epoch: i32) {
    for (p, tensor) in out.iter().enumerate() {
        let expected: Vec<i32> =
            (0..world.size() as i32).map(|s| 1000 * epoch + 10 * s + p as i32).collect();
        assert_eq!(tensor.download_i32().unwrap(), expected, "rank {p}");
    }
}

#[test]
fn ranks_exchange_through_symmetric_memory() {
    let _alone = alone();
    for world in worlds() {
        let options = InstanceOptions {
            wait_limit: Duration::from_secs(5),
            poison: Some(0xFF),
            ..InstanceOptions::default()
        };
        let mut instance = bind(&world, &kernels::exchange(world.size()), &options);
        let streams = Stream::per_rank(&world).unwrap();
        let out = outputs(&world);
        for epoch in 1..=50 {
            instance.launch(&refs(&streams), &args(&out)).unwrap();
            if epoch == 1 {
                instance.synchronize().unwrap();
                check_exchange(&world, &out, epoch);
            }
        }
        instance.check().unwrap();
        instance.synchronize().unwrap();
        check_exchange(&world, &out, 50);
        assert_eq!(instance.generation(), 1);
        // Every rank's memory reads the same through its own mapping and through the range.
        let words = instance.symmetric().download(0, 1024, 4).unwrap();
        assert_eq!(words, 50u32.to_le_bytes());
    }
}

#[test]
fn two_instances_on_different_streams_are_ordered() {
    let _alone = alone();
    for world in worlds() {
        let source = kernels::exchange(world.size());
        let options =
            InstanceOptions { wait_limit: Duration::from_secs(5), ..InstanceOptions::default() };
        let mut a = bind(&world, &source, &options);
        let mut b = bind(&world, &source, &options);
        let (s, t) = (Stream::per_rank(&world).unwrap(), Stream::per_rank(&world).unwrap());
        let (x, y) = (outputs(&world), outputs(&world));
        for _ in 0..20 {
            a.launch(&refs(&s), &args(&x)).unwrap();
            b.launch(&refs(&t), &args(&y)).unwrap();
        }
        a.synchronize().unwrap();
        b.synchronize().unwrap();
        check_exchange(&world, &x, 20);
        check_exchange(&world, &y, 20);
    }
}

#[test]
fn a_captured_launch_replays() {
    let _alone = alone();
    for world in worlds() {
        let mut instance = bind(
            &world,
            &kernels::exchange(world.size()),
            &InstanceOptions { wait_limit: Duration::from_secs(5), ..InstanceOptions::default() },
        );
        let streams = Stream::per_rank(&world).unwrap();
        let out = outputs(&world);
        let mut graphs = Graph::capture(&streams, || {
            instance.launch(&refs(&streams), &args(&out))?;
            instance.launch(&refs(&streams), &args(&out))
        })
        .unwrap();
        for _ in 0..10 {
            for (graph, stream) in graphs.iter_mut().zip(&streams) {
                graph.launch(stream.as_ref()).unwrap();
            }
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        instance.check().unwrap();
        check_exchange(&world, &out, 20);
        drop(graphs);
    }
}

#[test]
fn tensor_maps_follow_the_callers_pointers() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let mut instance = bind(&world, &kernels::tile_copy(), &InstanceOptions::default());
    let streams = Stream::per_rank(&world).unwrap();
    let out = DeviceTensor::new(&world, 0, DType::Bf16, &[32, 64]).unwrap();
    for round in 0..3u32 {
        let values: Vec<f32> =
            (0..64 * 64).map(|i| ((i * 7 + round as usize) % 251) as f32).collect();
        let x = DeviceTensor::from_f32(&world, 0, DType::Bf16, &[64, 64], &values).unwrap();
        out.poison().unwrap();
        instance.launch(&refs(&streams), &[RankTensors::new([&x, &out])]).unwrap();
        instance.synchronize().unwrap();
        assert_eq!(out.download_f32().unwrap(), values[16 * 64..48 * 64]);
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let source = kernels::exchange(1);
    let compiled = compile(&source);
    let options = InstanceOptions::default();
    let refuse = |change: &dyn Fn(&mut mk_abi::KernelSource)| {
        let mut source = source.clone();
        change(&mut source);
        match Instance::bind(&world, &source, &compiled, &options) {
            Ok(_) => panic!("bound"),
            Err(error) => error,
        }
    };
    let error = refuse(&|s| {
        s.grid = 512;
        s.smem_bytes = 200 << 10;
    });
    assert!(matches!(error, Error::NotCoResident { .. }), "{error}");
    let error = refuse(&|s| s.smem_bytes = 1 << 20);
    assert!(error.to_string().contains("shared memory"), "{error}");
    let error = refuse(&|s| s.arch = "sm_100a".into());
    assert!(matches!(error, Error::WrongArch { .. }), "{error}");
    let error = refuse(&|s| {
        s.world_size = 2;
        s.ranks.push(s.ranks[0].clone());
    });
    assert!(matches!(error, Error::WorldSize { .. }), "{error}");
    let error = refuse(&|s| s.tensors.clear());
    assert!(matches!(error, Error::BadSource { .. }), "{error}");
    let error = refuse(&|s| {
        s.tensors.push(s.tensors[0].clone());
        s.ranks[0].tensor_shapes.push(vec![1]);
    });
    assert!(error.to_string().contains("one struct of 144 bytes"), "{error}");

    let mut instance = bind(&world, &source, &options);
    let streams = Stream::per_rank(&world).unwrap();
    let mut launch = |streams: &[_], tensors: &[RankTensors]| {
        instance.launch(streams, tensors).unwrap_err().to_string()
    };
    let out = outputs(&world);
    assert!(launch(&[], &args(&out)).contains("0 streams were given, and 1"));
    assert!(launch(&refs(&streams), &[]).contains("0 lists of tensors"));
    // SAFETY: refused before anything is launched.
    let null = unsafe { TensorRef::from_raw(0, 4) };
    assert!(launch(&refs(&streams), &[vec![null].into()]).contains("null"));
    // None of that poisoned it.
    instance.launch(&refs(&streams), &args(&out)).unwrap();
    instance.synchronize().unwrap();

    let error = SymmetricMemory::new(&world, 0).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let error = World::on_devices(&[99]).unwrap_err();
    assert!(error.is_no_device(), "{error}");
}

#[test]
fn blocking_launches_are_refused() {
    let _alone = alone();
    if world_on(&[0]).is_none() {
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "instance::child_blocking", "--nocapture"])
        .env("MK_TEST_CHILD", "1")
        .env("CUDA_LAUNCH_BLOCKING", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("MESSAGE CUDA_LAUNCH_BLOCKING is set"), "{text}");
}

#[test]
fn child_blocking() {
    // Only as a child process of another test.
    if std::env::var_os("MK_TEST_CHILD").is_none() {
        return;
    }
    let Some(world) = world_on(&[0]) else { return };
    let source = kernels::empty(1, 1);
    let compiled = compile(&source);
    match Instance::bind(&world, &source, &compiled, &InstanceOptions::default()) {
        Err(error) => println!("MESSAGE {error}"),
        Ok(_) => println!("MESSAGE bound"),
    }
}

#[test]
fn host_time_per_launch() {
    let _alone = alone();
    if !common::has_nvrtc() {
        return;
    }
    for world in worlds() {
        let mut instance =
            bind(&world, &kernels::empty(world.size(), 16), &InstanceOptions::default());
        let owned = Stream::per_rank(&world).unwrap();
        let streams = refs(&owned);
        let tensors = vec![RankTensors::default(); world.size() as usize];
        for _ in 0..100 {
            instance.launch(&streams, &tensors).unwrap();
        }
        instance.synchronize().unwrap();
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..50 {
                instance.launch(&streams, &tensors).unwrap();
            }
            best = best.min(start.elapsed() / 50);
            instance.synchronize().unwrap();
        }
        let per_rank = best / world.size();
        println!("{} ranks: {best:?} per launch, {per_rank:?} per rank", world.size());
        assert!(per_rank < Duration::from_micros(100), "{per_rank:?}");
    }
}
