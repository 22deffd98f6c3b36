//! Symmetric memory: the same size and offsets on every rank, the ranks of a node mapped at a constant stride.
//!
//! CUDA driver API, virtual memory management: rank p's physical memory is created on its GPU and mapped at
//! `base + p * stride` (`layout.rs`), and every GPU of its node gets access to the node's range. In one process unified
//! addressing makes one reservation serve all GPUs. Processes give each other file descriptors of their memory and map it
//! at addresses of their own. Mapped memory needs no `cuCtxEnablePeerAccess`.
//!
//! Physical memory lives until its last mapping goes, in whichever process that is: a rank may let go of its part
//! while a peer's kernel still reads there. `docs/reliability.md` says what was seen when the owner was killed.

use super::device::{download, drain, memset};
use super::layout::Layout;
use super::vmm::{self, Physical};
use crate::Error;
use crate::driver::ledger::wait_for_launches;
use crate::driver::{Context, cu};
use crate::world::{Deadline, Group, World};
use std::sync::Arc;

/// Symmetric memory of a world. Dropping it waits for the GPUs of this process, then unmaps and frees.
#[derive(Debug)]
pub struct SymmetricMemory {
    /// The lowest rank of this process.
    first: u32,
    /// Of this process's ranks.
    contexts: Vec<Arc<Context>>,
    /// One for each node that has ranks here, in their order: addresses of their own, so that a stray access to another node's faults.
    layouts: Vec<Layout>,
    /// Which ranks are mapped, for a constructor that fails half way.
    mapped: Vec<u32>,
}

impl SymmetricMemory {
    /// Allocates `size_bytes` on every rank and maps it on all ranks of its node. The contents are undefined. Collective.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others; [`Error::Shape`] for 0 bytes or more than can be addressed; in a
    /// world of processes also [`Error::PeerFailed`], [`Error::PeerGone`] and [`Error::PeerSilent`].
    pub fn new(world: &World, size_bytes: u64) -> Result<SymmetricMemory, Error> {
        SymmetricMemory::within(world, size_bytes, Deadline::within(PATIENCE))
    }

    pub(crate) fn within(
        world: &World,
        size_bytes: u64,
        deadline: Deadline,
    ) -> Result<SymmetricMemory, Error> {
        let Some(group) = world.group() else {
            let mut memory = SymmetricMemory::reserve(world, size_bytes)?;
            for (rank, context) in world.local_ranks().zip(memory.contexts.clone()) {
                let own = Physical::create(context.ordinal(), memory.stride_bytes(), false)?;
                memory.map(rank, own)?;
            }
            memory.give_access()?;
            return Ok(memory);
        };
        let mine = SymmetricMemory::reserve(world, size_bytes).and_then(|mut memory| {
            let own = Physical::create(memory.contexts[0].ordinal(), memory.stride_bytes(), true)?;
            let fd = own.export()?;
            memory.map(memory.first, own)?;
            Ok((memory, fd))
        });
        let (mut memory, fd) = group.agree(CALL, mine, deadline)?;
        let mapped = memory.import(group, fd, deadline);
        group.agree(CALL, mapped, deadline)?;
        Ok(memory)
    }

    /// Chooses the addresses; nothing is mapped yet.
    fn reserve(world: &World, size_bytes: u64) -> Result<SymmetricMemory, Error> {
        let contexts = world
            .local_ranks()
            .map(|r| world.context(r).cloned())
            .collect::<Result<Vec<_>, _>>()?;
        let mut granularity = 1;
        for context in &contexts {
            granularity =
                granularity.max(vmm::granularity(context.ordinal(), world.group().is_some())?);
        }
        let first = world.local_ranks().start;
        let mut memory =
            SymmetricMemory { first, contexts, layouts: Vec::new(), mapped: Vec::new() };
        let mut rank = first;
        while rank < world.local_ranks().end {
            let mut layout = Layout::new(*world.topology(), rank, size_bytes, granularity)?;
            let bytes = layout.reserved_bytes() as usize;
            // SAFETY: a valid out-pointer; the driver chooses the address.
            unsafe {
                cu!(None, cuMemAddressReserve(&mut layout.base, bytes, granularity as usize, 0, 0))
            }?;
            rank = layout.mapped().end;
            memory.layouts.push(layout);
        }
        Ok(memory)
    }

    /// Maps what the other processes of the node made. A failure is this process's own and still to be told.
    fn import(
        &mut self,
        group: &Group,
        own: std::os::fd::OwnedFd,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let size = self.stride_bytes().to_le_bytes();
        let sizes = group.all_gather(CALL, &size, deadline)?;
        let node = self.layout(self.first)?.mapped();
        let fds = group.all_fds(CALL, own, node.clone(), deadline)?;
        let sizes = sizes.into_iter().skip(node.start as usize);
        for (rank, (fd, theirs)) in node.zip(fds.into_iter().zip(sizes)) {
            let Some(fd) = fd else { continue };
            if theirs != size {
                let what = "the size of symmetric memory".into();
                let (during, ranks) = (CALL.into(), vec![rank]);
                return Err(Error::Disagree { during, what, rank: self.first, ranks });
            }
            self.map(rank, Physical::import(fd)?)?;
        }
        self.give_access()
    }

    fn map(&mut self, rank: u32, memory: Physical) -> Result<(), Error> {
        memory.map(self.rank_ptr(rank)?, self.stride_bytes())?;
        self.mapped.push(rank);
        Ok(())
    }

    fn give_access(&self) -> Result<(), Error> {
        let mut ordinals: Vec<i32> = self.contexts.iter().map(|c| c.ordinal()).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        for layout in &self.layouts {
            let (from, bytes) = layout.mapped_span();
            vmm::give_access(&ordinals, from, bytes)?;
        }
        Ok(())
    }

    /// Where the parts of the ranks of a rank's node are.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank whose node has none here.
    pub(crate) fn layout(&self, rank: u32) -> Result<&Layout, Error> {
        let found = self.layouts.iter().find(|l| l.mapped().contains(&rank));
        found.ok_or(Error::Unreachable { from: self.first, to: rank })
    }

    /// Address of rank 0's memory as the ranks of a rank's node count; mapped where they [reach](crate::world::Topology) rank 0.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank whose node has none here.
    pub fn base(&self, rank: u32) -> Result<u64, Error> {
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
    pub fn rank_ptr(&self, rank: u32) -> Result<u64, Error> {
        self.layout(rank)?.address(rank)
    }

    /// Fills `[from, to)` of the memory of this process's ranks with a byte, after their GPUs' launches, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Cuda`].
    pub fn fill(&self, from: u64, to: u64, byte: u8) -> Result<(), Error> {
        for context in &self.contexts {
            wait_for_launches(context.ordinal())?;
        }
        self.fill_unused(from, to, byte)
    }

    /// Like [`SymmetricMemory::fill`] where no work uses that memory: waits for no other.
    pub(crate) fn fill_unused(&self, from: u64, to: u64, byte: u8) -> Result<(), Error> {
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

    /// Reads a rank's memory from `from`, after its GPU's launches (for a rank of another process: after those of this process's GPU).
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Unreachable`] for a rank of another node; [`Error::Cuda`].
    pub fn download(&self, rank: u32, from: u64, bytes: u64) -> Result<Vec<u8>, Error> {
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
    }

    /// What dropping does; nothing is left for the drop then.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        if let Some(error) = self.contexts.iter().find_map(|context| drain(context).err()) {
            self.leave();
            return Err(error);
        }
        let mut first = Ok(());
        let stride = self.stride_bytes() as usize;
        for p in std::mem::take(&mut self.mapped) {
            // SAFETY: mapped by us in one piece; no kernel of this process runs any more.
            let unmap = |at| unsafe { cu!(None, cuMemUnmap(at, stride)) };
            first = first.and(self.rank_ptr(p).and_then(unmap));
        }
        for layout in std::mem::take(&mut self.layouts) {
            let bytes = layout.reserved_bytes() as usize;
            // SAFETY: reserved by us; everything in it is unmapped.
            first = first.and(unsafe { cu!(None, cuMemAddressFree(layout.base, bytes)) });
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

/// How processes call what they do here.
const CALL: &str = "allocating symmetric memory";
/// Bound on the wait for the other processes where the caller gives none.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
