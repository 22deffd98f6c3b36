//! An order of packed documents that gives ranks equal work.

use crate::errors::Class;
use pyo3::prelude::*;

/// The order, and the most work of a rank by the mean.
#[pyfunction]
#[pyo3(name = "_balance")]
pub fn balance(py: Python<'_>, cu_seqlens: Vec<i32>, ranks: u32) -> PyResult<(Vec<usize>, f64)> {
    let found = py.detach(|| mk::balance(&cu_seqlens, ranks));
    let found = found.map_err(|e| Class::Argument.error(py, format!("cu_seqlens: {e}")))?;
    Ok((found.order.clone(), found.ratio()))
}
