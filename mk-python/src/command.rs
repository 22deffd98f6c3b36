//! The `mk` command, in this process.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command with these words, and returns its exit status. A second call in a process keeps the first one's
/// log level.
#[pyfunction]
#[pyo3(name = "_command")]
pub fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| mk_cli::run(words, crate::log::to_command))
}
