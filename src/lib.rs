//! mk: a plan compiler for fused communication + compute GPU kernels.
//!
//! This crate re-exports the parts that users need.

pub use mk_dsl::pipeline;
pub use mk_syntax::{Diagnostics, Program};

/// What `pipeline!` expands to. Not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use mk_syntax::checked;
}
