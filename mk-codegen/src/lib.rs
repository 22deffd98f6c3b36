//! From a checked pipeline to a verified tile plan, and from the plan to CUDA.

pub mod cost;
pub mod draw;
pub mod emit;
pub mod field;
pub mod graph;
pub mod ir;
pub mod passes;
pub mod settings;
pub mod sim;
pub mod target;
pub mod trace;
pub mod valid;
