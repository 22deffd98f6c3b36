//! The Python module `mk`: a thin layer over [`mk::Function`] for torch tensors.
//!
//! `world.rs` and `store.rs` find the ranks, `tensor.rs` reads torch tensors, `function.rs` calls, `plan.rs` shows and
//! simulates what would run, `options.rs` reads keyword arguments, `errors.rs` turns errors into exceptions.
//!
//! Invariants: nothing is decided here that a Rust program could not decide through the crate `mk`. The interpreter is
//! released while ranks are waited for, kernels compiled and launches enqueued; no lock is held while it is acquired,
//! but for that of a function that binds, which no attached thread waits for.

mod errors;
mod function;
mod options;
mod plan;
mod store;
mod tensor;
mod world;

use pyo3::prelude::*;

/// The native part of the package `mk`.
#[pymodule]
mod _mk {
    use super::*;

    #[pymodule_export]
    use super::function::{Function, compile};
    #[pymodule_export]
    use super::plan::{Plan, plan};
    #[pymodule_export]
    use super::world::World;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
