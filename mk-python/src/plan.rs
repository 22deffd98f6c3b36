//! What would run, without a GPU.

use crate::{errors, errors::Class, interrupt, numbers, options, program, source::Source};
use mk::{
    Bound as Sizes, Program,
    abi::TensorDirection,
    build::{self, Composition, Making, Planned},
    cost::{self, DeviceModel, Gpu},
    draw,
    emit::Options as EmitOptions,
    function::{Signature, Wiring},
    kept::{Proofs, Prove},
    plan::Plan as TilePlan,
    runtime::jit::JitOptions,
    settings,
    sim::{Options, Schedule},
    simulate,
    syntax::Dim,
    trace,
    tune::{self, Cache, Choice, Fuse, Fusion, Reason, Verdict},
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::{collections::BTreeMap, sync::Arc};

/// A verified tile plan, and the kernel that is made from it; or those of a pipeline's parts, one after the other.
/// ``str(plan)`` is the plan's text.
#[pyclass(frozen, module = "mk")]
pub struct Plan {
    signature: Signature,
    sizes: Sizes,
    made: Arc<Composition>,
    /// The GPU that it was made for, where there is one.
    gpu: Option<Gpu>,
}

impl Plan {
    pub fn new(
        signature: Signature,
        sizes: Sizes,
        made: Arc<Composition>,
        gpu: Option<Gpu>,
    ) -> Plan {
        Plan { signature, sizes, made, gpu }
    }

    fn program(&self) -> &Program {
        self.signature.program()
    }

    /// Values of a kernel's run-time dimensions.
    fn dims(&self, py: Python<'_>, planned: &Planned) -> PyResult<Vec<u32>> {
        let value = |dim: &mk::abi::RuntimeDim| {
            let symbol = self.program().symbol(&dim.name).map(Dim::Sym);
            let value = symbol.and_then(|s| self.sizes.dim(s)).and_then(|n| u32::try_from(n).ok());
            let what = || format!("internal error: dimension `{}` has no value", dim.name);
            value.ok_or_else(|| Class::Error.error(py, what()))
        };
        planned.source.runtime_dims.iter().map(value).collect()
    }

    fn plans(&self) -> Vec<&TilePlan> {
        self.made.kernels.iter().map(|k| &k.plan).collect()
    }

    /// The GPU that it was made for, or an H200.
    fn gpu(&self) -> Gpu {
        self.gpu.clone().unwrap_or_else(|| DeviceModel::h200().gpu.as_str().into())
    }

    /// The figures of that GPU.
    fn model(&self) -> Result<DeviceModel, String> {
        let (gpu, cache) = (self.gpu(), Cache::new(&JitOptions::default()));
        let (model, _) = tune::model_of(&gpu, cache.as_ref());
        model.ok_or_else(|| format!("there are no figures of {}", gpu.name))
    }

    /// Something of each kernel, a line each.
    fn lines<T: std::fmt::Display>(&self, of: impl Fn(&Planned) -> T) -> String {
        let all: Vec<String> = self.made.kernels.iter().map(|k| of(k).to_string()).collect();
        all.join("\n")
    }

    /// Bytes that the tensors between parts take on a rank; the first has the most.
    fn between_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let wiring = Wiring::new(self.program(), &self.made.parts).ok_or_else(|| {
            Class::Error.error(py, "internal error: the kernels are not of this pipeline's parts")
        })?;
        let all = wiring.tensors(&self.signature, &self.sizes, 0).into_iter();
        Ok(all.map(|(dtype, shape)| dtype.size_bytes() * shape.iter().product::<u64>()).sum())
    }
}

/// Checks a pipeline.
pub fn parse(py: Python<'_>, text: &str) -> PyResult<Program> {
    Program::parse(text).map_err(|mistakes| errors::pipeline(py, &mistakes))
}

/// The verified plan of a pipeline, a text or the path of a `.mk` file, made without a GPU.
///
/// ``ranks`` is a number, or a dict of a mesh's axes to the ranks along each, the last one's side by side.
/// ``shapes`` maps tensors to their global shapes, ``dims`` symbols to their extents; together with the sizes at the
/// head of a file they must say all. ``settings`` are as for ``mk.compile``, and the defaults where they are not given.
/// ``fuse`` is too, but for its default: one kernel.
///
/// Raises PipelineError, ArgumentError or UnsupportedError.
#[pyfunction]
#[pyo3(signature = (pipeline, *, ranks, shapes=None, dims=None, settings=None, fuse="always"))]
pub fn plan(
    py: Python<'_>,
    pipeline: &Bound<'_, PyAny>,
    ranks: &Bound<'_, PyAny>,
    shapes: Option<&Bound<'_, PyDict>>,
    dims: Option<&Bound<'_, PyDict>>,
    settings: Option<&Bound<'_, PyAny>>,
    fuse: &str,
) -> PyResult<Plan> {
    let source = Source::new(py, pipeline)?;
    let program = source.parse(py)?;
    let on = options::Ranks::new(ranks)?;
    let given = source.with_head(py, &program, options::sizes(py, shapes, dims)?)?;
    let config = options::Given::new(py, on.clone(), settings)?.config;
    let signature = Signature::on(program, on.ranks, &on.mesh, given);
    let signature = signature.map_err(|e| errors::argument(py, &e))?;
    let sizes = signature.bind(&Default::default()).map_err(|e| errors::argument(py, &e))?;
    let fuse = options::fuse(py, fuse)?;
    let program = signature.program();
    let made = py.detach(|| {
        let terms = tune::Conditions { config: &config, fuse, overlap: false, search: None };
        let choice = match fuse {
            Fuse::Always => {
                let verdict = Verdict::new(Fusion::Fused, Reason::Asked);
                Choice { verdict, configs: vec![config.clone()] }
            }
            _ => tune::settle(program, &sizes, &terms),
        };
        let making = Making { program, bound: &sizes, emission: Default::default() };
        let proofs = Proofs::new(&JitOptions::default(), Prove::default());
        Composition::with(making, &choice, &proofs)
    });
    let made = made.map_err(|e| errors::function(py, e))?;
    Ok(Plan::new(signature, sizes, Arc::new(made), None))
}

#[pymethods]
impl Plan {
    /// The name of the kernel; of several, that of the pipeline.
    #[getter]
    fn name(&self) -> &str {
        match self.made.kernels.as_slice() {
            [planned] => &planned.source.name,
            _ => self.program().name(),
        }
    }

    /// Number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.signature.ranks()
    }

    /// What the verifier proved, of each kernel.
    #[getter]
    fn proof(&self) -> String {
        self.lines(|k| k.proof.to_string())
    }

    /// The CUDA text of each kernel, the same on every rank.
    #[getter]
    fn cuda(&self) -> String {
        self.lines(|k| k.source.cuda.clone())
    }

    /// Whether it is one kernel or several, why, and the times that decided it, in words.
    #[getter]
    fn verdict(&self) -> String {
        self.made.verdict.to_string()
    }

    /// Whether it is one kernel for the whole pipeline.
    #[getter]
    fn fused(&self) -> bool {
        self.made.verdict.made == Fusion::Fused
    }

    /// The operations of each kernel, in the order in which they are launched.
    #[getter]
    fn kernels(&self) -> Vec<String> {
        let whole: Vec<_> = self.program().nodes().iter().map(|n| n.op.name()).collect();
        match self.made.parts.as_slice() {
            [] => vec![whole.join(" -> ")],
            parts => parts.iter().map(|p| p.name.clone()).collect(),
        }
    }

    /// Compiles the kernel, or each, into the disk cache, where functions of the same kernel find it, unless it is
    /// there. Needs NVRTC and no GPU; takes up to seconds, in which other threads go on.
    ///
    /// Raises CompileError.
    fn compile(&self, py: Python<'_>) -> PyResult<()> {
        let options = options::jit(py);
        let compiled = py.detach(|| self.made.compile(&options));
        compiled.map(drop).map_err(|e| errors::function(py, e))
    }

    /// Bytes of symmetric workspace that a rank allocates: the copies that the plan makes, and its signals.
    #[getter]
    fn symmetric_bytes(&self) -> u64 {
        self.made.kernels.iter().map(|k| k.source.workspace.symmetric_bytes).sum()
    }

    /// Bytes of workspace that a rank allocates for itself, with what lies between kernels.
    #[getter]
    fn scratch_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let kernels = self.made.kernels.iter().map(|k| k.source.workspace.scratch_bytes);
        Ok(kernels.sum::<u64>() + self.between_bytes(py)?)
    }

    /// CTAs of each role; of several kernels, as ``"NAME.ROLE"``.
    #[getter]
    fn roles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for source in self.made.kernels.iter().map(|k| &k.source) {
            let before = format!("{}.", source.name);
            let before = if self.made.parts.is_empty() { "" } else { &before };
            for role in &source.roles {
                dict.set_item(format!("{before}{}", role.name), role.ctas)?;
            }
        }
        Ok(dict)
    }

    /// The settings of each kernel, in the order of launches: names to text, as ``mk.compile`` takes them.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let mut kernels = Vec::new();
        for (i, config) in self.made.configs.iter().enumerate() {
            let facts = match self.made.parts.get(i) {
                Some(part) => tune::facts_of(&part.program, &part.bound, config),
                None => tune::facts_of(self.program(), &self.sizes, config),
            };
            let dict = PyDict::new(py);
            let text = settings::write(config, &facts);
            for (name, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
                dict.set_item(name, value)?;
            }
            kernels.push(dict);
        }
        Ok(kernels)
    }

    /// The global shape of each parameter.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for tensor in self.program().tensors() {
            let shape = program::shape(py, &self.sizes, tensor.id)?;
            dict.set_item(&tensor.name, PyTuple::new(py, shape)?)?;
        }
        Ok(dict)
    }

    /// What a rank holds: ``(inputs, outputs)``, each a dict of names to shapes.
    fn local_shapes<'py>(
        &self,
        py: Python<'py>,
        rank: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let rank = numbers::whole(rank, "rank", 0..=u64::from(self.ranks()) - 1)? as u32;
        let (inputs, outputs) = (PyDict::new(py), PyDict::new(py));
        if let ([], [planned]) = (self.made.parts.as_slice(), self.made.kernels.as_slice()) {
            let shapes = planned.source.shapes(rank, &self.dims(py, planned)?);
            for (arg, shape) in planned.source.tensors.iter().zip(shapes) {
                let dict = match arg.direction {
                    TensorDirection::In => &inputs,
                    TensorDirection::Out => &outputs,
                };
                dict.set_item(&arg.name, PyTuple::new(py, shape)?)?;
            }
            return Ok((inputs, outputs));
        }
        for tensor in self.program().tensors() {
            let shape = self.signature.local_shape(&self.sizes, tensor.id, rank);
            inputs.set_item(&tensor.name, PyTuple::new(py, shape)?)?;
        }
        let results = self.signature.results(&self.sizes, rank);
        for (name, (_, shape)) in self.program().result_names().iter().zip(results) {
            outputs.set_item(name, PyTuple::new(py, shape)?)?;
        }
        Ok((inputs, outputs))
    }

    /// Milliseconds that the cost model predicts for all kernels, one after the other, on the GPU that the plan was
    /// made for, or an H200; None where it has no figures of it, or of a kernel.
    #[getter]
    fn predicted_ms(&self, py: Python<'_>) -> Option<f64> {
        py.detach(|| {
            let model = self.model().ok()?;
            self.plans().iter().map(|plan| Some(cost::predict(plan, &model).ok()?.ms())).sum()
        })
    }

    /// A picture of the tile plan: roles are lanes, task families boxes, signals arrows. Several kernels stand below
    /// each other. Notebooks show it for a plan.
    fn svg(&self) -> String {
        draw::stacked(&self.plans())
    }

    fn _repr_svg_(&self) -> String {
        self.svg()
    }

    /// A page that needs nothing else: the picture, which zooms, and the plan's text; with ``timeline`` the predicted
    /// timeline instead, by rank and role, down to single CTAs, on the GPU that it was made for, or an H200.
    ///
    /// Raises UnsupportedError for a timeline of several kernels, or of one that the cost model does not know.
    #[pyo3(signature = (*, timeline=false))]
    fn html(&self, py: Python<'_>, timeline: bool) -> PyResult<String> {
        if !timeline {
            return Ok(draw::html(&self.plans()));
        }
        let unsupported = |what: String| Class::Unsupported.error(py, what);
        let ([_], [config]) = (self.made.kernels.as_slice(), self.made.configs.as_slice()) else {
            let what = "a timeline is of one kernel, and these are several\n  help: fuse=\"always\", or a plan of \
                each part";
            return Err(unsupported(what.into()));
        };
        let page = py.detach(|| {
            let model = self.model()?;
            let emission = EmitOptions { trace: true };
            let planned = build::plan_with(self.program(), &self.sizes, config, emission)
                .map_err(|e| e.to_string())?;
            let prediction = cost::predict(&planned.plan, &model).map_err(|e| e.to_string())?;
            let trace = tune::timeline(&planned.plan, &planned.source, &prediction);
            trace.map(|t| trace::html(&t, None)).ok_or_else(|| "it is not traced".to_string())
        });
        page.map_err(unsupported)
    }

    /// Runs the plan, or each, on the CPU executor: one launch of all ranks, in this process, without a GPU. Meant for
    /// small shapes.
    ///
    /// ``inputs`` has a dict for each rank, from a parameter's name to what the rank holds of it: a flat list of
    /// numbers, row-major, which are rounded to the parameter's type; of integers, whole numbers up to 2^24.
    /// ``schedule`` orders the steps: ``random``, ``reversed``, ``starve:RANK``, ``epoch_apart`` or ``srd``; ``seed``
    /// is that of chance. Returns a dict for each rank, from a result's name to what it holds of it.
    ///
    /// Raises ArgumentError for tensors that do not fit and shapes that take too long, Error for a plan that stops.
    #[pyo3(signature = (inputs, *, seed=None, schedule="random"), text_signature = "($self, inputs, *, seed=0, schedule=\"random\")")]
    fn simulate(
        &self,
        py: Python<'_>,
        inputs: Vec<BTreeMap<String, Bound<'_, PyAny>>>,
        seed: Option<&Bound<'_, PyAny>>,
        schedule: &str,
    ) -> PyResult<Vec<BTreeMap<String, Vec<f32>>>> {
        let schedule = schedule
            .parse()
            .map_err(|what| Class::Argument.error(py, format!("schedule: {what}")))?;
        let seed = seed.map_or(Ok(0), |seed| numbers::whole(seed, "seed", 0..=u64::MAX))?;
        let ranks = self.ranks() as usize;
        if let Schedule::Starve(rank) = schedule
            && rank >= ranks
        {
            let what =
                format!("schedule: there is no rank {rank}; the ranks are 0 to {}", ranks - 1);
            return Err(Class::Argument.error(py, what));
        }
        let mut ordered = Vec::with_capacity(inputs.len());
        for (rank, mut given) in (0..).zip(inputs) {
            let mut list = Vec::new();
            for (i, tensor) in self.program().tensors().iter().enumerate() {
                let Some(values) = given.remove(&tensor.name) else { continue };
                let values = numbers::list(&values, &format!("rank {rank}: `{}`", tensor.name))?;
                let checked = self.signature.check_integers(i, rank, values.iter().copied());
                checked.map_err(|e| errors::argument(py, &e))?;
                list.push(values.into_iter().map(|x| x as f32).collect());
            }
            if let Some(name) = given.keys().next() {
                let known = self.signature.parameters();
                let what = format!("rank {rank}: there is no parameter `{name}`, but {known}");
                return Err(Class::Argument.error(py, what));
            }
            ordered.push(list);
        }
        let options = Options { schedule, seed, ..Options::default() };
        let (signature, sizes, made) =
            (self.signature.clone(), self.sizes.clone(), self.made.clone());
        let run = interrupt::detached(py, move || {
            simulate(&signature, &sizes, &made, &ordered, &options)
        })?;
        let results = run.map_err(|e| errors::function(py, e))?;
        let named = |held: Vec<Vec<f32>>| {
            self.program().result_names().iter().cloned().zip(held).collect::<BTreeMap<_, _>>()
        };
        Ok(results.into_iter().map(named).collect())
    }

    /// What `mk explain` prints for it: where its settings come from, how long it should take and what bounds it, other
    /// settings, and the same as separate kernels. By the figures of the GPU that it was made for, of an H200 if there
    /// is none.
    ///
    /// ``Function.explain`` also measures.
    fn explain(&self, py: Python<'_>) -> String {
        py.detach(|| {
            let (gpu, cache) = (self.gpu(), Cache::new(&JitOptions::default()));
            let by = (&gpu, cache.as_ref());
            tune::explain_made(self.program(), &self.sizes, self.ranks(), &self.made, by)
        })
    }

    /// The checked pipeline: ``{"values": [...], "results": [(name, value), ...]}``, where a value is a position in the
    /// list, and each comes after its ``inputs``. Each is a dict: ``op`` ("parameter", or the operation's name),
    /// ``inputs``, ``dtype``, ``shape`` (global), ``placement`` (("shard", dim), ("replicate", None) or ("partial",
    /// None)); ``name`` of a parameter, ``dim`` of gather and reduce_scatter, ``a_transposed`` and ``b_transposed`` of
    /// gemm, ``factor`` of scale, ``eps`` of rmsnorm.
    #[getter(program)]
    fn program_data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        program::data(py, self.program(), &self.sizes)
    }

    fn __str__(&self) -> String {
        self.lines(|k| k.plan.to_string())
    }

    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __repr__(&self) -> String {
        format!("<mk.Plan {} on {}>", self.name(), mk::abi::count(self.ranks(), "rank"))
    }
}
