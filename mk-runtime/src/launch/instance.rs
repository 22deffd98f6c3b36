//! One kernel bound to a world: loaded modules, workspace, parameter blocks, fault records.

use super::agree;
use super::contract::{check_source, check_tensors};
use super::dims::check_dims;
use super::health::Health;
use super::options::{InstanceOptions, RankTensors};
use super::program::check_reach;
use super::rank::{Rank, Shared};
use super::residency::Attributes;
use crate::driver::ledger::{self, Launcher, Ledger};
use crate::driver::{Context, Entered, keep_current};
use crate::env;
use crate::error::{Error, Result};
use crate::gpu::{StreamRef, Usable, note_capture};
use crate::jit::Compiled;
use crate::mem::{FaultRecords, SymmetricMemory, drain};
use crate::net::{Leased, Net};
use crate::proxy::Watch;
use crate::world::{Deadline, World};
use mk_abi::KernelSource;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A kernel bound to a world. Dropping it waits for this process's GPUs, and spoils no capture; drop graphs that
/// captured it first.
///
/// A launch needs no host synchronisation and no reset of memory: epochs are counted on the device.
///
/// Dropping is not collective: the memory of a rank lives until the last process that maps it has let go.
pub struct Instance {
    world: World,
    source: Arc<KernelSource>,
    /// Of this process, as all lists by rank here.
    ranks: Vec<Rank>,
    symmetric: SymmetricMemory,
    /// What it has of the network between nodes.
    net: Option<Leased>,
    health: Arc<Health>,
    attributes: Attributes,
    generation: u64,
    overlap: bool,
    captured: bool,
    place: Place,
}

/// An instance's entry in the launch ledger.
struct Place(Launcher);

impl Drop for Place {
    fn drop(&mut self) {
        if !ledger::forked() {
            ledger::lock().release(self.0);
        }
    }
}

/// What binding waits for other processes at least: they may still be compiling.
const PATIENCE: Duration = Duration::from_secs(60);

impl Instance {
    /// Loads the kernel on every rank of this process, checks that its grids fit, allocates and zeroes the workspace.
    ///
    /// In a world of processes this is collective, and waits for the others for `entry_limit` (at least a minute).
    /// All must pass the same kernel and options; what differs is an error on every rank, before memory is made.
    ///
    /// The driver loads code between kernels only: this waits for what the GPU runs, and so do launches of other
    /// threads on it meanwhile. Where that needs another rank's launch, all ranks must launch and bind in the same
    /// order.
    ///
    /// # Errors
    /// [`Error::WorldSize`], [`Error::BadSource`], [`Error::Unsupported`], [`Error::Unreachable`],
    /// [`Error::WrongArch`], [`Error::NotCoResident`], [`Error::SmBudget`], [`Error::LaunchBlocking`], [`Error::Cuda`]
    /// (out of memory among others). With other processes also [`Error::Disagree`], [`Error::PeerFailed`],
    /// [`Error::PeerGone`], [`Error::PeerSilent`].
    pub fn bind(
        world: &World,
        source: &KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
    ) -> Result<Instance> {
        let generation = world.next_generation();
        let deadline = Deadline::within(options.entry_limit.max(PATIENCE));
        let sound = check(world, source, options);
        match world.group() {
            None => sound?,
            Some(group) => {
                let rank = world.local_ranks().start;
                agree::agree(group, rank, source, options, generation, sound, deadline)?;
            }
        }
        let mut place = None;
        // What follows may wait for a GPU, and the GPU for a rank that another thread is about to launch. In a world of
        // processes that may be a rank of another one, which needs this one's launches: the ledger is not locked.
        let held = world.group().is_none().then(ledger::lock);
        let space = &source.workspace;
        let pooled = options.pooled && !options.overlap && source.net.is_none();
        let symmetric = match pooled && space.zeroed_bytes < space.symmetric_bytes {
            true => {
                let (own, size) = (space.zeroed_bytes, space.symmetric_bytes);
                SymmetricMemory::shared(world, own, size, deadline)?
            }
            false => SymmetricMemory::within(world, space.symmetric_bytes, deadline)?,
        };
        let faults = FaultRecords::new(world, deadline)?;
        let net = match &source.net {
            Some(layout) => {
                let net = options.net.clone().map_or_else(|| Net::of(world), Ok)?;
                Some(net.lease(world, layout, options.poison.unwrap_or(0), deadline)?)
            }
            None => None,
        };
        let bound = symmetric.fill_unused(0, space.zeroed_bytes, 0).and_then(|()| {
            let poison = options.poison.unwrap_or(0);
            let unused = symmetric.unused_from(space.zeroed_bytes);
            symmetric.fill_unused(unused, space.symmetric_bytes, poison)?;
            let shared = Shared { symmetric: &symmetric, faults: &faults, net: net.as_ref() };
            let bind = |r| Rank::bind(world, r, source, compiled, options, shared);
            let ranks = world.local_ranks().map(bind).collect::<Result<Vec<_>, _>>()?;
            let place = place.insert(Place(ledger::new_launcher()));
            if options.overlap {
                let mut ledger = held.unwrap_or_else(ledger::lock);
                claim(&mut ledger, place.0, world, source, &ranks, options.reserve_sms)?;
            }
            Ok(ranks)
        });
        // No rank launches before the words of all ranks are zero.
        let ranks = match world.group() {
            None => bound?,
            Some(group) => group.agree(agree::CALL, bound, deadline)?,
        };
        let source = Arc::new(source.clone());
        let (group, number) = (world.group(), generation as u32);
        let health = Arc::new(Health::new(source.clone(), group.cloned(), number, faults));
        if let Some(group) = group {
            let weak: Weak<Health> = Arc::downgrade(&health);
            group.join(number, weak);
        }
        if let (Some(net), Some(layout)) = (&net, &source.net) {
            let watch: Arc<dyn Watch> = health.clone();
            let attached = net.attach(layout, &watch).map_err(Error::from);
            // Nobody sends to a rank whose proxy does not know the instance yet.
            match group {
                None => attached?,
                Some(group) => group.agree(agree::CALL, attached, deadline)?,
            }
        }
        // Two ranks on one GPU cannot both be cooperative: each would claim to have it alone.
        let alone = world.local_ranks().all(|r| world.sharing(r) == 1);
        Ok(Instance {
            world: world.clone(),
            attributes: Attributes::new(&source, alone && source.cooperative),
            source,
            ranks,
            symmetric,
            net,
            health,
            generation,
            overlap: options.overlap,
            captured: false,
            place: place.unwrap_or_else(|| Place(ledger::new_launcher())),
        })
    }

    /// Enqueues one kernel per rank of this process: `streams[i]` and `tensors[i]` are those of its i-th rank. Returns
    /// at once; a failure inside the kernels shows in [`Instance::check`] or [`Instance::synchronize`]. May be
    /// captured into CUDA graphs.
    ///
    /// Launches of this process run in the order of the calls, on whatever streams, except that instances bound with
    /// [`InstanceOptions::overlap`] do not wait for each other. Captured ones are for the caller to order, and so is
    /// the order in which different processes make their calls.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Tensor`] for arguments that do not fit, [`Error::SameStream`] and
    /// [`Error::MixedCapture`], with nothing launched; [`Error::Poisoned`] after an earlier failure;
    /// [`Error::PeerGone`] when the process of another rank is dead; [`Error::OutOfStep`] when another rank launched
    /// something else in its place, [`Error::Crossed`] when ranks launched kernels of several worlds in different
    /// orders; [`Error::Cuda`] when a launch fails, which aborts the ranks that were launched and
    /// poisons the instance.
    pub fn launch(&mut self, streams: &[StreamRef], tensors: &[RankTensors]) -> Result<()> {
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
    ) -> Result<()> {
        self.health.usable()?;
        self.count("streams", streams.len())?;
        self.count("lists of tensors", tensors.len())?;
        self.check_streams(streams)?;
        check_dims(&self.source, dims)?;
        for (rank, given) in self.ranks.iter_mut().zip(tensors) {
            rank.set_dims(&self.source, dims)?;
            check_tensors(&self.source, rank.rank, &rank.expected_bytes, dims, given)?;
        }
        let mut ledger = ledger::lock();
        let keep = keep_current()?;
        let mut captured = None;
        let mut eager = None;
        for (rank, (stream, given)) in self.ranks.iter_mut().zip(streams.iter().zip(tensors)) {
            rank.kernel.context().switch_to(&keep)?;
            let kind = if rank.is_captured(*stream)? { &mut captured } else { &mut eager };
            kind.get_or_insert(rank.rank);
            rank.set_tensors(&self.source, given)?;
            rank.set_own_rows(&self.source, given)?;
        }
        if let (Some(captured), Some(eager)) = (captured, eager) {
            return Err(Error::MixedCapture { kernel: self.source.name.clone(), captured, eager });
        }
        if captured.is_some() {
            self.captured = true;
            note_capture(&self.health);
            for (rank, stream) in self.ranks.iter().zip(streams) {
                rank.kernel.context().switch_to(&keep)?;
                if !rank.may_capture(*stream)? {
                    let (kernel, rank) = (self.source.name.clone(), rank.rank);
                    return Err(Error::TwoCaptures { kernel, rank });
                }
            }
        }
        if let (true, Some(group)) = (self.source.meets, self.world.group()) {
            match eager {
                Some(_) => {
                    group.launching((!self.overlap).then_some(self.generation as u32))?;
                }
                None => group.lose_count(),
            }
        }
        let (mut enqueued, mut touched) = (0, 0);
        let mut outcome = Ok(());
        if eager.is_some() {
            outcome = self.hold(&ledger, &keep, streams);
        }
        for (rank, stream) in self.ranks.iter_mut().zip(streams) {
            outcome = outcome.and_then(|()| rank.kernel.context().switch_to(&keep));
            if outcome.is_err() {
                break;
            }
            touched += 1;
            outcome = rank.enqueue(&self.source, &mut self.attributes, *stream, eager.is_some());
            if outcome.is_err() {
                break;
            }
            enqueued += 1;
        }
        // Behind the kernels of all ranks: what one rank's copies wait for may be another's kernel, and a full queue
        // would keep this thread from it.
        for (i, (rank, stream)) in self.ranks.iter().zip(streams).take(touched).enumerate() {
            let finished = rank
                .kernel
                .context()
                .switch_to(&keep)
                .and_then(|()| rank.finish(*stream, eager.is_some(), i < enqueued));
            outcome = outcome.and(finished);
        }
        if eager.is_some() {
            self.note(&mut ledger, touched);
        }
        if let Err(error) = &outcome {
            // Also for the first rank: its kernel may be running, and what followed it have failed.
            let first = self.world.local_ranks().start;
            let by = self.ranks.get(enqueued).map_or(first, |r| r.rank);
            // What was captured has not run: others' launches go on. Of several ranks it may be a part, which must not
            // be replayed.
            if eager.is_some() {
                self.health.give_up(by, Some(error.to_string()));
            }
            if eager.is_some() || enqueued > 0 {
                self.health.poison(error);
            }
        }
        outcome
    }

    /// What [`Instance::launch`] would refuse, before anything is enqueued anywhere: for callers that launch several
    /// instances, or none. Of kernels without run-time dimensions.
    ///
    /// # Errors
    /// As [`Instance::launch`], but for those of streams and of the driver.
    pub fn accepts(&self, tensors: &[RankTensors]) -> Result<()> {
        self.health.usable()?;
        self.count("lists of tensors", tensors.len())?;
        check_dims(&self.source, &[])?;
        for (rank, given) in self.ranks.iter().zip(tensors) {
            check_tensors(&self.source, rank.rank, &rank.expected_bytes, &[], given)?;
        }
        Ok(())
    }

    /// In one stream a kernel would wait for one behind it.
    fn check_streams(&self, streams: &[StreamRef]) -> Result<()> {
        if !self.source.meets || !self.world.shares_gpus() {
            return Ok(());
        }
        let place = |rank: &Rank| rank.kernel.context().ordinal();
        let all: Vec<_> = self.ranks.iter().map(place).zip(streams).collect();
        for (i, stream) in all.iter().enumerate() {
            if let Some(first) = all[..i].iter().position(|other| other == stream) {
                let ranks = (self.ranks[first].rank, self.ranks[i].rank);
                return Err(Error::SameStream { kernel: self.source.name.clone(), ranks });
            }
        }
        Ok(())
    }

    /// Orders a launch after those before it. On all ranks before the first is enqueued: ranks that share a GPU wait
    /// for each other's last launch, and must not wait for this one.
    fn hold(&self, ledger: &Ledger, keep: &Entered, streams: &[StreamRef]) -> Result<()> {
        for (rank, stream) in self.ranks.iter().zip(streams) {
            let context = rank.kernel.context();
            context.switch_to(keep)?;
            for event in ledger.before(context.ordinal(), self.place.0, self.overlap) {
                event.hold_entered(*stream)?;
            }
        }
        Ok(())
    }

    /// Enters the launch of the first `n` ranks into the ledger.
    fn note(&self, ledger: &mut Ledger, n: usize) {
        let launched = &self.ranks[..n];
        let devices = launched.iter().map(|r| r.kernel.context().ordinal());
        for (i, device) in devices.clone().enumerate() {
            if devices.clone().take(i).any(|d| d == device) {
                continue;
            }
            let here = launched.iter().filter(|r| r.kernel.context().ordinal() == device);
            let done: Vec<_> = here.map(|r| r.done.clone()).collect();
            ledger.launched(device, self.place.0, self.overlap, &done);
        }
    }

    /// Looks at the fault records without waiting: a few loads, no driver call.
    ///
    /// # Errors
    /// [`Error::Fault`] when a kernel gave up, also one of another process; the instance is poisoned then.
    pub fn check(&mut self) -> Result<()> {
        self.health.absorb(false)
    }

    /// Waits for the last launch of every rank of this process. Replays of captured graphs are waited for on their own
    /// streams.
    ///
    /// # Errors
    /// [`Error::Fault`] when a kernel gave up; [`Error::Cuda`] when one crashed. The instance is poisoned then.
    pub fn synchronize(&mut self) -> Result<()> {
        let mut waited = Ok(());
        for rank in &self.ranks {
            waited = waited.and(rank.done.synchronize());
        }
        // A fault record says more than the driver's status.
        // Replays, which were not waited for, may just be writing one.
        self.health.absorb(!self.captured)?;
        if let Err(error) = &waited {
            self.health.poison(error);
        }
        waited
    }

    /// Tells running kernels of all ranks to give up, as a peer's abort does, and poisons the instance.
    pub fn abort(&mut self) {
        self.health.poison(&Error::Aborted);
        self.health.give_up(self.world.local_ranks().start, None);
    }

    /// Fills the workspace of this process's ranks with a byte, except for the part that must start as zero. A test
    /// hook: what a kernel reads before it is written shows.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn poison_workspace(&self, byte: u8) -> Result<()> {
        let space = &self.source.workspace;
        self.symmetric.fill(space.zeroed_bytes, space.symmetric_bytes, byte)?;
        for rank in &self.ranks {
            rank.scratch.fill(byte)?;
        }
        Ok(())
    }

    /// A rank's trace buffer as its last launch left it, which this waits for; empty when tracing is off.
    /// What is in it: [`TraceHead`](mk_abi::device::TraceHead).
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not one of this process; [`Error::Cuda`].
    pub fn trace(&self, rank: u32) -> Result<Vec<u8>> {
        let found = self.world.local_index(rank).and_then(|i| self.ranks.get(i));
        match found {
            Some(Rank { trace: Some(trace), .. }) => trace.download(),
            Some(_) => Ok(Vec::new()),
            None => Err(self.world.no_rank(rank)),
        }
    }

    /// A rank's scratch as its last launch left it, which this waits for; for tests and dumps.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not one of this process; [`Error::Cuda`].
    pub fn scratch(&self, rank: u32) -> Result<Vec<u8>> {
        let found = self.world.local_index(rank).and_then(|i| self.ranks.get(i));
        found.ok_or_else(|| self.world.no_rank(rank))?.scratch.download()
    }

    /// The symmetric memory, for tests and dumps.
    pub fn symmetric(&self) -> &SymmetricMemory {
        &self.symmetric
    }

    /// The kernel that is bound.
    pub fn source(&self) -> &KernelSource {
        &self.source
    }

    /// Counts the binds of a world, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a launch was captured: a graph may hold addresses of the workspace.
    pub fn captured(&self) -> bool {
        self.captured
    }

    /// Leaves kernels and memory as they are, for as long as the process lives.
    fn leave(&mut self) {
        std::mem::forget(std::mem::take(&mut self.ranks));
        std::mem::forget(self.net.take());
        self.symmetric.leave();
        std::mem::forget((self.world.clone(), self.health.clone()));
    }

    fn count(&self, what: &'static str, given: usize) -> Result<()> {
        let expected = self.ranks.len();
        if given == expected {
            return Ok(());
        }
        Err(Error::Count { kernel: self.source.name.clone(), what, expected, given })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if ledger::forked() {
            return self.leave();
        }
        // For graphs that should have been dropped before.
        self.health.retire();
        // Kernels bound their waits, so this ends. With the ledger unlocked: another thread's launch may be what they
        // need.
        let mut done = Ok(());
        for rank in &self.ranks {
            done = done.and(rank.done.synchronize());
        }
        for context in self.world.distinct_contexts() {
            done = done.and(ledger::wait_for_launches(context.ordinal()));
        }
        // Replays may be anybody's, on any stream.
        let replayed = |context: &Arc<Context>| !self.captured || drain(context).is_ok();
        if !self.world.distinct_contexts().iter().all(replayed) {
            tracing::warn!(
                "a captured instance was dropped whose replays cannot be waited for: its memory stays until the \
                 process ends"
            );
            return self.leave();
        }
        // Not while another thread has launched some ranks and not others: freeing waits for the GPU.
        let ledger = ledger::lock();
        self.ranks.clear();
        // Its proxies still look at the records.
        self.net = None;
        done = done.and(self.health.release()).and(self.symmetric.release());
        drop(ledger);
        if let Err(error) = done {
            tracing::warn!(%error, "an instance was dropped after a failure of its GPU");
        }
    }
}

/// What this process can judge alone.
fn check(world: &World, source: &KernelSource, options: &InstanceOptions) -> Result<()> {
    if env::launch_blocking() {
        return Err(Error::LaunchBlocking);
    }
    check_source(source)?;
    options.nanoseconds(source)?;
    if source.world_size == world.size() {
        check_net(source, world, options)?;
        return check_reach(source, world.topology());
    }
    let (kernel, plan) = (source.name.clone(), source.world_size);
    Err(Error::WorldSize { kernel, plan, world: world.size() })
}

/// Whether the kernel is for the world's nodes and its network.
fn check_net(source: &KernelSource, world: &World, options: &InstanceOptions) -> Result<()> {
    let (kernel, topology) = (source.name.clone(), world.topology());
    let per_node = topology.reach(world.local_ranks().start).len() as u32;
    let local = source.net.as_ref().map_or(source.world_size, |net| net.local);
    // A kernel in which no ranks meet is for any nodes.
    if source.meets && local != per_node {
        let what = format!("it is for nodes of {local} ranks, and the world's have {per_node}");
        return Err(Error::Unsupported { kernel, what });
    }
    let (Some(layout), Some(net)) = (&source.net, &options.net) else { return Ok(()) };
    if layout.in_order != net.in_order() {
        let (order, has) = match layout.in_order {
            true => ("in_order", "unordered"),
            false => ("unordered", "in_order"),
        };
        let what = format!("its plan has `net={order}`, and the network is for `net={has}`");
        return Err(Error::Unsupported { kernel, what });
    }
    Ok(())
}

/// Holds the SMs of an overlapping instance on every GPU of this process.
fn claim(
    ledger: &mut Ledger,
    who: Launcher,
    world: &World,
    source: &KernelSource,
    ranks: &[Rank],
    reserve_sms: u32,
) -> Result<()> {
    for rank in ranks {
        let limits = world.device(rank.rank)?;
        ledger.claim(limits.ordinal, who, &source.name, rank.sms, reserve_sms, limits.sms)?;
    }
    Ok(())
}
