//! Device memory that holds one number everywhere, as torch takes it in.

use crate::{
    errors::{self, Class},
    world::{Place, World},
};
use mk::runtime::mem::DeviceBuffer;
use pyo3::{prelude::*, types::PyDict};

/// Words of 32 bits on the GPU of this process' first rank, outside torch's memory: neither a capture nor the pool of a
/// graph is concerned by them.
#[pyclass(frozen, name = "_Constant", module = "mk")]
pub struct Constant {
    buffer: DeviceBuffer,
}

#[pymethods]
impl Constant {
    /// Raises DeviceError for a world without GPUs, out of memory among others.
    #[new]
    fn new(py: Python<'_>, world: &World, word: u32, n: u64) -> PyResult<Constant> {
        let place = world.place();
        let Place::Gpus(gpus) = place else {
            return Err(Class::Device.error(py, "a world without GPUs has no memory on one"));
        };
        let rank = place.local().start;
        let made = py.detach(|| DeviceBuffer::of_words(gpus, rank, word, n));
        Ok(Constant { buffer: made.map_err(|e| errors::runtime(py, &e))? })
    }

    /// As the CUDA Array Interface has it, version 3.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let about = PyDict::new(py);
        about.set_item("shape", (self.buffer.size_bytes() / 4,))?;
        about.set_item("typestr", "<i4")?;
        about.set_item("data", (self.buffer.ptr(), false))?;
        about.set_item("version", 3)?;
        Ok(about)
    }
}
