//! What the runtime does while somebody captures a stream, and what it waits for before memory goes.

use crate::faults::expected;
use crate::instance::{args, check_exchange, outputs};
use crate::{alone, bind, common, compile, kernels, refs, world_on, worlds};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use mk_abi::DType;
use mk_runtime::gpu::{DeviceTensor, Graph, Stream};
use mk_runtime::jit::Compiled;
use mk_runtime::launch::{Instance, InstanceOptions};
use mk_runtime::mem::SymmetricMemory;
use mk_runtime::reference::Reference;
use mk_runtime::world::World;
use std::time::{Duration, Instant};

/// Calls `f` while this thread captures a stream of the world's first GPU; returns how the end of the capture went.
fn while_capturing(world: &World, mode: Mode, f: impl FnOnce()) -> sys::CUresult {
    let stream = Stream::new(world, 0).unwrap();
    let raw = stream.as_ref().as_raw().cast();
    let mut graph = std::ptr::null_mut();
    // SAFETY: our stream and its context, which both outlive the capture; valid out-pointers.
    unsafe {
        let mut context = std::ptr::null_mut();
        assert_eq!(sys::cuStreamGetCtx(raw, &mut context), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxSetCurrent(context), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamBeginCapture_v2(raw, mode), sys::CUresult::CUDA_SUCCESS);
        f();
        let ended = sys::cuStreamEndCapture(raw, &mut graph);
        if !graph.is_null() {
            sys::cuGraphDestroy(graph);
        }
        ended
    }
}

/// All that the runtime does with a GPU, from a bind to a drop.
fn everything(world: &World, compiled: &Compiled) {
    let source = kernels::exchange(world.size());
    let options =
        InstanceOptions { wait_limit: Duration::from_secs(5), ..InstanceOptions::default() };
    let mut eager = Instance::bind(world, &source, compiled, &options).unwrap();
    let mut replayed = Instance::bind(world, &source, compiled, &options).unwrap();
    let (streams, out) = (Stream::per_rank(world).unwrap(), outputs(world));
    for _ in 0..3 {
        eager.launch(&refs(&streams), &args(&out)).unwrap();
    }
    eager.synchronize().unwrap();
    check_exchange(world, &out, 3);
    let mut graphs =
        Graph::capture(&streams, || replayed.launch(&refs(&streams), &args(&out))).unwrap();
    for _ in 0..2 {
        for (graph, stream) in graphs.iter_mut().zip(&streams) {
            graph.launch(stream.as_ref()).unwrap();
        }
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    check_exchange(world, &out, 2);
    eager.poison_workspace(0xAB).unwrap();
    assert_eq!(eager.symmetric().download(0, 2048, 2).unwrap(), [0xAB, 0xAB]);
    let reference = Reference::new(world, &common::jit_options()).unwrap();
    let make = || DeviceTensor::new(world, 0, DType::Bf16, &[64, 64]).unwrap();
    let (x, y) = (make(), make());
    reference.fill_random(&x, 7, 1.0).unwrap();
    y.copy_from(&x).unwrap();
    assert_eq!(x.download_f32().unwrap(), y.download_f32().unwrap());
    y.upload_f32(&[0.5; 64 * 64]).unwrap();
    y.poison().unwrap();
    drop(graphs);
    drop((eager, replayed));
}

/// PyTorch's captures forbid unsafe calls to all threads unless it is told otherwise, and Python drops functions when it likes.
#[test]
fn no_capture_is_spoilt() {
    let _alone = alone();
    for world in worlds() {
        let compiled = compile(&kernels::exchange(world.size()));
        for mode in [
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ] {
            let another = || {
                std::thread::scope(|s| {
                    s.spawn(|| everything(&world, &compiled));
                });
            };
            let ended = while_capturing(&world, mode, another);
            assert_eq!(ended, sys::CUresult::CUDA_SUCCESS, "{mode:?}, another thread");
            let ended = while_capturing(&world, mode, || everything(&world, &compiled));
            assert_eq!(ended, sys::CUresult::CUDA_SUCCESS, "{mode:?}, the same thread");
        }
    }
}

/// Threads that capture and threads that do all the rest, for some seconds: nothing fails, and the process lives.
#[test]
fn captures_and_the_rest_at_once() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let compiled = compile(&kernels::exchange(1));
    let until = Instant::now() + Duration::from_secs(3);
    let (mut captures, mut rounds) = (0, 0);
    std::thread::scope(|s| {
        let capturing = s.spawn(|| {
            let mut captures = 0;
            while Instant::now() < until {
                let ended = while_capturing(&world, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, || ());
                assert_eq!(ended, sys::CUresult::CUDA_SUCCESS, "capture {captures}");
                captures += 1;
            }
            captures
        });
        while Instant::now() < until {
            everything(&world, &compiled);
            rounds += 1;
        }
        captures = capturing.join().unwrap();
    });
    println!("{captures} captures beside {rounds} binds, launches, copies and drops");
    assert!(captures > 10 && rounds > 3);
}

/// 400 ms of a kernel that waits for nothing to come, as an eager launch or as a replay.
fn waiting(
    world: &World,
    captured: bool,
) -> (Vec<Graph>, Instance, Vec<Stream>, Vec<DeviceTensor>) {
    let options =
        InstanceOptions { wait_limit: Duration::from_millis(400), ..InstanceOptions::default() };
    let mut instance = bind(world, &kernels::stuck(world.size()), &options);
    let (streams, never) = (Stream::per_rank(world).unwrap(), expected(world, |_| 8));
    let mut graphs = Vec::new();
    if captured {
        let launch = || instance.launch(&refs(&streams), &args(&never));
        graphs = Graph::capture(&streams, launch).unwrap();
        for (graph, stream) in graphs.iter_mut().zip(&streams) {
            graph.launch(stream.as_ref()).unwrap();
        }
    } else {
        instance.launch(&refs(&streams), &args(&never)).unwrap();
    }
    (graphs, instance, streams, never)
}

#[test]
fn memory_goes_when_the_gpu_is_done() {
    let _alone = alone();
    for world in worlds() {
        for captured in [false, true] {
            let (graphs, instance, _streams, _never) = waiting(&world, captured);
            let begin = Instant::now();
            drop(graphs);
            drop(instance);
            let took = begin.elapsed();
            assert!(took > Duration::from_millis(300), "captured {captured}: {took:?}");
            let memory = SymmetricMemory::new(&world, 4096).unwrap();
            let (_graphs, _instance, _streams, _never) = waiting(&world, captured);
            let begin = Instant::now();
            drop(memory);
            let took = begin.elapsed();
            assert!(took > Duration::from_millis(300), "memory, captured {captured}: {took:?}");
        }
    }
}

/// What a launch wrote is read without another wait of the caller's, and what replays do is waited for on their streams alone.
#[test]
fn a_download_waits_for_launches_alone() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let idle = DeviceTensor::zeros(&world, 0, DType::I32, &[4]).unwrap();
    for captured in [false, true] {
        let held = waiting(&world, captured);
        let begin = Instant::now();
        assert_eq!(idle.download_i32().unwrap(), [0; 4]);
        let took = begin.elapsed();
        assert_eq!(took > Duration::from_millis(300), !captured, "{took:?}");
        drop(held);
    }
}
