//! One kernel bound to a world: loaded modules, workspace, parameter blocks, fault records.

use super::contract::{check_source, check_tensors};
use super::dims::check_dims;
use super::options::{InstanceOptions, RankTensors};
use super::rank::Rank;
use super::residency::Attributes;
use crate::driver::{cu, keep_current};
use crate::env;
use crate::error::{Error, Fault};
use crate::gpu::StreamRef;
use crate::jit::Compiled;
use crate::mem::{FaultRecords, SymmetricMemory};
use crate::world::World;
use mk_abi::KernelSource;
use mk_abi::device::SymHeader;
use std::mem::offset_of;
use std::sync::Arc;

/// A kernel bound to a world. Dropping it waits for its GPUs; drop graphs that captured it first.
///
/// A launch needs no host synchronisation and no reset of memory: epochs are counted on the device.
pub struct Instance {
    world: World,
    source: KernelSource,
    ranks: Vec<Rank>,
    symmetric: SymmetricMemory,
    faults: FaultRecords,
    attributes: Attributes,
    generation: u64,
    poisoned: Option<Arc<Error>>,
}

impl Instance {
    /// Loads the kernel on every rank, checks that its grids fit, allocates and zeroes the workspace.
    ///
    /// # Errors
    /// [`Error::WorldSize`], [`Error::BadSource`], [`Error::WrongArch`], [`Error::NotCoResident`],
    /// [`Error::LaunchBlocking`], [`Error::Cuda`] (out of memory among others).
    pub fn bind(
        world: &World,
        source: &KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
    ) -> Result<Instance, Error> {
        if env::launch_blocking() {
            return Err(Error::LaunchBlocking);
        }
        check_source(source)?;
        if source.world_size != world.size() {
            return Err(Error::WorldSize {
                kernel: source.name.clone(),
                plan: source.world_size,
                world: world.size(),
            });
        }
        let space = &source.workspace;
        let symmetric = SymmetricMemory::new(world, space.symmetric_bytes)?;
        symmetric.fill(0, space.zeroed_bytes, 0)?;
        symmetric.fill(space.zeroed_bytes, space.symmetric_bytes, options.poison.unwrap_or(0))?;
        let faults = FaultRecords::new(world)?;
        let ranks = world
            .local_ranks()
            .map(|r| Rank::bind(world, r, source, compiled, options, &symmetric, &faults))
            .collect::<Result<Vec<_>, _>>()?;
        // Two ranks on one GPU cannot both be cooperative: each would claim to have it alone.
        let cooperative = world.local_ranks().all(|r| world.sharing(r) == 1);
        Ok(Instance {
            world: world.clone(),
            attributes: Attributes::new(source, cooperative),
            source: source.clone(),
            ranks,
            symmetric,
            faults,
            generation: world.next_generation(),
            poisoned: None,
        })
    }

    /// Enqueues one kernel per rank: `streams[p]` and `tensors[p]` are rank p's. Returns at once; a failure inside the
    /// kernels shows in [`Instance::check`] or [`Instance::synchronize`]. May be captured into CUDA graphs.
    ///
    /// Launches of one world run in the order of the calls, on whatever streams; captured ones are for the caller to
    /// order.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Tensor`] for arguments that do not fit, with nothing launched;
    /// [`Error::Poisoned`] after an earlier failure; [`Error::Cuda`] when a launch fails, which aborts the ranks that
    /// were launched and poisons the instance.
    pub fn launch(&mut self, streams: &[StreamRef], tensors: &[RankTensors]) -> Result<(), Error> {
        self.launch_with(streams, tensors, &[])
    }

    /// [`Instance::launch`] with values for the kernel's run-time dimensions ([`KernelSource::runtime_dims`], in their
    /// order, in elements): the same on every rank, or the kernels give up with a typed fault before any data moves.
    ///
    /// # Errors
    /// As [`Instance::launch`]; also [`Error::Count`] and [`Error::Shape`] for values that do not fit the kernel.
    pub fn launch_with(
        &mut self,
        streams: &[StreamRef],
        tensors: &[RankTensors],
        dims: &[u32],
    ) -> Result<(), Error> {
        self.usable()?;
        self.count("streams", streams.len())?;
        self.count("lists of tensors", tensors.len())?;
        check_dims(&self.source, dims)?;
        for (p, (rank, given)) in self.ranks.iter_mut().zip(tensors).enumerate() {
            rank.set_dims(&self.source, p as u32, dims)?;
            check_tensors(&self.source, p as u32, &rank.expected_bytes, dims, given)?;
        }
        let world = self.world.clone();
        let mut last = world.order().lock();
        let keep = keep_current()?;
        for (p, given) in tensors.iter().enumerate() {
            self.ranks[p].set_tensors(&self.source, p, given)?;
        }
        for (p, stream) in streams.iter().enumerate() {
            let rank = &mut self.ranks[p];
            let enqueued = rank.kernel.context().switch_to(&keep).and_then(|()| {
                rank.enqueue(&self.source, &mut self.attributes, *stream, &mut last[p])
            });
            if let Err(error) = enqueued {
                // Also for the first rank: its kernel may be running, and what followed it have failed.
                self.raise_abort(p as u32);
                self.poisoned = Some(Arc::new(error.clone()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Looks at the fault records without waiting: a few loads, no driver call.
    ///
    /// # Errors
    /// [`Error::Fault`] when a kernel gave up; the instance is poisoned then.
    pub fn check(&mut self) -> Result<(), Error> {
        self.absorb(false)
    }

    /// Waits for the last launch of every rank. Replays of captured graphs are waited for on their own streams.
    ///
    /// # Errors
    /// [`Error::Fault`] when a kernel gave up; [`Error::Cuda`] when one crashed. The instance is poisoned then.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        let mut waited = Ok(());
        for rank in &self.ranks {
            waited = waited.and(rank.done.synchronize());
        }
        // A fault record says more than the driver's status.
        self.absorb(true)?;
        if let Err(error) = &waited {
            self.poisoned.get_or_insert_with(|| Arc::new(error.clone()));
        }
        waited
    }

    /// Tells running kernels to give up, as a peer's abort does. The instance must not be launched again.
    pub fn abort(&mut self) {
        self.raise_abort(0);
    }

    /// Fills the workspace with a byte, except for the part that must start as zero. A test hook: what a kernel reads
    /// before it is written shows.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn poison_workspace(&self, byte: u8) -> Result<(), Error> {
        for context in self.world.distinct_contexts() {
            context.synchronize()?;
        }
        let space = &self.source.workspace;
        self.symmetric.fill(space.zeroed_bytes, space.symmetric_bytes, byte)?;
        for rank in &self.ranks {
            rank.scratch.fill(byte)?;
        }
        Ok(())
    }

    /// A rank's trace buffer, after all its earlier work; empty when tracing is off.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not there; [`Error::Cuda`].
    pub fn trace(&self, rank: u32) -> Result<Vec<u8>, Error> {
        match self.ranks.get(rank as usize) {
            Some(Rank { trace: Some(trace), .. }) => trace.download(),
            Some(_) => Ok(Vec::new()),
            None => Err(Error::Shape { what: format!("rank {rank} is not in this instance") }),
        }
    }

    /// The symmetric memory, for tests and dumps.
    pub fn symmetric(&self) -> &SymmetricMemory {
        &self.symmetric
    }

    /// The kernel that is bound.
    pub fn source(&self) -> &KernelSource {
        &self.source
    }

    /// Counts the instances of a world, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn usable(&mut self) -> Result<(), Error> {
        if self.poisoned.is_none() && self.faults.any() {
            // The fault itself is what this call finds; `Poisoned` carries it.
            let _ = self.absorb(false);
        }
        match &self.poisoned {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn absorb(&mut self, finished: bool) -> Result<(), Error> {
        if !self.faults.any() {
            return Ok(());
        }
        let faults = self
            .faults
            .read(finished)
            .iter()
            .map(|r| Fault::from_record(&self.source, r))
            .collect();
        match Fault::merge(faults) {
            None => Ok(()),
            Some(fault) => {
                let error = Error::Fault(Box::new(fault));
                self.poisoned.get_or_insert_with(|| Arc::new(error.clone()));
                Err(error)
            }
        }
    }

    fn count(&self, what: &'static str, given: usize) -> Result<(), Error> {
        let expected = self.ranks.len();
        if given == expected {
            return Ok(());
        }
        Err(Error::Count { kernel: self.source.name.clone(), what, expected, given })
    }

    /// Writes the abort word of every rank, by the stream itself: a copy or a memset may need an SM, and kernels may hold them
    /// all. Best effort: kernels bound their waits themselves.
    fn raise_abort(&self, by: u32) {
        for (p, rank) in self.ranks.iter().enumerate() {
            let context = rank.kernel.context();
            let word = self.symmetric.rank_ptr(p as u32) + offset_of!(SymHeader, abort) as u64;
            let raised = context.enter().and_then(|_in| {
                // SAFETY: a word of our symmetric memory; the stream is ours and its context current.
                unsafe {
                    cu!(
                        Some(context.ordinal()),
                        cuStreamWriteValue32_v2(rank.side.as_ref().raw(), word, by + 1, 0)
                    )
                }
            });
            if let Err(error) = raised {
                tracing::warn!(rank = p, %error, "the abort word was not written");
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Kernels bound their waits, so this ends. Memory that a peer still reads must not go before.
        for context in self.world.distinct_contexts() {
            if let Err(error) = context.synchronize() {
                tracing::warn!(%error, "an instance was dropped after a failure of its GPU");
            }
        }
    }
}
