//! Binding a kernel to a world, and launching it.

mod agree;
mod contract;
mod dims;
mod engine;
mod health;
mod instance;
mod maps;
mod options;
mod params;
mod program;
mod rank;
mod residency;

pub use instance::Instance;
pub use options::{InstanceOptions, RankTensors};
