//! A function compared with the same operations by torch, for ``Function.explain``. What is measured is in
//! `python/mk/_explain.py`.

use crate::errors::Class;
use pyo3::{call::PyCallArgs, prelude::*, types::PyDict};

/// How often, and how near.
pub struct Comparison {
    rounds: u32,
    tolerance: f64,
}

impl Comparison {
    pub fn new(py: Python<'_>, rounds: u32, tolerance: f64) -> PyResult<Comparison> {
        if rounds == 0 {
            return Err(Class::Argument.error(py, "rounds is 0, and must be at least 1"));
        }
        if !(tolerance > 0.0 && tolerance < 1.0) {
            let what = format!("tolerance is {tolerance}, and must be between 0 and 1");
            return Err(Class::Argument.error(py, what));
        }
        Ok(Comparison { rounds, tolerance })
    }

    /// Measures: the arguments are those of `compare` in `python/mk/_explain.py`.
    pub fn run<'py>(
        self,
        py: Python<'py>,
        arguments: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(py);
        keywords.set_item("rounds", self.rounds)?;
        keywords.set_item("tolerance", self.tolerance)?;
        py.import("mk._explain")?.getattr("compare")?.call(arguments, Some(&keywords))
    }
}

/// Where a process has several ranks.
pub fn several_ranks(py: Python<'_>, ranks: usize) -> PyErr {
    let what = format!(
        "this process has {ranks} ranks, and torch.distributed has one a process: there is nothing to compare with\n  \
         help: run a process per GPU, under torchrun, with World.from_torch(); Plan.explain() explains without \
         measuring"
    );
    Class::Unsupported.error(py, what)
}
