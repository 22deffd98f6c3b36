//! What would run, without a GPU.

use crate::{errors, errors::Class, function::jit, options};
use mk::{
    Bound as Sizes, Program,
    abi::TensorDirection,
    build::{self, Planned},
    function::Signature,
    harness::{Case, CpuOptions, Tolerance, run_on_cpu},
    syntax::Dim,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::sync::Arc;

/// A verified tile plan, and the kernel that is made from it. ``str(plan)`` is the plan's text.
#[pyclass(frozen, module = "mk")]
pub struct Plan {
    program: Program,
    sizes: Sizes,
    planned: Arc<Planned>,
}

impl Plan {
    pub fn new(program: Program, sizes: Sizes, planned: Arc<Planned>) -> Plan {
        Plan { program, sizes, planned }
    }

    /// Values of the kernel's run-time dimensions.
    fn dims(&self) -> Vec<u32> {
        let value = |dim: &mk::abi::RuntimeDim| {
            let symbol = self.program.symbol(&dim.name)?;
            u32::try_from(self.sizes.dim(Dim::Sym(symbol))?).ok()
        };
        let all = self.planned.source.runtime_dims.iter();
        all.map(|dim| value(dim).unwrap_or(dim.max)).collect()
    }
}

/// Checks a pipeline.
pub fn parse(py: Python<'_>, text: &str) -> PyResult<Program> {
    Program::parse(text).map_err(|mistakes| errors::pipeline(py, &mistakes))
}

/// The verified plan of a pipeline, made without a GPU.
///
/// ``shapes`` maps tensors to their global shapes, ``dims`` symbols to their extents; together they must say all
/// sizes. What decides the kernel beside them (``sms`` to ``tail``) is as for ``mk.compile``.
///
/// Raises PipelineError, ArgumentError or UnsupportedError.
#[pyfunction]
#[pyo3(signature = (pipeline, *, ranks, shapes=None, dims=None, sms=None, block=None, chunk_bytes=None, k_slices=None, all_reduce=None,
                    sums=None, split_k=None, tail=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub fn plan(
    py: Python<'_>,
    pipeline: &str,
    ranks: u32,
    shapes: Option<&Bound<'_, PyDict>>,
    dims: Option<&Bound<'_, PyDict>>,
    sms: Option<&Bound<'_, PyDict>>,
    block: Option<[u32; 3]>,
    chunk_bytes: Option<u32>,
    k_slices: Option<u32>,
    all_reduce: Option<&str>,
    sums: Option<&str>,
    split_k: Option<u32>,
    tail: Option<&str>,
) -> PyResult<Plan> {
    let program = parse(py, pipeline)?;
    let given = options::sizes(py, shapes, dims)?;
    let choices =
        options::Choices { sms, block, chunk_bytes, k_slices, all_reduce, sums, split_k, tail };
    let config = options::config(py, ranks, &choices)?;
    let signature = Signature::new(program, ranks, given).map_err(|e| errors::argument(py, &e))?;
    let sizes = signature.bind(&Default::default()).map_err(|e| errors::argument(py, &e))?;
    let planned = py.detach(|| build::plan(signature.program(), &sizes, &config));
    let planned = planned.map_err(|e| errors::function(py, e))?;
    Ok(Plan::new(signature.program().clone(), sizes, Arc::new(planned)))
}

#[pymethods]
impl Plan {
    /// The name of the kernel.
    #[getter]
    fn name(&self) -> &str {
        &self.planned.source.name
    }

    /// Number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.planned.source.world_size
    }

    /// What the verifier proved.
    #[getter]
    fn proof(&self) -> String {
        self.planned.proof.to_string()
    }

    /// The CUDA text, the same on every rank.
    #[getter]
    fn cuda(&self) -> &str {
        &self.planned.source.cuda
    }

    /// Compiles the kernel into the disk cache, where functions of the same kernel find it, unless it is there. Needs NVRTC
    /// and no GPU; takes up to seconds, in which other threads go on.
    ///
    /// Raises CompileError.
    fn compile(&self, py: Python<'_>) -> PyResult<()> {
        let options = jit(py);
        let compiled = py.detach(|| self.planned.compile(&options));
        compiled.map(drop).map_err(|e| errors::function(py, e))
    }

    /// Bytes of symmetric workspace that a rank allocates: the copies that the plan makes, and its signals.
    #[getter]
    fn symmetric_bytes(&self) -> u64 {
        self.planned.source.workspace.symmetric_bytes
    }

    /// Bytes of workspace that a rank allocates for itself.
    #[getter]
    fn scratch_bytes(&self) -> u64 {
        self.planned.source.workspace.scratch_bytes
    }

    /// CTAs of each role.
    #[getter]
    fn roles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for role in &self.planned.source.roles {
            dict.set_item(&role.name, role.ctas)?;
        }
        Ok(dict)
    }

    /// The global shape of each parameter.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for tensor in self.program.tensors() {
            let shape = self.sizes.shape(tensor.id).unwrap_or(&[]);
            dict.set_item(&tensor.name, PyTuple::new(py, shape)?)?;
        }
        Ok(dict)
    }

    /// What a rank holds: ``(inputs, outputs)``, each a dict of names to shapes.
    fn local_shapes<'py>(
        &self,
        py: Python<'py>,
        rank: u32,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let source = &self.planned.source;
        if rank >= source.world_size {
            let what = format!("rank {rank} is not one of {}", source.world_size);
            return Err(Class::Argument.error(py, what));
        }
        let (inputs, outputs) = (PyDict::new(py), PyDict::new(py));
        for (arg, shape) in source.tensors.iter().zip(source.shapes(rank, &self.dims())) {
            let dict = match arg.direction {
                TensorDirection::In => &inputs,
                TensorDirection::Out => &outputs,
            };
            dict.set_item(&arg.name, PyTuple::new(py, shape)?)?;
        }
        Ok((inputs, outputs))
    }

    /// Runs the plan on the CPU executor with random inputs, all ranks, and compares with a dense reference in f64.
    ///
    /// ``schedule`` orders the steps: ``random``, ``reversed``, ``starve:RANK``, ``epoch_apart`` or ``srd``. Returns the
    /// relative error by launch and rank. Meant for small shapes.
    ///
    /// Raises ArgumentError for shapes that take too long, Error for a plan that stops or computes something else.
    #[pyo3(signature = (launches=1, seed=0, schedule="random"))]
    fn simulate(
        &self,
        py: Python<'_>,
        launches: u32,
        seed: u64,
        schedule: &str,
    ) -> PyResult<Vec<Vec<f64>>> {
        if launches == 0 {
            return Err(Class::Argument.error(py, "launches is 0, and must be at least 1"));
        }
        let schedule = schedule
            .parse()
            .map_err(|what| Class::Argument.error(py, format!("schedule: {what}")))?;
        let options = CpuOptions { schedule, seed, launches };
        let ranks = self.planned.source.world_size as usize;
        let run = py.detach(|| {
            let case = Case { program: &self.program, bound: &self.sizes, ranks };
            run_on_cpu(case, &self.planned.plan, &options)
        });
        let run = run.map_err(|e| errors::harness(py, e))?;
        let tolerance = Tolerance::default();
        for (launch, norms) in run.norms.iter().enumerate() {
            if let Some(rank) = norms.iter().position(|n| !tolerance.accepts(n)) {
                let what = format!(
                    "the plan computes something else than the pipeline: launch {}, rank {rank}: {:?}",
                    launch + 1,
                    norms[rank]
                );
                return Err(Class::Error.error(py, what));
            }
        }
        Ok(run.norms.iter().map(|ranks| ranks.iter().map(|n| n.global).collect()).collect())
    }

    fn __str__(&self) -> String {
        self.planned.plan.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<mk.Plan {} on {} ranks>", self.name(), self.ranks())
    }
}
