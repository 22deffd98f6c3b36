//! Many kernels of one pipeline on the same inputs: made once, judged by one reference, timed one beside the other.

use super::{Arguments, allocate, dims, fill, inputs, ranks, reference, setting::Setting};
use crate::{Case, HarnessError, Inputs, Norms, Result, Tolerance, grid::Grid, judge::worse};
use mk_abi::{KernelSource, TensorArg, TensorDirection};
use mk_codegen::settings::Config;
use mk_function::Kernel;
use mk_runtime::{DeviceTensor, Reference, Stream, World, bench::Gate, jit::JitOptions};
use mk_tune::{Judged, Limits, Rig, Trial};

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
    tolerance: Tolerance,
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
    ) -> Result<Bench<'a>> {
        if world.local_ranks() != (0..world.size()) {
            return Err(HarnessError::mismatch("a bench needs all ranks in this process"));
        }
        let source = kernel.source();
        let dims = dims(case, source)?;
        let reference = Reference::new(world, jit)?;
        let mut sets = Vec::new();
        for set in 0..SETS {
            let arguments = allocate(world, source, &dims)?;
            fill(&reference, |rank| (Inputs::new(case, seed), rank), source, &arguments, set + 1)?;
            sets.push(arguments);
        }
        let first = sets.first().map_or(&[][..], Vec::as_slice);
        let given = first.iter().map(|t| inputs(case, kernel, t)).collect::<Result<_, _>>()?;
        let grid = Grid::along_one(case.ranks);
        let setting = Setting { world, case, grid: &grid, reference: &reference, inputs: given };
        let expected = reference::evaluate(&setting)?;
        let gate = Gate::new(world, jit)?;
        let tolerance = Tolerance::new(case, seed)?;
        Ok(Bench {
            case,
            tensors: source.tensors.clone(),
            dims,
            sets,
            expected,
            tolerance,
            reference,
            gate,
        })
    }

    /// The pipeline and its sizes.
    pub fn case(&self) -> Case<'a> {
        self.case
    }

    fn takes(&self, source: &KernelSource) -> Result<()> {
        match source.tensors == self.tensors {
            true => Ok(()),
            false => {
                Err(HarnessError::mismatch("the kernel takes other tensors than those before"))
            }
        }
    }
}

impl Rig for Bench<'_> {
    type Error = HarnessError;

    /// Launches on the first set, with outputs of NaN.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] for a kernel that takes other tensors; [`HarnessError::Runtime`], where a fault names
    /// the wait that did not end.
    fn judge(&self, kernel: &mut Kernel) -> Result<Judged> {
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
        let mut all = Norms::NONE;
        for (place, by_rank) in kernel.outputs().iter().zip(&self.expected) {
            for (tensors, want) in set.iter().zip(by_rank) {
                if let Some(got) = tensors.get(*place).filter(|t| t.elements() > 0) {
                    all = worse(all, super::error(&self.reference, got, want)?);
                }
            }
        }
        let wrong = !self.tolerance.accepts(&all);
        Ok(Judged { norms: all, wrong: wrong.then(|| self.tolerance.beside(&all)) })
    }

    /// Sets of inputs take turns, and caches are flushed before.
    fn time_ms(&self, kernel: &mut Kernel, round: usize) -> Result<f32> {
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
}

/// [`mk_tune::measure`] on a bench with inputs of this seed.
///
/// # Errors
/// As [`Bench::new`].
pub fn measure(
    world: &World,
    case: Case<'_>,
    configs: &[Config],
    jit: &JitOptions,
    limits: &Limits,
    seed: u64,
) -> Result<Vec<Trial>> {
    let rig = |kernel: &Kernel| Bench::new(world, case, kernel, jit, seed);
    mk_tune::measure(world, (case.program, case.bound), configs, jit, limits, rig)
}
