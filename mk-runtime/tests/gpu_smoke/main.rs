//! The runtime on real GPUs: symmetric memory, launches, faults, graphs, reference kernels, raw figures.
//!
//! Runs on any machine: without a GPU or NVRTC each test prints SKIPPED and why. With one GPU, worlds of two ranks
//! share it; with several, there is a world of all of them too.

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod instance;
mod kernels;
mod net;
mod probe;
mod reference;
mod weights;

use mk_abi::KernelSource;
use mk_runtime::doctor::Doctor;
use mk_runtime::gpu::Stream;
use mk_runtime::jit::{self, Compiled, JitOptions};
use mk_runtime::launch::{Instance, InstanceOptions};
use mk_runtime::world::World;
use mk_skip::{Need, skip};
use std::sync::{Mutex, MutexGuard};

/// One test at a time: grids must be resident as a whole.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A world on these devices, or `None` with a visible reason.
pub fn world_on(devices: &[i32]) -> Option<World> {
    if !common::has_nvrtc() {
        return None;
    }
    match World::on_devices(devices) {
        Ok(world) => Some(world),
        Err(error) if error.is_no_device() => {
            skip(Need::Gpus(1), error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A world of one rank; of two ranks on one GPU; of all GPUs, where there are several.
pub fn worlds() -> Vec<World> {
    let gpus = Doctor::examine(&JitOptions::default()).gpus.len() as i32;
    let mut devices: Vec<Vec<i32>> = vec![vec![0], vec![0, 0]];
    if gpus > 1 {
        devices.push((0..gpus.min(8)).collect());
    }
    let worlds: Vec<World> = devices.iter().map_while(|d| world_on(d)).collect();
    for world in &worlds {
        println!("world of {} ranks", world.size());
    }
    worlds
}

/// Compiles with the tests' options.
pub fn compile(source: &KernelSource) -> Compiled {
    jit::compile(source, &common::jit_options()).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles and binds.
pub fn bind(world: &World, source: &KernelSource, options: &InstanceOptions) -> Instance {
    Instance::bind(world, source, &compile(source), options).unwrap_or_else(|e| panic!("{e}"))
}

/// The handles of streams.
pub fn refs(streams: &[Stream]) -> Vec<mk_runtime::gpu::StreamRef> {
    streams.iter().map(Stream::as_ref).collect()
}

#[test]
fn doctor_describes_this_machine() {
    let doctor = Doctor::examine(&JitOptions::default());
    println!("{doctor}");
    assert_eq!(doctor.peers.len(), doctor.gpus.len());
}
