//! Measures the machine itself: links, memory, flags, launches and tensor cores, one figure at a time, with no plan in
//! between. For `mk probe`.
//!
//! Each figure is the median of some launches after one that does not count. Copies are timed behind one gate: caches
//! flushed, all ranks released at one moment, the slowest rank counted, launch included. What copies moved is compared,
//! every word of it, with what they should have moved: a copy that is wrong has no figure. Nor have products of which a
//! sum is wrong.

mod kernels;
mod machine;
mod mma;
mod piece;
mod transfer;

pub use machine::{MAX_BYTES, Probe, ROUNDS};
pub use mma::Burst;
pub use piece::Piece;
pub use transfer::{Method, Transfer};
