//! From a checked pipeline to a verified tile plan.

pub mod graph;
pub mod passes;
pub mod settings;
