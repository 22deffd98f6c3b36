//! What people and compilers read of a tile plan: CUDA, pictures, and the timelines of traced kernels.

pub mod draw;
pub mod emit;
pub mod trace;
