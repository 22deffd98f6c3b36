//! Symmetric memory: the same size and offsets on every rank, the ranks of a node mapped at a constant stride.
//!
//! CUDA driver API, virtual memory management: rank p's physical memory is created on its GPU and mapped at
//! `base + p * stride` (`layout.rs`), and every GPU of its node gets access to the node's range. In one process unified
//! addressing makes one reservation serve all GPUs. Processes give each other file descriptors of their memory and map
//! it at addresses of their own. Mapped memory needs no `cuCtxEnablePeerAccess`.
//!
//! Physical memory lives until its last mapping goes, in whichever process that is: a rank may let go of its part
//! while a peer's kernel still reads there. `docs/reliability.md` says what was seen when the owner was killed.

use super::device::{download, drain, memset};
use super::exchange::{CALL, everywhere};
use super::layout::Layout;
use super::pool::{Pool, Taken};
use super::vmm::{self, Physical};
use crate::driver::ledger::wait_for_launches;
use crate::driver::{Context, cu};
use crate::world::{Deadline, World};
use crate::{Error, Result};
use std::sync::Arc;

/// Symmetric memory of a world. Dropping it waits for the GPUs of this process, then unmaps and frees.
#[derive(Debug)]
pub struct SymmetricMemory {
    /// The lowest rank of this process.
    first: u32,
    /// Of this process's ranks.
    contexts: Vec<Arc<Context>>,
    /// One for each node that has ranks here, in their order: addresses of their own, so that a stray access to another
    /// node's faults.
    layouts: Vec<Layout>,
    /// What is mapped, address and bytes, for a constructor that fails half way.
    mapped: Vec<(u64, u64)>,
    /// What others of this world have as well.
    taken: Taken,
}

impl SymmetricMemory {
    /// Allocates `size_bytes` on every rank and maps it on all ranks of its node. The contents are undefined.
    /// Collective.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others; [`Error::Shape`] for 0 bytes or more than can be addressed; in a
    /// world of processes also [`Error::PeerFailed`], [`Error::PeerGone`] and [`Error::PeerSilent`].
    pub fn new(world: &World, size_bytes: u64) -> Result<SymmetricMemory> {
        SymmetricMemory::within(world, size_bytes, Deadline::within(PATIENCE))
    }

    pub(crate) fn within(world: &World, bytes: u64, deadline: Deadline) -> Result<SymmetricMemory> {
        let made = granularity(world).and_then(|unit| {
            let of = |rank| Layout::new(*world.topology(), rank, bytes, unit);
            SymmetricMemory::reserve(world, of, Taken::default())
        });
        let mut memory = world.agree_within(CALL, made, deadline)?;
        let own = everywhere(world, memory.stride_bytes(), deadline)?;
        let mapped = memory.map_all(&own);
        world.agree_within(CALL, mapped, deadline)?;
        Ok(memory)
    }

    /// Like [`SymmetricMemory::new`], where only the first `own_bytes` are its own: the others are memory that any
    /// others made so in this world have as well.
    pub(crate) fn shared(
        world: &World,
        own_bytes: u64,
        size_bytes: u64,
        deadline: Deadline,
    ) -> Result<SymmetricMemory> {
        let unit = world.agree_within(CALL, granularity(world), deadline)?;
        let taken = Pool::take(world, size_bytes.saturating_sub(own_bytes), unit, deadline)?;
        let (topology, shared_bytes) = (*world.topology(), taken.bytes());
        let of = |rank| Layout::shared(topology, rank, own_bytes, shared_bytes, size_bytes, unit);
        let made = SymmetricMemory::reserve(world, of, taken);
        let mut memory = world.agree_within(CALL, made, deadline)?;
        let own = everywhere(world, memory.stride_bytes() - shared_bytes, deadline)?;
        let mapped = memory.map_all(&own);
        world.agree_within(CALL, mapped, deadline)?;
        Ok(memory)
    }

    /// Chooses the addresses; nothing is mapped yet.
    fn reserve(
        world: &World,
        layout: impl Fn(u32) -> Result<Layout>,
        taken: Taken,
    ) -> Result<SymmetricMemory> {
        let contexts = world
            .local_ranks()
            .map(|r| world.context(r).cloned())
            .collect::<Result<Vec<_>, _>>()?;
        let unit = granularity(world)?;
        let first = world.local_ranks().start;
        let mut memory =
            SymmetricMemory { first, contexts, layouts: Vec::new(), mapped: Vec::new(), taken };
        let mut rank = first;
        while rank < world.local_ranks().end {
            let mut layout = layout(rank)?;
            let bytes = layout.reserved_bytes() as usize;
            // SAFETY: a valid out-pointer; the driver chooses the address.
            unsafe {
                cu!(None, cuMemAddressReserve(&mut layout.base, bytes, unit as usize, 0, 0))
            }?;
            layout.base += layout.lead_bytes;
            rank = layout.mapped().end;
            memory.layouts.push(layout);
        }
        Ok(memory)
    }

    /// Maps memory of its own, and what is shared behind it, of all ranks that are mapped.
    fn map_all(&mut self, own: &[(u32, Physical)]) -> Result<()> {
        let chunks = self.taken.chunks.clone();
        let own_bytes = self.stride_bytes() - self.taken.bytes();
        for (rank, memory) in own {
            self.map(*rank, 0, own_bytes, memory)?;
        }
        let mut at = own_bytes;
        for chunk in &chunks {
            for (rank, memory) in &chunk.parts {
                self.map(*rank, at, chunk.bytes, memory)?;
            }
            at += chunk.bytes;
        }
        self.give_access()
    }

    fn map(&mut self, rank: u32, at: u64, bytes: u64, memory: &Physical) -> Result<()> {
        let layout = self.layout(rank)?;
        let at = layout.address(rank)? - layout.lead_bytes + at;
        memory.map(at, bytes)?;
        self.mapped.push((at, bytes));
        Ok(())
    }

    fn give_access(&self) -> Result<()> {
        let mut ordinals: Vec<i32> = self.contexts.iter().map(|c| c.ordinal()).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        for layout in &self.layouts {
            let (from, bytes) = layout.mapped_span();
            vmm::give_access(&ordinals, from, bytes)?;
        }
        Ok(())
    }

    /// From where on nobody else has this memory yet, but for what is its own.
    pub(crate) fn unused_from(&self, own_bytes: u64) -> u64 {
        own_bytes.saturating_add(self.taken.old_bytes).min(self.size_bytes())
    }

    /// Where the parts of the ranks of a rank's node are.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank whose node has none here.
    pub(crate) fn layout(&self, rank: u32) -> Result<&Layout> {
        let found = self.layouts.iter().find(|l| l.mapped().contains(&rank));
        found.ok_or(Error::Unreachable { from: self.first, to: rank })
    }

    /// Address of rank 0's memory as the ranks of a rank's node count; mapped where they
    /// [reach](crate::world::Topology) rank 0.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank whose node has none here.
    pub fn base(&self, rank: u32) -> Result<u64> {
        Ok(self.layout(rank)?.base)
    }

    /// Distance between two ranks' memories, in bytes: the size rounded up to the driver's granularity.
    pub fn stride_bytes(&self) -> u64 {
        self.layouts.first().map_or(0, |l| l.stride_bytes)
    }

    /// Size of each rank's memory, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.layouts.first().map_or(0, |l| l.size_bytes)
    }

    /// Address of a rank's memory, on every GPU of its node.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank of another node.
    pub fn rank_ptr(&self, rank: u32) -> Result<u64> {
        self.layout(rank)?.address(rank)
    }

    /// Fills `[from, to)` of the memory of this process's ranks with a byte, after their GPUs' launches, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Cuda`].
    pub fn fill(&self, from: u64, to: u64, byte: u8) -> Result<()> {
        for context in &self.contexts {
            wait_for_launches(context.ordinal())?;
        }
        self.fill_unused(from, to, byte)
    }

    /// Like [`SymmetricMemory::fill`] where no work uses that memory: waits for no other.
    pub(crate) fn fill_unused(&self, from: u64, to: u64, byte: u8) -> Result<()> {
        if from > to || to > self.size_bytes() {
            return Err(Error::Shape {
                what: format!(
                    "bytes {from} to {to} are not inside symmetric memory of {} bytes",
                    self.size_bytes()
                ),
            });
        }
        for (rank, context) in (self.first..).zip(&self.contexts) {
            memset(context, self.rank_ptr(rank)? + from, byte, to - from)?;
        }
        Ok(())
    }

    /// Reads a rank's memory from `from`, after its GPU's launches (for a rank of another process: after those of this
    /// process's GPU).
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Unreachable`] for a rank of another node;
    /// [`Error::Cuda`].
    pub fn download(&self, rank: u32, from: u64, bytes: u64) -> Result<Vec<u8>> {
        let fits = from.checked_add(bytes).is_some_and(|end| end <= self.size_bytes());
        let own = rank.checked_sub(self.first).and_then(|i| self.contexts.get(i as usize));
        let context = own.or(self.contexts.first()).filter(|_| fits);
        let Some(context) = context else {
            return Err(Error::Shape {
                what: format!(
                    "{bytes} bytes at {from} of rank {rank} are not inside this symmetric memory"
                ),
            });
        };
        let at = self.rank_ptr(rank)? + from;
        let mut out = vec![0u8; bytes as usize];
        if out.is_empty() {
            return Ok(out);
        }
        wait_for_launches(context.ordinal())?;
        download(context, at, &mut out)?;
        Ok(out)
    }

    /// Leaves it as it is: nothing is unmapped or freed.
    pub(crate) fn leave(&mut self) {
        self.mapped.clear();
        self.layouts.clear();
        std::mem::forget(std::mem::take(&mut self.taken));
    }

    /// What dropping does; nothing is left for the drop then.
    pub(crate) fn release(&mut self) -> Result<()> {
        if let Some(error) = self.contexts.iter().find_map(|context| drain(context).err()) {
            self.leave();
            return Err(error);
        }
        let mut first = Ok(());
        for (at, bytes) in std::mem::take(&mut self.mapped) {
            // SAFETY: mapped by us as this piece; no kernel of this process runs any more.
            first = first.and(unsafe { cu!(None, cuMemUnmap(at, bytes as usize)) });
        }
        self.taken = Taken::default();
        for layout in std::mem::take(&mut self.layouts) {
            let bytes = layout.reserved_bytes() as usize;
            let reserved = layout.base - layout.lead_bytes;
            // SAFETY: reserved by us; everything in it is unmapped.
            first = first.and(unsafe { cu!(None, cuMemAddressFree(reserved, bytes)) });
        }
        first
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        if !self.layouts.is_empty()
            && let Err(error) = self.release()
        {
            tracing::warn!(%error, "symmetric memory was not released");
        }
    }
}

/// What sizes and addresses in a world must be multiples of, in bytes.
fn granularity(world: &World) -> Result<u64> {
    let mut unit = 1;
    for rank in world.local_ranks() {
        let ordinal = world.context(rank)?.ordinal();
        unit = unit.max(vmm::granularity(ordinal, world.group().is_some())?);
    }
    Ok(unit)
}

/// Bound on the wait for the other processes where the caller gives none.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
