//! Functions of torch tensors.

use crate::{
    errors::{self, Class},
    explain::{self, Comparison},
    interrupt::release,
    options::{self, jit},
    plan::{Plan, parse},
    tensor::Torch,
    world::{Place, World},
};
use mk::{
    build::{Composition, Making},
    cost::Gpu,
    function::{self as core, Call, FunctionError, FunctionOptions, Signature, Tuning},
    kept::{Proofs, Prove},
    runtime::{InstanceOptions, StreamRef, jit::JitOptions},
    settings::Config,
    tune::{self, Fuse},
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

/// A pipeline as a function of torch tensors. Made by ``mk.compile``.
///
/// Calling it takes one tensor for each parameter, by position or by name, on the rank's GPU, contiguous, of the
/// pipeline's dtype and of the shape of the rank's part. It enqueues one kernel on torch's current stream, or one for
/// each part (``fuse``), and returns the result, or ``out``. Nothing is copied but what the plan copies into its own
/// workspace, nothing waits.
///
/// The first call with new shapes compiles and binds, which all ranks must do together; ``bind`` does it ahead. No
/// gradients are recorded: call it under ``torch.no_grad()``, or within a ``torch.autograd.Function``.
///
/// Inside ``torch.cuda.graph`` it must be bound before. Keep it while the graph is used; its workspace is then kept
/// until ``close()`` or the end of the process.
///
/// In a world of several ranks in one process each argument is a list with one tensor per rank, and so is the result.
///
/// A kernel that gave up (a peer that never came, say) raises FaultError at the next call, ``check`` or
/// ``synchronize``.
#[pyclass(frozen, weakref, module = "mk")]
pub struct Function {
    pub(crate) signature: Signature,
    world: Py<World>,
    offline: Offline,
    /// Nothing offline, and after `close`. Never locked while attached to the interpreter: who binds holds it and waits
    /// for other ranks.
    core: Mutex<Option<core::Function>>,
    /// Whether a caller has heard of a failure.
    told: AtomicBool,
    closed: AtomicBool,
}

/// What decides a plan that is made without GPUs.
struct Offline {
    config: Config,
    fuse: Fuse,
    overlap: bool,
    prove: Prove,
}

/// A function of torch tensors from the text of a pipeline. Nothing is compiled yet: see ``Function``.
///
/// ``shapes`` maps tensors to global shapes and ``dims`` symbols to extents. Neither is needed while shards are even:
/// the global shape then follows from the tensors.
///
/// ``settings`` says how the kernel is made: a dict of names to ``str`` or ``int`` (``{"block": "128x128x64",
/// "split_k": 2}``), or the text that `mk explain` prints (``"block=128x128x64 split_k=2"``). ``mk.SETTINGS`` lists
/// them; all ranks must pass the same. With ``tuning``, and no settings given, they are those that `mk tune` measured
/// to be the best, else those that the cost model takes for the best; rank 0 chooses for all.
///
/// ``wait_limit_s`` bounds each wait inside the kernel, ``entry_limit_s`` the wait for a rank to launch,
/// ``reserve_sms`` keeps SMs free. With ``overlap`` launches of different functions do not wait for each other, if
/// their CTAs fit the GPU together. ``fuse`` says whether the pipeline becomes one kernel: ``"always"``; ``"never"``,
/// as a kernel for each operation with the elementwise ones that follow it, where it comes apart; or ``"auto"``, as the
/// faster of the two by what was measured or predicted, and as one where settings are given, with ``overlap``, or where
/// neither is known. ``Plan.verdict`` says what came of it. With ``prove="cached"`` a plan that this very build of mk
/// has proved before is not proved again; ``"always"`` proves it, and searches settings, in every process.
///
/// Raises PipelineError with all mistakes of the text, or ArgumentError.
#[pyfunction]
#[pyo3(signature = (pipeline, world, *, shapes=None, dims=None, settings=None, wait_limit_s=30.0, entry_limit_s=600.0, reserve_sms=0,
                    overlap=false, tuning=true, fuse="auto", prove="cached"))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub fn compile(
    py: Python<'_>,
    pipeline: &str,
    world: Py<World>,
    shapes: Option<&Bound<'_, PyDict>>,
    dims: Option<&Bound<'_, PyDict>>,
    settings: Option<&Bound<'_, PyAny>>,
    wait_limit_s: f64,
    entry_limit_s: f64,
    reserve_sms: u32,
    overlap: bool,
    tuning: bool,
    fuse: &str,
    prove: &str,
) -> PyResult<Function> {
    let program = parse(py, pipeline)?;
    let place = world.get().place();
    let on = options::Ranks { ranks: place.size(), mesh: world.get().mesh().to_vec() };
    let given = options::Given::new(py, on.clone(), settings)?;
    let reserve_sms = given.reserve_sms(py, reserve_sms)?;
    let options = FunctionOptions {
        sizes: options::sizes(py, shapes, dims)?,
        fuse: options::fuse(py, fuse)?,
        prove: options::prove(py, prove)?,
        tuning: if tuning && !given.any() { Tuning::Auto } else { Tuning::Off },
        config: given.config,
        jit: jit(py),
        instance: InstanceOptions {
            wait_limit: options::seconds(py, "wait_limit_s", wait_limit_s)?,
            entry_limit: options::seconds(py, "entry_limit_s", entry_limit_s)?,
            reserve_sms,
            overlap,
            ..InstanceOptions::default()
        },
        ..FunctionOptions::default()
    };
    let sizes = options.sizes.clone();
    let signature = Signature::on(program.clone(), on.ranks, &on.mesh, sizes);
    let signature = signature.map_err(|e| errors::argument(py, &e))?;
    let offline = Offline {
        config: Config { reserved_sms: reserve_sms, ..options.config.clone() },
        fuse: options.fuse,
        overlap: options.instance.overlap,
        prove: options.prove,
    };
    let core = match place {
        Place::Gpus(world) => Some(
            core::Function::new(world, program, options).map_err(|e| errors::function(py, e))?,
        ),
        Place::Offline { .. } | Place::Reference { .. } => None,
    };
    let (core, told, closed) = (Mutex::new(core), AtomicBool::default(), AtomicBool::default());
    Ok(Function { signature, world, offline, core, told, closed })
}

impl Function {
    pub(crate) fn place(&self) -> &Place {
        self.world.get().place()
    }

    /// The first GPU of this process, where there is one.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match self.place() {
            Place::Gpus(world) => tune::gpu_of(world, world.local_ranks().start).ok(),
            Place::Offline { .. } | Place::Reference { .. } => None,
        }
    }

    /// Works on the function in the crate `mk`, detached.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::Function) -> Result<T, FunctionError> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| self.lock().as_mut().map(work));
        match result {
            Some(result) => result.map_err(|e| {
                if errors::is_fault(&e) {
                    self.told.store(true, Ordering::Relaxed);
                }
                errors::function(py, e)
            }),
            None => Err(self.nowhere(py)),
        }
    }

    /// Why nothing runs.
    fn nowhere(&self, py: Python<'_>) -> PyErr {
        let what = match (self.open(py), self.place()) {
            (Err(closed), _) => return closed,
            (_, Place::Reference { .. }) => "the world computes on CPU tensors",
            _ => "the world is offline",
        };
        let how = "make it by World.from_torch(), World.from_env() or World.local(n)";
        Class::Device.error(py, format!("{what}: {how}"))
    }

    /// Raises where it was closed.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<()> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(Class::Error.error(py, "the function was closed")),
            false => Ok(()),
        }
    }

    /// Whether it computes nothing itself, so that there is nothing to wait for.
    fn idle(&self) -> bool {
        matches!(self.place(), Place::Reference { .. })
    }

    /// Frees it, detached, and says what nobody has heard.
    fn end(&self, py: Python<'_>, core: Option<core::Function>) -> PyResult<()> {
        if mk::runtime::world::forked() {
            // What it has of the GPU is its parent's.
            std::mem::forget(core);
            return Ok(());
        }
        let outcome = py.detach(|| {
            let outcome = core.map_or(Ok(()), |mut core| core.synchronize());
            outcome.map_err(|e| (!self.told.swap(true, Ordering::Relaxed)).then_some(e))
        });
        match outcome {
            Err(Some(error)) => Err(errors::function(py, error)),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<core::Function>> {
        // A panic elsewhere leaves a function whose instances check themselves.
        self.core.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[pymethods]
impl Function {
    #[pyo3(signature = (*args, out=None, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Place::Gpus(_) = self.place() else {
            // Says what does not fit before it says that nothing runs here.
            self.checked(py, args, out.as_ref(), kwargs)?;
            return Err(self.nowhere(py));
        };
        let given = self.arguments(py, args, kwargs)?;
        let torch = Torch::get(py)?;
        let mut calls = self.read(py, torch, &given)?;
        if let Some(out) = &out {
            torch.refuse_gradient(out)?;
        }
        let local = self.place().local();
        let shapes = shapes(&calls);
        let results = |function: &core::Function, which| {
            let ranks = local.clone().zip(&shapes);
            ranks.map(|(rank, own)| function.results_of(which, rank, own)).collect::<Vec<_>>()
        };
        let found = self.with(py, |function| {
            let which = function.find(&shapes)?;
            Ok(which.map(|which| (which, results(function, which))))
        })?;
        let (which, results) = match found {
            Some(found) => found,
            None if torch.is_capturing(py)? => {
                let what = "a first call with these shapes cannot be captured, because it allocates\n  help: call the \
                            function once, or bind it, before torch.cuda.graph";
                return Err(Class::Error.error(py, what));
            }
            None => self.with(py, |function| {
                let which = function.specialise(&shapes)?;
                Ok((which, results(function, which)))
            })?,
        };
        drop(shapes);
        let outputs = self.outputs(py, torch, out.as_ref(), &results)?;
        self.read_outputs(torch, &outputs, &results, &mut calls)?;
        if out.is_some() {
            self.check_outputs(py, &results, &calls)?;
        }
        let streams = local.map(|rank| torch.stream(py, self.place().gpu(py, rank)?));
        let streams: Vec<_> = streams.collect::<PyResult<_>>()?;
        let handles: Vec<StreamRef> = streams.iter().map(|(_, handle)| *handle).collect();
        // The kernel runs later, and not on the default stream: torch must not give the memory away before. Also if the
        // launch fails, which it may behind some of its kernels.
        for ((stream, _), (inputs, outputs)) in streams.iter().zip(given.iter().zip(&outputs)) {
            let Some(stream) = stream else { continue };
            for object in inputs.iter().chain(outputs) {
                object.call_method1(pyo3::intern!(py, "record_stream"), (stream,))?;
            }
        }
        self.with(py, |function| function.launch(which, &handles, &calls))?;
        match out {
            Some(out) => {
                outputs.iter().flatten().try_for_each(|one| torch.written(one))?;
                Ok(out)
            }
            None => self.gathered(py, outputs),
        }
    }

    /// What a call checks, without the call. Returns the global extent of each symbol.
    #[pyo3(name = "_check", signature = (*args, out=None, **kwargs))]
    fn check_call<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let sizes = self.checked(py, args, out.as_ref(), kwargs)?;
        self.by_name(py, &sizes)
    }

    /// The global extent of each symbol, from local shapes of this process's rank.
    #[pyo3(name = "_infer")]
    fn infer<'py>(&self, py: Python<'py>, shapes: Vec<Vec<u64>>) -> PyResult<Bound<'py, PyDict>> {
        let first = self.place().local().start;
        let sizes = self.signature.infer(first, &[shapes]);
        self.by_name(py, &sizes.map_err(|e| errors::argument(py, &e))?)
    }

    /// Compiles and binds ahead of the first call, unless that was done: loads the kernel and allocates its workspace.
    /// Collective: every rank calls it, in the same order as its other first calls.
    ///
    /// ``shapes`` (global) and ``dims`` add to those given to ``compile``. Returns the plan.
    ///
    /// Raises ArgumentError for sizes that are missing or do not fit, UnsupportedError, CompileError, DeviceError,
    /// RendezvousError.
    #[pyo3(signature = (*, shapes=None, dims=None))]
    fn bind(
        &self,
        py: Python<'_>,
        shapes: Option<&Bound<'_, PyDict>>,
        dims: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Plan> {
        let more = options::sizes(py, shapes, dims)?;
        let sizes = self.signature.bind(&more).map_err(|e| errors::argument(py, &e))?;
        let made = match self.place() {
            Place::Offline { .. } | Place::Reference { .. } => {
                self.open(py)?;
                let (program, own) = (self.signature.program(), &self.offline);
                let terms = tune::Conditions {
                    config: &own.config,
                    fuse: own.fuse,
                    overlap: own.overlap,
                    search: None,
                };
                let made = py.detach(|| {
                    let choice = tune::settle(program, &sizes, &terms);
                    let making = Making { program, bound: &sizes, emission: Default::default() };
                    let proofs = Proofs::new(&JitOptions::default(), own.prove);
                    Composition::with(making, &choice, &proofs)
                });
                Some(Arc::new(made.map_err(|e| errors::function(py, e))?))
            }
            Place::Gpus(_) => self.with(py, |function| {
                let which = function.bind(&sizes)?;
                Ok(function.composition(which).cloned())
            })?,
        };
        let made = made.ok_or_else(|| Class::Error.error(py, "nothing was bound"))?;
        Ok(Plan::new(self.signature.clone(), sizes, made, self.gpu()))
    }

    /// Chooses, proves and compiles for these global shapes what the first call with them binds, which finds it in the
    /// caches. Not collective; what fails here is told there.
    fn _prepare(&self, py: Python<'_>, shapes: &Bound<'_, PyDict>) -> PyResult<()> {
        let more = options::sizes(py, Some(shapes), None)?;
        let sizes = self.signature.bind(&more).map_err(|e| errors::argument(py, &e))?;
        self.with(py, |function| {
            // The call says what is wrong, on all ranks.
            let _ = function.prepare(&sizes);
            Ok(())
        })
    }

    /// Why it takes as long as it does on these tensors, as an ``Explanation``: ``str()`` of it is what `mk explain`
    /// prints, and what was measured here beside the same operations one by one in torch: ``torch.mm`` (cuBLAS), NCCL
    /// through ``torch.distributed``, elementwise operations. Collective; needs a process per GPU, and the default
    /// process group with NCCL where there are several. Binds first if need be; takes some tenths of a second, and 256
    /// MiB beside the results.
    ///
    /// ``rounds`` launches of each count, in turn, on caches that were flushed. Each result is compared: ``tolerance``
    /// bounds the relative difference over the whole, and four times that over each tile.
    ///
    /// Raises what a call raises; UnsupportedError for several GPUs in one process and on a mesh, RendezvousError
    /// without such a process group, Error where the two compute different things.
    #[pyo3(signature = (*args, rounds=20, tolerance=1e-2, **kwargs))]
    fn explain<'py>(
        this: &Bound<'py, Function>,
        args: &Bound<'py, PyTuple>,
        rounds: u32,
        tolerance: f64,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, slf) = (this.py(), this.get());
        let comparison = Comparison::new(py, rounds, tolerance)?;
        let given = slf.arguments(py, args, kwargs)?;
        if !slf.world.get().mesh().is_empty() {
            let what = "operations one by one in torch are over all ranks, and this world's are along several axes\n  \
                help: Plan.explain() explains without measuring";
            return Err(Class::Unsupported.error(py, what));
        }
        let local = slf.place().local();
        let [tensors] = given.as_slice() else {
            return Err(explain::several_ranks(py, local.len()));
        };
        let torch = Torch::get(py)?;
        let calls = slf.read(py, torch, &given)?;
        let shapes = shapes(&calls);
        let sizes = slf.signature.infer(local.start, &shapes);
        let sizes = sizes.map_err(|e| errors::argument(py, &e))?;
        if let Place::Gpus(_) = slf.place()
            && torch.is_capturing(py)?
        {
            let what = "the stream is being captured, and times are not: explain outside of torch.cuda.graph";
            return Err(Class::Error.error(py, what));
        }
        let (made, text) = slf.with(py, |function| {
            let which = function.specialise(&shapes)?;
            let text = function.explain(which, &sizes)?;
            Ok((function.composition(which).cloned(), text))
        })?;
        let made = made.ok_or_else(|| Class::Error.error(py, "nothing was bound"))?;
        let plan = Plan::new(slf.signature.clone(), sizes, made, slf.gpu());
        comparison.run(py, (this, plan, text, PyList::new(py, tensors)?, local.start))
    }

    /// Raises FaultError if a kernel gave up. Does not wait.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.idle() { self.open(py) } else { self.with(py, core::Function::check) }
    }

    /// Waits for the last launch, and raises FaultError if a kernel gave up. Replays of graphs are waited for by
    /// ``torch.cuda.synchronize()``, with ``check()`` after it.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        if self.idle() { self.open(py) } else { self.with(py, core::Function::synchronize) }
    }

    /// Waits for the GPUs and frees kernels and workspaces. Graphs that captured it must not be replayed afterwards.
    ///
    /// Raises FaultError, behind that, if a kernel gave up and nobody has heard of it: what was computed with its
    /// results is undefined.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.closed.store(true, Ordering::Relaxed);
        let core = py.detach(|| self.lock().take());
        self.end(py, core)
    }

    /// What was bound so far, in that order: a plan for each set of sizes. ``Plan.verdict`` says whether it is one
    /// kernel.
    #[getter]
    fn plans(&self, py: Python<'_>) -> Vec<Plan> {
        py.detach(|| {
            let gpu = self.gpu();
            let core = self.lock();
            let Some(function) = core.as_ref() else { return Vec::new() };
            let plan = |which| {
                let (sizes, made) = (function.sizes(which)?.clone(), function.composition(which)?);
                Some(Plan::new(self.signature.clone(), sizes, made.clone(), gpu.clone()))
            };
            function.specialisations().filter_map(plan).collect()
        })
    }

    /// The names of the parameters.
    #[getter]
    fn parameters(&self) -> Vec<String> {
        self.signature.program().tensors().iter().map(|t| t.name.clone()).collect()
    }

    fn __repr__(&self) -> String {
        let name = self.signature.program().name();
        let parameters = self.parameters().join(", ");
        let ranks = mk::abi::count(self.signature.ranks(), "rank");
        format!("<mk.Function {name}({parameters}) on {ranks}>")
    }
}

/// Functions that were captured and dropped. A graph may still be replayed: their workspace stays.
static KEPT: Mutex<Vec<core::Function>> = Mutex::new(Vec::new());

impl Drop for Function {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        let Some(core) = core else { return };
        if core.captured() {
            KEPT.lock().unwrap_or_else(|e| e.into_inner()).push(core);
            return;
        }
        let mut core = Some(core);
        Python::try_attach(|py| {
            if let Err(error) = self.end(py, core.take()) {
                // Nobody is left to raise it to.
                error.write_unraisable(py, None);
            }
        });
    }
}

/// Frees functions that were kept for their graphs; called at the end of the process.
#[pyfunction]
#[pyo3(name = "_close_kept")]
pub fn close_kept() {
    // Who drops another one meanwhile, attached, must not wait for the lock while this waits to be attached.
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(|e| e.into_inner()));
    release(kept);
}

/// The local shapes of a call, borrowed.
pub(crate) fn shapes(calls: &[Call]) -> Vec<Vec<&[u64]>> {
    calls.iter().map(|c| c.inputs.iter().map(|a| &*a.shape).collect()).collect()
}
