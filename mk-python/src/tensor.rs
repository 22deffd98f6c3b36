//! What a launch needs to know of torch tensors.

use crate::errors::Class;
use mk::{
    abi::DType,
    function::Argument,
    runtime::{StreamRef, TensorRef},
};
use pyo3::{
    exceptions::PyException,
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyList, PyTuple},
};
use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{Mutex, MutexGuard},
};

/// Where the tensors of a rank must be.
#[derive(Clone, Copy)]
pub enum Home {
    Anywhere,
    Cpu,
    Gpu(i32),
}

/// What is used of torch.
pub struct Torch {
    dtypes: Vec<(DType, Py<PyAny>)>,
    empty: Py<PyAny>,
    inductor: Option<Inductor>,
    is_grad_enabled: Py<PyAny>,
    current_stream: Py<PyAny>,
    /// The current stream's handle, without an object for it, as torch's Inductor asks for it; not in every torch.
    raw_stream: Option<Py<PyAny>>,
    /// Streams' objects by device and handle, where handles are asked for. torch has some dozens for the life of the
    /// process, and a foreign one is nothing but its handle.
    streams: Mutex<HashMap<(i32, usize), Py<PyAny>>>,
    is_capturing: Py<PyAny>,
    /// Tells autograd that a tensor was written in place; not in every torch.
    increment_version: Option<Py<PyAny>>,
}

/// How torch's Inductor has memory made, which takes a third of the time of `torch.empty`; not in every torch.
struct Inductor {
    /// `(shape, strides, dtype)`, on the current GPU.
    empty_strided: Py<PyAny>,
    current_device: Py<PyAny>,
}

/// The handle of the stream that torch works on unless it is told another one.
const DEFAULT_STREAM: usize = 0;

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// Imports torch the first time.
    pub fn get(py: Python<'_>) -> PyResult<&'static Torch> {
        TORCH.get_or_try_init(py, || {
            let torch = py.import("torch")?;
            let cuda = torch.getattr("cuda")?;
            let of = |name: &str| torch.getattr(name).map(Bound::unbind);
            let raw_stream =
                torch.getattr("_C").and_then(|c| c.getattr("_cuda_getCurrentRawStream"));
            let inductor = || -> PyResult<Inductor> {
                let c = torch.getattr("_C")?;
                let empty_strided =
                    c.getattr("_dynamo")?.getattr("guards")?.getattr("_empty_strided_cuda")?;
                Ok(Inductor {
                    empty_strided: empty_strided.unbind(),
                    current_device: c.getattr("_cuda_getDevice")?.unbind(),
                })
            };
            Ok(Torch {
                // Those that this torch has.
                dtypes: DType::ALL
                    .iter()
                    .filter_map(|d| Some((*d, of(d.format().torch).ok()?)))
                    .collect(),
                empty: of("empty")?,
                inductor: inductor().ok(),
                is_grad_enabled: of("is_grad_enabled")?,
                current_stream: cuda.getattr("current_stream")?.unbind(),
                raw_stream: raw_stream.ok().map(Bound::unbind),
                streams: Mutex::default(),
                is_capturing: cuda.getattr("is_current_stream_capturing")?.unbind(),
                increment_version: torch
                    .getattr("autograd")
                    .and_then(|a| a.getattr("graph")?.getattr("increment_version"))
                    .ok()
                    .map(Bound::unbind),
            })
        })
    }

    /// Whether the current stream is being captured into a graph.
    pub fn is_capturing(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_capturing.bind(py).call0()?.is_truthy()
    }

    /// Whether operations are recorded for a backward pass.
    pub fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_grad_enabled.bind(py).call0()?.is_truthy()
    }

    /// A result that is to have a gradient would have none of what is written to it. Of a list, each.
    pub fn refuse_gradient(&self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = out.py();
        if let Ok(list) = out.cast::<PyList>() {
            return list.iter().try_for_each(|one| self.refuse_gradient(&one));
        }
        if let Ok(list) = out.cast::<PyTuple>() {
            return list.iter().try_for_each(|one| self.refuse_gradient(&one));
        }
        let wants = out.getattr_opt(intern!(py, "requires_grad"))?;
        let wants = wants.map(|w| w.is_truthy()).transpose()?;
        if wants == Some(true) && self.is_grad_enabled(py)? {
            let what = "`out` requires a gradient, and none is recorded here\n  help: pass a tensor without, or call \
                under torch.no_grad()";
            return Err(Class::Argument.error(py, what));
        }
        Ok(())
    }

    /// Tells autograd that a result was written in place: a function that saved it for its backward pass fails there.
    pub fn written(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        match &self.increment_version {
            Some(increment) => increment.bind(tensor.py()).call1((tensor,)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The current stream of a GPU for a launch, and, unless it is the default one, as torch's object, for
    /// `record_stream`.
    pub fn stream<'py>(
        &self,
        py: Python<'py>,
        device: i32,
    ) -> PyResult<(Option<Bound<'py, PyAny>>, StreamRef)> {
        let known = match &self.raw_stream {
            Some(raw_stream) => match raw_stream.bind(py).call1((device,))?.extract()? {
                DEFAULT_STREAM => Some((None, DEFAULT_STREAM)),
                raw => {
                    let streams = self.streams();
                    streams.get(&(device, raw)).map(|s| (Some(s.bind(py).clone()), raw))
                }
            },
            None => None,
        };
        let (stream, raw) = match known {
            Some(known) => known,
            None => {
                let stream = self.current_stream.bind(py).call1((device,))?;
                let raw: usize = stream.getattr(intern!(py, "cuda_stream"))?.extract()?;
                if self.raw_stream.is_some() {
                    self.streams().insert((device, raw), stream.clone().unbind());
                }
                ((raw != DEFAULT_STREAM).then_some(stream), raw)
            }
        };
        // SAFETY: torch works in primary contexts, `device` is the rank's, and torch keeps its streams for the life of
        // the process; a foreign stream (torch.cuda.ExternalStream) is kept alive by its owner.
        let handle = unsafe { StreamRef::from_raw(raw as *mut c_void) };
        Ok((stream, handle))
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<(i32, usize), Py<PyAny>>> {
        self.streams.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A new tensor, contents undefined.
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        dtype: DType,
        shape: &[u64],
        device: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some((_, torch_dtype)) = self.dtypes.iter().find(|(d, _)| *d == dtype) else {
            return Err(
                Class::Error.error(py, format!("torch tensors of {dtype} are not made here"))
            );
        };
        if let Some(inductor) = &self.inductor
            && inductor.current_device.bind(py).call0()?.extract::<i32>()? == device
        {
            let mut strides = vec![1; shape.len()];
            for i in (1..shape.len()).rev() {
                strides[i - 1] = strides[i] * shape[i].max(1);
            }
            let arguments = (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?, torch_dtype);
            return inductor.empty_strided.bind(py).call1(arguments);
        }
        let options = PyDict::new(py);
        options.set_item(intern!(py, "dtype"), torch_dtype)?;
        options.set_item(intern!(py, "device"), device)?;
        self.empty.bind(py).call((PyTuple::new(py, shape)?,), Some(&options))
    }

    /// Reads a tensor that must be contiguous and at home. `wanted` is for messages.
    pub fn read(
        &self,
        name: &str,
        wanted: DType,
        home: Home,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<Argument> {
        let py = tensor.py();
        let wrong = |what: String| Class::Argument.error(py, format!("`{name}` {what}"));
        let class = || tensor.get_type().fully_qualified_name();
        let Some(pointer) = tensor.getattr_opt(intern!(py, "data_ptr"))? else {
            return Err(wrong(format!("is a {}, and must be a torch.Tensor", class()?)));
        };
        let pointer = match pointer.call0() {
            Ok(pointer) => pointer,
            // An interrupt is not the tensor's.
            Err(cause) if !cause.is_instance_of::<PyException>(py) => return Err(cause),
            Err(cause) => {
                let error = wrong(match self.layout(tensor)? {
                    Some(layout) => format!(
                        "is a sparse tensor ({layout}), and must be a dense one\n  help: pass {name}.to_dense()"
                    ),
                    None => format!("is a {} whose memory cannot be read: {cause}", class()?),
                });
                error.set_cause(py, Some(cause));
                return Err(error);
            }
        };
        let shape = tensor.getattr(intern!(py, "shape"))?;
        let shape: Vec<u64> = match shape.cast::<PyTuple>() {
            Ok(shape) => shape.iter().map(|d| d.extract()).collect::<PyResult<_>>()?,
            Err(_) => shape.extract()?,
        };
        let pointer: u64 = pointer.extract()?;
        if pointer == 0 && !shape.contains(&0) {
            let place = tensor.getattr(intern!(py, "device"))?.str()?;
            let class = class()?;
            return Err(wrong(match place.to_str()? {
                "meta" => format!(
                    "is on meta, without memory of its own\n  help: torch.empty_like({name}, device=..) has some"
                ),
                _ => format!(
                    "is a {class} without memory of its own\n  help: pass the local tensor, as {name}.to_local() of a \
                     DTensor"
                ),
            }));
        }
        self.at_home(name, home, tensor)?;
        let dtype = self.dtype(py, name, wanted, tensor)?;
        if !tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
            let strides: Vec<i64> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
            return Err(wrong(format!(
                "is not contiguous: shape {shape:?}, strides {strides:?}\n  help: pass {name}.contiguous(), made once \
                 outside the loop; a transposed weight is best kept as the product wants it"
            )));
        }
        let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| n.checked_mul(dtype.size_bytes()));
        let bytes =
            bytes.ok_or_else(|| wrong(format!("has shape {shape:?}, which is too large")))?;
        if !pointer.is_multiple_of(16) {
            return Err(wrong(format!(
                "is at {pointer:#x}, which is not a multiple of 16 bytes\n  help: a part of another tensor may begin \
                 anywhere, a copy of it ({name}.clone()) does not"
            )));
        }
        // SAFETY: a contiguous tensor of this shape on the rank's GPU; `function.rs` keeps it until the launch is
        // enqueued, and torch's allocator after that (`record_stream`).
        let tensor = unsafe { TensorRef::from_raw(pointer, bytes) };
        Ok(Argument { tensor, dtype, shape })
    }

    /// Checks that a tensor is where those of its rank must be.
    fn at_home(&self, name: &str, home: Home, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        let (is_there, wanted, call) = match home {
            Home::Anywhere => return Ok(()),
            Home::Gpu(device) => {
                let is = tensor.call_method0(intern!(py, "get_device"))?.extract::<i32>()?;
                if is == device {
                    return Ok(());
                }
                let wanted = format!("the rank's GPU is cuda:{device}");
                (false, wanted, format!("to(\"cuda:{device}\")"))
            }
            Home::Cpu => {
                let place = tensor.getattr(intern!(py, "device"))?.str()?;
                let wanted = "the tensors of this world are on the CPU".to_string();
                (place.to_str()? == "cpu", wanted, "cpu()".to_string())
            }
        };
        if is_there {
            return Ok(());
        }
        let place = tensor.getattr(intern!(py, "device"))?.str()?;
        let what = format!(
            "`{name}` is on {place}, and {wanted}\n  help: move it there once, with {name}.{call}"
        );
        Err(Class::Argument.error(py, what))
    }

    /// The layout of a tensor that is not dense.
    fn layout(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let layout = tensor.getattr_opt(intern!(tensor.py(), "layout"))?;
        let layout = layout.map(|l| l.str()?.extract::<String>()).transpose()?;
        Ok(layout.filter(|l| l != "torch.strided"))
    }

    fn dtype(
        &self,
        py: Python<'_>,
        name: &str,
        wanted: DType,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<DType> {
        let given = tensor.getattr(intern!(py, "dtype"))?;
        if let Some((dtype, _)) = self.dtypes.iter().find(|(_, d)| given.is(d)) {
            return Ok(*dtype);
        }
        let what = format!(
            "`{name}` is {}, and the pipeline says {wanted}\n  help: convert it",
            given.str()?
        );
        Err(Class::Argument.error(py, what))
    }
}
