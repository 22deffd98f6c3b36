//! Compiles, binds and launches generated kernels.
//!
//! The path of a kernel: [`jit::compile`] turns a [`mk_abi::KernelSource`] into a CUBIN (or reads it from the disk
//! cache), [`launch::Instance::bind`] loads it on every rank of a [`world::World`] and allocates its workspace, and
//! [`launch::Instance::launch`] enqueues one kernel per rank on the caller's streams.
//!
//! Invariants: this crate sees a `KernelSource`, never a plan. It never exits and never prints; what goes wrong is an
//! [`Error`]. A machine without a driver or without NVRTC gets an error that says how to install it. NVLink multicast
//! and managed memory are not used.

pub mod bench;
pub mod binary;
pub mod doctor;
mod driver;
mod env;
mod error;
pub mod events;
pub mod gpu;
pub mod jit;
pub mod launch;
mod launcher;
pub mod mem;
pub mod net;
mod nics;
pub mod probe;
pub mod proxy;
pub mod reference;
pub mod store;
pub mod transport;
pub mod weights;
pub mod world;

pub use env::{VARIABLES, nccl_channels};
use error::Result;
pub use error::{Error, Fault, FaultCause, TransportError};
pub use gpu::{DeviceTensor, Event, Graph, Stream, StreamRef, TensorRef};
pub use launch::{Instance, InstanceOptions, RankTensors};
pub use reference::{ErrorNorm, MapOp, Operand, Reference};
pub use world::{Bootstrap, UnixBootstrap, World};

// Bound kernels and everything they need may move to another thread.
const _: () = {
    const fn movable<T: Send>() {}
    movable::<launch::Instance>();
    movable::<gpu::Graph>();
    movable::<gpu::Stream>();
    movable::<gpu::DeviceTensor>();
    movable::<world::World>();
    movable::<Error>();
};
