//! Weights in eight bits, as they lie and turned: see [`mk::runtime::weights`].

use crate::{errors, options::jit, tensor::Torch};
use mk::runtime::weights::{Weight, Weights};
use pyo3::prelude::*;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// By GPU, once it is compiled.
static LOADED: Mutex<BTreeMap<i32, Weights>> = Mutex::new(BTreeMap::new());

/// Enqueues the kernel on torch's current stream. ``sizes`` are matrices, rows and columns; ``memory`` has addresses of
/// the weight, of values and factors, and of both turned.
#[pyfunction]
#[pyo3(name = "_quantize_weight")]
pub fn quantize_weight(
    py: Python<'_>,
    device: i32,
    sizes: [u64; 3],
    memory: [u64; 5],
) -> PyResult<()> {
    let known = || LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known().get(&device).cloned();
    let weights = match found {
        Some(weights) => weights,
        None => {
            let options = jit(py);
            let made = py.detach(|| Weights::new(device, &options));
            let made = made.map_err(|e| errors::runtime(py, &e))?;
            known().entry(device).or_insert(made).clone()
        }
    };
    let (_, stream) = Torch::get(py)?.stream(py, device)?;
    let ([matrices, rows, columns], [x, values, factors, turned, turned_factors]) = (sizes, memory);
    let weight = Weight { x, values, factors, turned, turned_factors, matrices, rows, columns };
    // A full queue makes a launch wait, perhaps for a rank that another thread launches.
    // SAFETY: `_on_gpu` of mk._float8 passes contiguous tensors of the device, bf16, e4m3 and f32 of these sizes;
    // torch's allocator keeps them for its current stream. Their alignment is checked.
    py.detach(|| unsafe { weights.quantize(weight, stream) }).map_err(|e| errors::runtime(py, &e))
}
