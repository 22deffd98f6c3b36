//! Kernels on the GPUs of this process, with inputs made and results judged on the GPUs.

mod reference;
mod sample;
mod timing;

pub use timing::Timing;

use super::{Case, HarnessError, Inputs, Norms, cpu::worse};
use mk_abi::{KernelSource, TensorDirection};
use mk_runtime::{
    DeviceTensor, Graph, Instance, InstanceOptions, RankTensors, Reference, Stream, World,
    jit::{Compiled, JitOptions},
};
use mk_syntax::{Tensor, ValueId};

/// Where a launch's tensors are: by rank, in argument order.
type Arguments = Vec<Vec<DeviceTensor>>;

/// A kernel bound to a world, and everything that it takes to launch it and to judge what it leaves behind.
pub struct Session<'a> {
    // Before the instance, which must outlive what captured it.
    graphs: Vec<Graph>,
    instance: Instance,
    streams: Vec<Stream>,
    world: World,
    source: &'a KernelSource,
    case: Case<'a>,
    seed: u64,
    arguments: Arguments,
    reference: Reference,
    jit: JitOptions,
}

impl<'a> Session<'a> {
    /// Binds a kernel and allocates its tensors.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] for a kernel of another pipeline, or a world of several processes; [`HarnessError::Runtime`].
    pub fn bind(
        world: &World,
        case: Case<'a>,
        source: &'a KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
        seed: u64,
    ) -> Result<Session<'a>, HarnessError> {
        for arg in source.tensors.iter().filter(|a| a.direction == TensorDirection::In) {
            if case.program.tensor(&arg.name).is_none() {
                let what = format!("the pipeline has no tensor `{}`", arg.name);
                return Err(HarnessError::mismatch(what));
            }
        }
        let outputs = source.tensors.iter().filter(|a| a.direction == TensorDirection::Out);
        if outputs.count() != case.program.results().len() {
            return Err(HarnessError::mismatch("the kernel and the pipeline have other results"));
        }
        if world.local_ranks() != (0..world.size()) {
            return Err(HarnessError::mismatch("a session needs all ranks in this process"));
        }
        let jit = JitOptions::default();
        Ok(Session {
            graphs: Vec::new(),
            instance: Instance::bind(world, source, compiled, options)?,
            streams: Stream::per_rank(world)?,
            world: world.clone(),
            source,
            case,
            seed,
            arguments: allocate(world, source)?,
            reference: Reference::new(world, &jit)?,
            jit,
        })
    }

    /// Fills the inputs for a launch, which counts from 1, and the outputs with NaN.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`].
    pub fn fill(&self, launch: u64) -> Result<(), HarnessError> {
        self.fill_arguments(&self.arguments, launch)
    }

    fn fill_arguments(&self, arguments: &Arguments, launch: u64) -> Result<(), HarnessError> {
        let inputs = self.inputs();
        for (rank, tensors) in arguments.iter().enumerate() {
            for (tensor, arg) in tensors.iter().zip(&self.source.tensors) {
                match self.case.program.tensor(&arg.name) {
                    _ if tensor.elements() == 0 => {}
                    Some(param) if arg.direction == TensorDirection::In => {
                        let seed = inputs.seed(launch, param, rank);
                        self.reference.fill_random(tensor, seed, 1.0)?;
                    }
                    _ => tensor.poison()?,
                }
            }
        }
        Ok(())
    }

    /// Launches on every rank and waits.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`]: a fault names the wait that did not end.
    pub fn launch(&mut self) -> Result<(), HarnessError> {
        let streams: Vec<_> = self.streams.iter().map(Stream::as_ref).collect();
        if self.graphs.is_empty() {
            self.instance.launch(&streams, &ranks(&self.arguments))?;
        }
        for (graph, stream) in self.graphs.iter_mut().zip(&streams) {
            graph.launch(*stream)?;
        }
        let mut finished = Ok(());
        for stream in &self.streams {
            finished = finished.and(stream.synchronize());
        }
        // A fault record says more than the driver's status.
        self.instance.synchronize()?;
        Ok(finished?)
    }

    /// Captures a launch: later ones replay it.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`].
    pub fn capture(&mut self) -> Result<(), HarnessError> {
        let streams: Vec<_> = self.streams.iter().map(Stream::as_ref).collect();
        let instance = &mut self.instance;
        let arguments = ranks(&self.arguments);
        self.graphs = Graph::capture(&self.streams, || instance.launch(&streams, &arguments))?;
        Ok(())
    }

    /// The error of each rank against an fp32 reference on the same GPU; the worst of all results.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for pipelines that the reference does not compute; [`HarnessError::Runtime`].
    pub fn norms(&self) -> Result<Vec<Norms>, HarnessError> {
        let none = Norms { global: 0.0, worst_tile: 0.0, worst_at: (0, 0), nonfinite: 0 };
        let mut norms = vec![none; self.case.ranks];
        let expected = reference::evaluate(self)?;
        for (result, by_rank) in self.outputs().zip(&expected) {
            for ((rank, want), worst) in by_rank.iter().enumerate().zip(&mut norms) {
                let got = result.1.get(rank).copied();
                if let Some(got) = got.filter(|t| t.elements() > 0) {
                    *worst = worse(*worst, self.reference.error(got, want)?);
                }
            }
        }
        Ok(norms)
    }

    /// The relative error of some rows of each result, against f64 on the host, by rank; 0 for a rank that owns none of
    /// them.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes; [`HarnessError::Runtime`].
    pub fn sampled_rows(&self, launch: u64, count: usize) -> Result<Vec<f64>, HarnessError> {
        sample::rows(self, launch, count)
    }

    fn inputs(&self) -> Inputs<'a> {
        Inputs::new(self.case, self.seed)
    }

    /// Each result, and the tensor that holds it, by rank.
    fn outputs(&self) -> impl Iterator<Item = (ValueId, Vec<&DeviceTensor>)> {
        let args = self.source.tensors.iter().enumerate();
        let places = args.filter(|(_, a)| a.direction == TensorDirection::Out).map(|(i, _)| i);
        let held = |i: usize| self.arguments.iter().filter_map(|t| t.get(i)).collect();
        self.case.program.results().iter().copied().zip(places.map(held))
    }

    /// The tensor that holds a parameter.
    fn held(&self, rank: usize, param: &Tensor) -> Option<&DeviceTensor> {
        let is = |a: &mk_abi::TensorArg| a.direction == TensorDirection::In && a.name == param.name;
        let i = self.source.tensors.iter().position(is)?;
        self.arguments.get(rank)?.get(i)
    }
}

fn allocate(world: &World, source: &KernelSource) -> Result<Arguments, HarnessError> {
    let mut all = Vec::new();
    for (rank, binding) in world.local_ranks().zip(&source.ranks) {
        let args = source.tensors.iter().zip(&binding.tensor_shapes);
        let tensors = args.map(|(arg, shape)| DeviceTensor::new(world, rank, arg.dtype, shape));
        all.push(tensors.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(all)
}

fn ranks(arguments: &Arguments) -> Vec<RankTensors> {
    arguments.iter().map(RankTensors::new).collect()
}
