//! The Python module `mk`: a thin layer over [`mk::Function`] for torch tensors.
//!
//! `world.rs` and `store.rs` find the ranks, `tensor.rs` reads torch tensors, `function.rs` calls, `arguments.rs` takes
//! arguments apart, `check.rs` checks them in worlds of every kind, `plan.rs` shows and simulates what would run,
//! `program.rs` gives the pipeline as data, `source.rs` reads its text, `predict.rs` asks the cost model, `derive.rs`
//! gives derivatives as texts, `balance.rs` orders documents, `explain.rs` explains and has it compared, `options.rs`
//! reads keyword arguments, `weight.rs` quantises weights, `interrupt.rs` looks for signals, `log.rs` passes warnings
//! on, `command.rs` is the `mk` command, `errors.rs` turns errors into exceptions.
//!
//! Invariants: nothing is decided here that a Rust program could not decide through the crate `mk`. The interpreter is
//! released while ranks are waited for, kernels compiled and launches enqueued. The lock of a function is held while it
//! binds, which may need the interpreter; therefore nobody waits for that lock while attached.

mod arguments;
mod balance;
mod check;
mod command;
mod constant;
mod derive;
mod errors;
mod explain;
mod function;
mod interrupt;
mod log;
mod numbers;
mod options;
mod plan;
mod predict;
mod program;
mod source;
mod store;
mod tensor;
mod weight;
mod world;

use pyo3::prelude::*;
use std::collections::BTreeMap;

/// The native part of the package `mk`.
#[pymodule]
mod _mk {
    use super::*;

    #[pymodule_export]
    use super::balance::balance;
    #[pymodule_export]
    use super::command::command;
    #[pymodule_export]
    use super::constant::Constant;
    #[pymodule_export]
    use super::derive::{cut_up, derive, describe};
    #[pymodule_export]
    use super::function::{Function, close_kept, compile};
    #[pymodule_export]
    use super::log::warn;
    #[pymodule_export]
    use super::options::{Setting, nccl_channels};
    #[pymodule_export]
    use super::plan::{Plan, plan};
    #[pymodule_export]
    use super::predict::predict;
    #[pymodule_export]
    use super::source::{defaults, source};
    #[pymodule_export]
    use super::store::all_gather;
    #[pymodule_export]
    use super::weight::quantize_weight;
    #[pymodule_export]
    use super::world::World;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::log::begin();
        crate::interrupt::listen();
        let at_exit = module.py().import("atexit")?;
        at_exit.call_method1("register", (module.getattr("_close_kept")?,))?;
        let dtypes = mk::abi::DType::ALL.map(|d| (d.name(), d.format().torch));
        module.add("DTYPES", BTreeMap::from(dtypes))?;
        module.add("SETTINGS", options::table(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
