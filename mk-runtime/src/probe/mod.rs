//! Microbenchmarks of the machine, without plans: links, memory, flags, launches and tensor cores, one figure at a
//! time. For `mk probe`.
//!
//! Each figure is the median of several launches after a warm-up. Copies are timed from a common start: caches flushed,
//! all ranks released at once, the slowest rank counted, launch included. Every word of a copy, and a sum of each
//! GEMM's result, is checked: a wrong one gives no figure.

mod kernels;
mod machine;
mod mma;
mod piece;
mod transfer;

pub use machine::{MAX_BYTES, Probe, ROUNDS};
pub use mma::Burst;
pub use piece::Piece;
pub use transfer::{Method, Transfer};
