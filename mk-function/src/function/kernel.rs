//! A compiled pipeline on the GPUs of a world, ready to launch.

use crate::error::{ArgumentError, FunctionError, Result};
use mk_abi::{DType, KernelSource, TensorDirection};
use mk_codegen::trace::{self, RankBuffer, Trace};
use mk_runtime::{
    Instance, InstanceOptions, RankTensors, StreamRef, TensorRef, World, jit::Compiled,
};
use mk_syntax::Program;
use std::ops::Range;

/// A tensor of a call: contiguous, row-major, on the GPU of its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Where it is.
    pub tensor: TensorRef,
    /// Element type.
    pub dtype: DType,
    /// Local shape.
    pub shape: Vec<u64>,
}

/// What one rank brings to a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// In the order of the pipeline's parameters.
    pub inputs: Vec<Argument>,
    /// In the order of its results.
    pub outputs: Vec<Argument>,
}

/// A kernel bound to a world, and which of its tensors is which of the pipeline's.
pub struct Kernel {
    instance: Instance,
    /// The ranks of this process.
    ranks: Range<u32>,
    /// Place of each parameter among the kernel's tensors.
    inputs: Vec<usize>,
    /// Place of each result.
    outputs: Vec<usize>,
}

impl Kernel {
    /// Loads a kernel on every rank of this process and allocates its workspace. Collective: every process of the world
    /// must call it, with the same source.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] for a kernel of another pipeline; [`FunctionError::Runtime`].
    pub fn bind(
        world: &World,
        program: &Program,
        source: &KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
    ) -> Result<Kernel> {
        let places = |direction| {
            let all = source.tensors.iter().enumerate();
            all.filter(move |(_, a)| a.direction == direction)
        };
        for (_, arg) in places(TensorDirection::In) {
            if program.tensor(&arg.name).is_none() {
                let what = format!("the pipeline has no tensor `{}`", arg.name);
                return Err(FunctionError::mismatch(what));
            }
        }
        let input = |name: &str| {
            let place = places(TensorDirection::In).find(|(_, a)| a.name == name);
            place.map(|(i, _)| i).ok_or_else(|| {
                FunctionError::mismatch(format!("the kernel does not take `{name}`"))
            })
        };
        let inputs =
            program.tensors().iter().map(|t| input(&t.name)).collect::<Result<Vec<_>, _>>()?;
        let outputs: Vec<usize> = places(TensorDirection::Out).map(|(i, _)| i).collect();
        if outputs.len() != program.results().len() {
            return Err(FunctionError::mismatch("the kernel and the pipeline have other results"));
        }
        let instance = Instance::bind(world, source, compiled, options)?;
        Ok(Kernel { instance, ranks: world.local_ranks(), inputs, outputs })
    }

    /// The kernel that is bound.
    pub fn source(&self) -> &KernelSource {
        self.instance.source()
    }

    /// The runtime's view of it: checks, waits, traces.
    pub fn instance(&mut self) -> &mut Instance {
        &mut self.instance
    }

    pub(super) fn bound(&self) -> &Instance {
        &self.instance
    }

    /// Where parameter `i` of the pipeline is among the kernel's tensors.
    pub fn input(&self, i: usize) -> Option<usize> {
        self.inputs.get(i).copied()
    }

    /// Whether a result may lie in the memory of parameter `i`.
    pub(super) fn replaces(&self, i: usize) -> bool {
        let place = self.input(i).and_then(|place| u32::try_from(place).ok());
        let mut results = self.outputs.iter().filter_map(|o| self.source().tensors.get(*o));
        place.is_some() && results.any(|result| result.in_place == place)
    }

    /// Where the results are among the kernel's tensors.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// Element type and local shape of each result on a rank, with these values of the kernel's run-time dimensions.
    pub fn results(&self, rank: u32, dims: &[u32]) -> Vec<(DType, Vec<u64>)> {
        let shapes = self.source().shapes(rank, dims);
        self.outputs
            .iter()
            .filter_map(|i| Some((self.source().tensors.get(*i)?.dtype, shapes.get(*i)?.clone())))
            .collect()
    }

    /// [`Kernel::results`] of a launch with parameters of these shapes: a rank may have its own number of rows.
    pub fn results_of<S: AsRef<[u64]>>(
        &self,
        rank: u32,
        dims: &[u32],
        shapes: &[S],
    ) -> Vec<(DType, Vec<u64>)> {
        let is_own = |place: &usize| self.source().tensors.get(*place).is_some_and(|t| t.own_rows);
        let mut given = self.inputs.iter().zip(shapes).filter(|(place, _)| is_own(place));
        let own = given.find_map(|(_, shape)| shape.as_ref().first().copied());
        let mut results = self.results(rank, dims);
        for ((_, shape), place) in results.iter_mut().zip(&self.outputs) {
            if let (Some(own), Some(rows)) = (own.filter(|_| is_own(place)), shape.first_mut()) {
                *rows = own;
            }
        }
        results
    }

    /// Local shape of a tensor on a rank, and the extent that comes with the launch.
    fn shape(&self, rank: u32, i: usize, dims: &[u32]) -> (&[u64], Option<(usize, u64)>) {
        let binding = self.source().ranks.get(rank as usize);
        let shape = binding.and_then(|b| b.tensor_shapes.get(i)).map_or(&[][..], Vec::as_slice);
        (shape, self.source().runtime_rows(rank, i, dims))
    }

    /// Enqueues one launch per rank of this process: `streams[i]` and `calls[i]` are those of its i-th rank. Returns at
    /// once; see [`Instance::launch_with`], also for `dims`.
    ///
    /// # Errors
    /// [`FunctionError::Argument`] for tensors that do not fit, with nothing launched; [`FunctionError::Runtime`].
    pub fn launch(&mut self, streams: &[StreamRef], calls: &[Call], dims: &[u32]) -> Result<()> {
        let mut ranks = Vec::with_capacity(calls.len());
        for (rank, call) in self.ranks.clone().zip(calls) {
            ranks.push(self.tensors(rank, call.inputs.iter(), call.outputs.iter(), dims)?);
        }
        Ok(self.instance.launch_with(streams, &ranks, dims)?)
    }

    /// What this process's ranks did in the last launch, after waiting for it. The kernel must have been emitted with
    /// tracing; of other processes' ranks nothing is known.
    ///
    /// # Errors
    /// [`FunctionError::Runtime`] when the launch failed; [`FunctionError::Trace`], also without tracing, and before
    /// the first launch.
    pub fn trace(&mut self) -> Result<Trace> {
        self.instance.synchronize()?;
        let buffers = self.ranks.clone().map(|rank| self.instance.trace(rank));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let sym_stride_bytes = self.instance.symmetric().stride_bytes();
        let all = self.ranks.clone().zip(&buffers);
        let all: Vec<_> =
            all.map(|(rank, bytes)| RankBuffer { rank, bytes, sym_stride_bytes }).collect();
        Ok(trace::read(self.instance.source(), &all)?)
    }

    /// The tensors of a rank in the kernel's order.
    pub(super) fn tensors<'a>(
        &self,
        rank: u32,
        inputs: impl ExactSizeIterator<Item = &'a Argument>,
        outputs: impl ExactSizeIterator<Item = &'a Argument>,
        dims: &[u32],
    ) -> Result<RankTensors, ArgumentError> {
        let mut tensors: Vec<Option<TensorRef>> = vec![None; self.source().tensors.len()];
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        let own = self.inputs.iter().zip(&inputs).find_map(|(place, given)| {
            self.source().tensors.get(*place).filter(|arg| arg.own_rows)?;
            given.shape.first().copied()
        });
        for (places, given, what) in
            [(&self.inputs, inputs.len(), "tensors"), (&self.outputs, outputs.len(), "results")]
        {
            if places.len() != given {
                let names = places.iter().filter_map(|i| self.source().tensors.get(*i));
                let names = names.map(|a| format!("`{}`", a.name)).collect::<Vec<_>>().join(", ");
                return Err(ArgumentError::Count { what, given, expected: places.len(), names });
            }
        }
        for (place, argument) in
            self.inputs.iter().zip(inputs).chain(self.outputs.iter().zip(outputs))
        {
            self.check((rank, own), *place, argument, dims)?;
            if let Some(slot) = tensors.get_mut(*place) {
                *slot = Some(argument.tensor);
            }
        }
        // Every tensor of the kernel is a parameter or a result.
        Ok(RankTensors { tensors: tensors.into_iter().flatten().collect() })
    }

    fn check(
        &self,
        (rank, own): (u32, Option<u64>),
        place: usize,
        given: &Argument,
        dims: &[u32],
    ) -> Result<(), ArgumentError> {
        let Some(arg) = self.source().tensors.get(place) else { return Ok(()) };
        if arg.dtype != given.dtype {
            return Err(ArgumentError::DType {
                tensor: arg.name.clone(),
                expected: arg.dtype,
                given: given.dtype,
                help: format!("bring a tensor of {}", arg.dtype),
            });
        }
        let (shape, decided) = self.shape(rank, place, dims);
        let of_launch = |(d, n): (usize, &u64)| match decided {
            Some((at, extent)) if at == d => extent,
            // More than there is room for are no shape of its.
            _ if d == 0 && arg.own_rows => own.unwrap_or(*n).min(*n),
            _ => *n,
        };
        let expected = shape.iter().enumerate().map(of_launch);
        if expected.clone().eq(given.shape.iter().copied()) {
            return Ok(());
        }
        Err(ArgumentError::Local {
            tensor: arg.name.clone(),
            rank,
            given: given.shape.clone(),
            expected: expected.collect(),
        })
    }
}
