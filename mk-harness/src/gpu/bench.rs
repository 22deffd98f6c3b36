//! Many kernels of one pipeline on the same inputs: made once, judged by one reference, timed one beside the other.

use super::{Arguments, allocate, dims, fill, inputs, ranks, reference};
use crate::{
    function::Kernel,
    harness::{Case, HarnessError, Inputs, Norms, cpu::worse},
};
use mk_abi::{KernelSource, TensorArg, TensorDirection};
use mk_runtime::{
    DeviceTensor, Reference, Stream, World,
    bench::{Gate, median},
    jit::JitOptions,
};

/// Sets of tensors that launches take in turn, so that none finds its inputs in a cache.
const SETS: u64 = 3;

/// Inputs of three launches, and what the first of them must give. Kernels come and go.
pub struct Bench<'a> {
    case: Case<'a>,
    /// What every kernel takes, in its order.
    tensors: Vec<TensorArg>,
    dims: Vec<u32>,
    sets: Vec<Arguments>,
    /// Results of the first set, in f32, by result and rank.
    expected: Vec<Vec<DeviceTensor>>,
    reference: Reference,
    gate: Gate,
}

impl<'a> Bench<'a> {
    /// Allocates and fills tensors, and computes the reference. `kernel` is one of those that will come.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for pipelines that the reference does not compute; [`HarnessError::Mismatch`] for
    /// a world of several processes; [`HarnessError::Runtime`].
    pub fn new(
        world: &World,
        case: Case<'a>,
        kernel: &Kernel,
        jit: &JitOptions,
        seed: u64,
    ) -> Result<Bench<'a>, HarnessError> {
        if world.local_ranks() != (0..world.size()) {
            return Err(HarnessError::mismatch("a bench needs all ranks in this process"));
        }
        let source = kernel.source();
        let dims = dims(case, source)?;
        let reference = Reference::new(world, jit)?;
        let mut sets = Vec::new();
        for set in 0..SETS {
            let arguments = allocate(world, source, &dims)?;
            fill(&reference, Inputs::new(case, seed), source, &arguments, set + 1)?;
            sets.push(arguments);
        }
        let first = sets.first().map_or(&[][..], Vec::as_slice);
        let given = first.iter().map(|t| inputs(case, kernel, t)).collect::<Result<_, _>>()?;
        let setting = reference::Setting { world, case, reference: &reference, inputs: given };
        let expected = reference::evaluate(&setting)?;
        let gate = Gate::new(world, jit)?;
        Ok(Bench { case, tensors: source.tensors.clone(), dims, sets, expected, reference, gate })
    }

    /// Launches on the first set with outputs of NaN, and returns the worst error of all ranks and results.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] for a kernel that takes other tensors; [`HarnessError::Runtime`], where a fault names
    /// the wait that did not end.
    pub fn judge(&self, kernel: &mut Kernel) -> Result<Norms, HarnessError> {
        self.takes(kernel.source())?;
        let Some(set) = self.sets.first() else {
            return Err(HarnessError::mismatch("a bench without tensors"));
        };
        for (tensor, arg) in set.iter().flat_map(|t| t.iter().zip(&self.tensors)) {
            if arg.direction == TensorDirection::Out && tensor.elements() > 0 {
                tensor.poison()?;
            }
        }
        let streams: Vec<_> = self.gate.streams().iter().map(Stream::as_ref).collect();
        kernel.instance().launch_with(&streams, &ranks(set), &self.dims)?;
        let finished = self.gate.streams().iter().try_for_each(Stream::synchronize);
        // A fault record says more than the driver's status.
        kernel.instance().synchronize()?;
        finished?;
        let none = Norms { global: 0.0, worst_tile: 0.0, worst_at: (0, 0), nonfinite: 0 };
        let mut all = none;
        for (place, by_rank) in kernel.outputs().iter().zip(&self.expected) {
            for (tensors, want) in set.iter().zip(by_rank) {
                if let Some(got) = tensors.get(*place).filter(|t| t.elements() > 0) {
                    all = worse(all, self.reference.error(got, want)?);
                }
            }
        }
        Ok(all)
    }

    /// Milliseconds of one launch on the slowest rank, from the moment all ranks are released, on the set of inputs that
    /// is due in this `round`; caches are flushed before.
    ///
    /// # Errors
    /// As [`Bench::judge`].
    pub fn time_ms(&self, kernel: &mut Kernel, round: usize) -> Result<f32, HarnessError> {
        self.takes(kernel.source())?;
        let Some(set) = self.sets.get(round % self.sets.len().max(1)) else {
            return Err(HarnessError::mismatch("a bench without tensors"));
        };
        let streams: Vec<_> = self.gate.streams().iter().map(Stream::as_ref).collect();
        let arguments = ranks(set);
        let ms = self
            .gate
            .time_ms(|| kernel.instance().launch_with(&streams, &arguments, &self.dims))?;
        kernel.instance().check()?;
        Ok(ms)
    }

    /// The pipeline and its sizes.
    pub fn case(&self) -> Case<'a> {
        self.case
    }

    fn takes(&self, source: &KernelSource) -> Result<(), HarnessError> {
        match source.tensors == self.tensors {
            true => Ok(()),
            false => {
                Err(HarnessError::mismatch("the kernel takes other tensors than those before"))
            }
        }
    }
}

/// The median of times in milliseconds, and the least.
pub(crate) fn middle(times: &[f32]) -> (f32, f32) {
    let least = times.iter().copied().fold(f32::INFINITY, f32::min);
    (median(&mut times.to_vec()), least)
}
