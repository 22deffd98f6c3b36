//! Kernels on the GPUs of this process, with inputs made and results judged on the GPUs.

mod bench;
mod grouped;
mod reference;
mod sample;
mod setting;
mod timing;

pub use bench::{Bench, measure};
pub use timing::Timing;

use crate::{
    Case, HarnessError, Held, Inputs, Norms, Result, Routing, Tolerance, grid::Grid, judge::worse,
    routing,
};
use mk_abi::{KernelSource, TensorArg, TensorDirection};
use mk_codegen::{plan::Mesh, trace::Trace};
use mk_function::Kernel;
use mk_runtime::{
    DeviceTensor, Graph, Instance, InstanceOptions, RankTensors, Reference, Stream, World,
    jit::{Compiled, JitOptions},
};
use mk_syntax::{Bound, Tensor, ValueId};

/// Where a launch's tensors are: by rank, in argument order.
type Arguments = Vec<Vec<DeviceTensor>>;

/// A kernel bound to a world, and everything that it takes to launch it and to judge what it leaves behind.
pub struct Session<'a> {
    // Before the kernel, which must outlive what captured it.
    graphs: Vec<Graph>,
    kernel: Kernel,
    streams: Vec<Stream>,
    world: World,
    source: &'a KernelSource,
    case: Case<'a>,
    grid: Grid,
    seed: u64,
    routing: Routing,
    /// Values of the kernel's run-time dimensions.
    dims: Vec<u32>,
    arguments: Arguments,
    reference: Reference,
    jit: JitOptions,
}

impl<'a> Session<'a> {
    /// Binds a kernel and allocates its tensors.
    ///
    /// # Errors
    /// [`HarnessError::Function`], for a kernel of another pipeline among others; [`HarnessError::Mismatch`] for a
    /// world of several processes; [`HarnessError::Runtime`].
    pub fn bind(
        world: &World,
        case: Case<'a>,
        source: &'a KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
        seed: u64,
    ) -> Result<Session<'a>> {
        if world.local_ranks() != (0..world.size()) {
            return Err(HarnessError::mismatch("a session needs all ranks in this process"));
        }
        if source.tensors.iter().any(|t| t.own_rows) {
            let what = "each rank's own number of rows on GPUs: run it on the executor (`--device cpu`), or by \
                `mk.compile`";
            return Err(HarnessError::unsupported(what));
        }
        let jit = JitOptions::default();
        let dims = dims(case, source)?;
        let grid = Grid::along_one(case.ranks);
        Ok(Session {
            graphs: Vec::new(),
            kernel: Kernel::bind(world, case.program, source, compiled, options)?,
            streams: Stream::per_rank(world)?,
            world: world.clone(),
            source,
            case,
            grid,
            seed,
            routing: Routing::default(),
            arguments: allocate(world, source, &dims)?,
            dims,
            reference: Reference::new(world, &jit)?,
            jit,
        })
    }

    /// The same, of a world whose ranks form this mesh: of a pipeline over several of its axes, or not over all.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] for another mesh.
    pub fn over(self, mesh: &Mesh) -> Result<Session<'a>> {
        let grid = Grid::new(self.case, mesh)?;
        Ok(Session { grid, ..self })
    }

    /// Goes on with rows of experts of this form.
    pub fn route(&mut self, routing: Routing) {
        self.routing = routing;
    }

    /// Goes on with other values for the kernel's run-time dimensions, in tensors of their sizes; drops captured
    /// launches.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`].
    pub fn rebind(&mut self, bound: &'a Bound) -> Result<()> {
        self.graphs.clear();
        self.case.bound = bound;
        self.dims = dims(self.case, self.source)?;
        self.arguments = allocate(&self.world, self.source, &self.dims)?;
        Ok(())
    }

    /// Fills the inputs for a launch, which counts from 1, and the outputs with NaN.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`].
    pub fn fill(&self, launch: u64) -> Result<()> {
        self.fill_arguments(&self.arguments, launch)
    }

    fn fill_arguments(&self, arguments: &Arguments, launch: u64) -> Result<()> {
        let given = |rank| {
            let (group, place) = self.grid.of(rank);
            (self.inputs(group), place)
        };
        fill(&self.reference, given, self.source, arguments, launch)
    }

    /// Launches on every rank and waits.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`]: a fault names the wait that did not end.
    pub fn launch(&mut self) -> Result<()> {
        let streams: Vec<_> = self.streams.iter().map(Stream::as_ref).collect();
        if self.graphs.is_empty() {
            let dims = &self.dims;
            self.kernel.instance().launch_with(&streams, &ranks(&self.arguments), dims)?;
        }
        for (graph, stream) in self.graphs.iter_mut().zip(&streams) {
            graph.launch(*stream)?;
        }
        let mut finished = Ok(());
        for stream in &self.streams {
            finished = finished.and(stream.synchronize());
        }
        // A fault record says more than the driver's status.
        self.kernel.instance().synchronize()?;
        Ok(finished?)
    }

    /// What every rank did in the last launch, also in one that was timed.
    ///
    /// # Errors
    /// [`HarnessError::Function`], for a kernel without tracing among others.
    pub fn trace(&mut self) -> Result<Trace> {
        Ok(self.kernel.trace()?)
    }

    /// The kernel as it is bound, for what its launches leave in its workspace.
    pub fn instance(&mut self) -> &mut Instance {
        self.kernel.instance()
    }

    /// Captures a launch: later ones replay it.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`].
    pub fn capture(&mut self) -> Result<()> {
        let streams: Vec<_> = self.streams.iter().map(Stream::as_ref).collect();
        let instance = self.kernel.instance();
        let arguments = ranks(&self.arguments);
        let dims = &self.dims;
        self.graphs =
            Graph::capture(&self.streams, || instance.launch_with(&streams, &arguments, dims))?;
        Ok(())
    }

    /// The error of each rank against an fp32 reference on the same GPU, over all elements; the worst of all results. A
    /// right one is within [`Session::tolerance`].
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for pipelines that the reference does not compute; [`HarnessError::Runtime`].
    pub fn norms(&self) -> Result<Vec<Norms>> {
        let mut norms = vec![Norms::NONE; self.grid.world];
        let setting = self.setting()?;
        let expected = reference::evaluate(&setting)?;
        for (result, by_rank) in self.outputs().zip(&expected) {
            for ((rank, want), worst) in by_rank.iter().enumerate().zip(&mut norms) {
                let got = result.1.get(rank).copied();
                let Some(got) = got.filter(|t| t.elements() > 0) else { continue };
                let error = match routing::counts_of(self.case.program, result.0) {
                    None => error(&self.reference, got, want)?,
                    Some(counts) => {
                        let of = |t| grouped::masked(&setting, rank, counts, t);
                        let own = grouped::own_rows(&setting, rank, counts)?;
                        self.reference.error(&of(got)?, &of(want)?, Some(&own))?
                    }
                };
                *worst = worse(*worst, error);
            }
        }
        Ok(norms)
    }

    /// What errors of the inputs' pipeline pass as [`Session::norms`].
    ///
    /// # Errors
    /// As [`Tolerance::new`].
    pub fn tolerance(&self) -> Result<Tolerance> {
        Tolerance::of(self.inputs(0))
    }

    /// What ranks hold after the last launch, one after the other: inputs and results.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`], of each by itself.
    pub fn held(&self) -> impl Iterator<Item = Result<Held>> {
        let ranks = self.arguments.iter().enumerate();
        ranks.flat_map(|(rank, tensors)| {
            let named = self.source.tensors.iter().zip(tensors);
            named.map(move |(arg, tensor)| held(rank, arg, tensor))
        })
    }

    /// Of a group along the pipeline's axes.
    fn inputs(&self, group: usize) -> Inputs<'a> {
        self.grid.inputs(self.case, self.seed, group).routed(self.routing)
    }

    /// Each result, and the tensor that holds it, by rank.
    fn outputs(&self) -> impl Iterator<Item = (ValueId, Vec<&DeviceTensor>)> {
        let places = self.kernel.outputs().iter().copied();
        let held = |i: usize| self.arguments.iter().filter_map(|t| t.get(i)).collect();
        self.case.program.results().iter().copied().zip(places.map(held))
    }

    fn setting(&self) -> Result<setting::Setting<'_>> {
        let (case, kernel) = (self.case, &self.kernel);
        let inputs =
            self.arguments.iter().map(|t| inputs(case, kernel, t)).collect::<Result<_, _>>()?;
        let (world, grid, reference) = (&self.world, &self.grid, &self.reference);
        Ok(setting::Setting { world, case, grid, reference, inputs })
    }
}

/// The error of a tensor; of integers none, or no number.
fn error(reference: &Reference, got: &DeviceTensor, want: &DeviceTensor) -> Result<Norms> {
    if !got.dtype().is_integer() {
        return Ok(reference.error(got, want, None)?);
    }
    let exact = got.download_integers()?.into_iter().map(|n| n as f32).eq(want.download_f32()?);
    Ok(Norms { global: if exact { 0.0 } else { f64::INFINITY }, ..Norms::NONE })
}

/// What a rank holds of one of a kernel's arguments.
fn held(rank: usize, arg: &TensorArg, tensor: &DeviceTensor) -> Result<Held> {
    let values = match tensor.elements() {
        0 => Vec::new(),
        _ if arg.dtype.is_integer() => {
            tensor.download_integers()?.into_iter().map(|n| n as f32).collect()
        }
        _ => tensor.download_f32()?,
    };
    Ok(Held {
        name: arg.name.clone(),
        rank,
        input: arg.direction == TensorDirection::In,
        shape: tensor.shape().to_vec(),
        dtype: arg.dtype,
        values,
    })
}

/// A rank's tensors in the order of the pipeline's parameters.
fn inputs<'t>(
    case: Case<'_>,
    kernel: &Kernel,
    tensors: &'t [DeviceTensor],
) -> Result<Vec<&'t DeviceTensor>> {
    let held = |param: &Tensor| {
        let tensor = kernel.input(param.id.index()).and_then(|i| tensors.get(i));
        let what = || HarnessError::mismatch(format!("the kernel does not take `{}`", param.name));
        tensor.ok_or_else(what)
    };
    case.program.tensors().iter().map(held).collect()
}

/// Values of a kernel's run-time dimensions in a case.
fn dims(case: Case<'_>, source: &KernelSource) -> Result<Vec<u32>> {
    let value = |dim: &mk_abi::RuntimeDim| {
        let symbol = case.program.symbol(&dim.name).map(mk_syntax::Dim::Sym);
        let value = symbol.and_then(|s| case.bound.dim(s)).and_then(|v| u32::try_from(v).ok());
        value.ok_or_else(|| HarnessError::mismatch(format!("the pipeline has no `{}`", dim.name)))
    };
    source.runtime_dims.iter().map(value).collect()
}

fn allocate(world: &World, source: &KernelSource, dims: &[u32]) -> Result<Arguments> {
    let mut all = Vec::new();
    for rank in world.local_ranks() {
        let shapes = source.shapes(rank, dims);
        let args = source.tensors.iter().zip(&shapes);
        let tensors = args.map(|(arg, shape)| DeviceTensor::new(world, rank, arg.dtype, shape));
        all.push(tensors.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(all)
}

/// Inputs of a launch, and outputs of NaN. A rank is given what a place has of some inputs.
fn fill<'a>(
    reference: &Reference,
    given: impl Fn(usize) -> (Inputs<'a>, usize),
    source: &KernelSource,
    arguments: &Arguments,
    launch: u64,
) -> Result<()> {
    for (rank, tensors) in arguments.iter().enumerate() {
        let (inputs, place) = given(rank);
        for (tensor, arg) in tensors.iter().zip(&source.tensors) {
            match inputs.case().program.tensor(&arg.name) {
                _ if tensor.elements() == 0 => {}
                Some(param) if arg.direction == TensorDirection::In && arg.dtype.is_integer() => {
                    let all = inputs.integers(launch, param, place);
                    tensor.upload_integers(&all.into_iter().map(i64::from).collect::<Vec<_>>())?;
                }
                Some(param) if arg.direction == TensorDirection::In => {
                    let seed = inputs.seed(launch, param, place);
                    reference.fill_random(tensor, seed, 1.0)?;
                }
                _ => tensor.poison()?,
            }
        }
    }
    Ok(())
}

fn ranks(arguments: &Arguments) -> Vec<RankTensors> {
    arguments.iter().map(RankTensors::new).collect()
}
