//! **mk**: a plan compiler for fused communication + compute GPU kernels.
//!
//! A pipeline such as `gather(a) -> gemm(b)` is type-checked ([`Program`]), lowered to a tile plan that is verified
//! against races, deadlock and stale signals ([`compile`](passes::compile)), emitted as one persistent CUDA kernel per
//! GPU ([`emit`]), compiled by NVRTC ([`runtime::jit`]) and run on every rank ([`runtime`]), or on the CPU executor
//! ([`sim`]). [`Function`] does all of that for the shapes of the tensors that it is called with:
//!
//! ```no_run
//! use mk::{Function, Program, function::{Call, FunctionOptions}, runtime::{Stream, World}};
//! # fn tensors(_: u32) -> Call { Call::default() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = World::local(4)?;
//! let program = Program::parse("gather(a) -> gemm(b)")?;
//! let mut linear = Function::new(&world, program, FunctionOptions::default())?;
//! let streams = Stream::per_rank(&world)?;
//! let streams: Vec<_> = streams.iter().map(Stream::as_ref).collect();
//! for _step in 0..1000 {
//!     let calls: Vec<Call> = world.local_ranks().map(tensors).collect();
//!     linear.call(&streams, &calls)?; // compiles and binds at the first call
//! }
//! linear.synchronize()?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate is names only. Its parts are the crates that it re-exports, each of which uses those before it:
//! `mk-function` (functions of tensors, the choice of settings) and `mk-tune` (measuring). Random inputs, references
//! and comparison are `mk-harness`, which nothing here links.

extern crate self as mk;

pub use mk_abi as abi;
pub use mk_codegen::{
    check, cost, draw, emit, equivalence, passes, plan, settings, sim, target, trace, valid,
};
pub use mk_dsl::{pipeline, pipelined};
pub use mk_function::{AsTensor, Balance, Function, balance, build, cut, function, kept, simulate};
pub use mk_runtime as runtime;
pub use mk_syntax as syntax;
pub use mk_syntax::{Bound, Diagnostics, Program, file};

/// Choosing how a pipeline is lowered ([`mk_function::choice`]), explaining it ([`mk_function::explain`]), and
/// measuring ([`mk_tune`]).
pub mod tune {
    pub use mk_function::{choice::*, explain::*};
    pub use mk_tune::*;
}

/// Used by the expansion of [`pipeline!`].
#[doc(hidden)]
pub mod __private {
    pub use mk_syntax::checked;
}

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// So do those of the language's reference.
#[cfg(doctest)]
#[doc = include_str!("../docs/dsl.md")]
struct Language;
