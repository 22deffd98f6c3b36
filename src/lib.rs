//! **mk**: a plan compiler for fused communication + compute GPU kernels.
//!
//! A pipeline such as `gather(a) -> gemm(b)` is type-checked ([`Program`]), lowered to a tile plan that is verified
//! against races, deadlock and stale signals ([`compile`](passes::compile)), emitted as one persistent CUDA kernel per GPU ([`emit`]),
//! compiled by NVRTC ([`runtime::jit`]) and run on every rank ([`runtime`]), or on the CPU executor ([`sim`]).
//! [`Function`] does all of that for the shapes of the tensors that it is called with.

extern crate self as mk;

mod arguments;
pub mod build;
pub mod function;
pub mod harness;
pub mod tune;

pub use arguments::AsTensor;
pub use function::Function;
pub use mk_abi as abi;
pub use mk_codegen::{cost, draw, emit, ir, passes, sim, target, trace, valid};
pub use mk_dsl::{pipeline, pipelined};
pub use mk_runtime as runtime;
pub use mk_syntax as syntax;
pub use mk_syntax::{Bound, Diagnostics, Program, file};

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
