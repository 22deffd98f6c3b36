//! Fault records: pinned host memory that kernels write and the host reads while they run, and one word that the
//! host writes and kernels read.
//!
//! In a world of processes each has a page with its own record, registered for its GPU, and maps those of the others on
//! its node, so that every rank can say what went wrong on the rank where it did.

use crate::driver::{Context, cu};
use crate::world::{Deadline, Group, SharedPages, World};
use crate::{Error, Result};
use cudarc::driver::sys;
use mk_abi::device::FaultRecord;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `FaultRecord::state`: complete.
const COMPLETE: u32 = 2;

/// One record per rank of the node, zero at first.
#[derive(Debug)]
pub(crate) struct FaultRecords {
    context: Arc<Context>,
    /// With their ranks, as the host sees them.
    host: Vec<(u32, *mut FaultRecord)>,
    /// Device address of the record of this process's first rank; those of its other ranks follow.
    device: u64,
    /// The lowest rank of this process, and how many it has.
    own: std::ops::Range<u32>,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// All records, from `cuMemHostAlloc`.
    Pinned,
    /// Pages by rank; this process's is registered with the driver.
    Pages(Vec<SharedPages>),
    Released,
}

// SAFETY: the memory is accessed through atomics and volatile reads only.
unsafe impl Send for FaultRecords {}
// SAFETY: as above.
unsafe impl Sync for FaultRecords {}

impl FaultRecords {
    /// Collective.
    pub(crate) fn new(world: &World, deadline: Deadline) -> Result<FaultRecords> {
        match world.group() {
            None => FaultRecords::pinned(world),
            Some(group) => FaultRecords::shared(world, group, deadline),
        }
    }

    fn pinned(world: &World) -> Result<FaultRecords> {
        let context = world.first_context()?.clone();
        let ranks = world.size() as usize;
        let _in = context.enter()?;
        let bytes = ranks * size_of::<FaultRecord>();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut raw = std::ptr::null_mut();
        let ordinal = Some(context.ordinal());
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { cu!(ordinal, cuMemHostAlloc(&mut raw, bytes, flags)) }?;
        let start: *mut FaultRecord = raw.cast();
        let mut records = FaultRecords {
            context: context.clone(),
            host: (0..).zip((0..ranks).map(|i| start.wrapping_add(i))).collect(),
            device: 0,
            own: world.local_ranks(),
            memory: Memory::Pinned,
        };
        // SAFETY: `bytes` bytes were just allocated.
        unsafe { std::ptr::write_bytes(start, 0, ranks) };
        records.find_device(raw)?;
        Ok(records)
    }

    fn shared(world: &World, group: &Group, deadline: Deadline) -> Result<FaultRecords> {
        let call = "sharing fault records";
        let made = SharedPages::create(size_of::<FaultRecord>());
        let (page, fd) = group.agree(call, made, deadline)?;
        let own = world.local_ranks();
        let node = world.topology().reach(own.start);
        let theirs = group.all_fds(call, fd, node.clone(), deadline);
        let mut page = Some(page);
        let mut open = |fd: &mut Option<std::os::fd::OwnedFd>| match fd.take() {
            Some(fd) => SharedPages::open(&fd, size_of::<FaultRecord>()),
            None => page
                .take()
                .ok_or_else(|| Error::System { call: "mmap", what: "a peer gave no file".into() }),
        };
        let context = world.first_context()?.clone();
        let registered = theirs
            .and_then(|mut theirs| theirs.iter_mut().map(&mut open).collect::<Result<Vec<_>, _>>());
        let registered = registered.and_then(|pages| {
            let mine = &pages[(own.start - node.start) as usize];
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            let (raw, bytes) = (mine.start(), mine.bytes());
            let _in = context.enter()?;
            // SAFETY: whole pages, mapped for as long as they are registered.
            unsafe { cu!(Some(context.ordinal()), cuMemHostRegister_v2(raw, bytes, flags)) }?;
            let mut records = FaultRecords {
                context: context.clone(),
                host: node.zip(pages.iter().map(|p| p.start().cast())).collect(),
                device: 0,
                own: own.clone(),
                memory: Memory::Pages(pages),
            };
            records.find_device(raw)?;
            Ok(records)
        });
        group.agree(call, registered, deadline)
    }

    /// The context is current.
    fn find_device(&mut self, raw: *mut std::ffi::c_void) -> Result<()> {
        let ordinal = Some(self.context.ordinal());
        // SAFETY: a valid out-pointer and the start of pinned memory. With unified addressing the address holds on
        // all GPUs.
        unsafe { cu!(ordinal, cuMemHostGetDevicePointer_v2(&mut self.device, raw, 0)) }
    }

    /// Where the kernel of one of this process's ranks writes.
    pub(crate) fn device_ptr(&self, rank: u32) -> u64 {
        self.device + u64::from(rank - self.own.start) * size_of::<FaultRecord>() as u64
    }

    /// Whether the kernel of a rank began its record.
    pub(crate) fn begun(&self, rank: u32) -> bool {
        self.host.iter().any(|(of, record)| *of == rank && state(*record) != 0)
    }

    /// Whether any kernel began a record. One load per rank, no driver call.
    pub(crate) fn any(&self) -> bool {
        self.host.iter().any(|(_, record)| state(*record) != 0)
    }

    /// The complete records. With `finished`, the kernels of this process are done and a half-written record of
    /// theirs counts too.
    pub(crate) fn read(&self, finished: bool) -> Vec<FaultRecord> {
        self.host
            .iter()
            .filter(|(rank, record)| match state(*record) {
                0 => false,
                COMPLETE => true,
                _ => finished && self.own.contains(rank),
            })
            // SAFETY: live; the state was loaded with acquire, and the kernel does not write after it stored it.
            .map(|(_, record)| unsafe { record.read_volatile() })
            .collect()
    }

    /// Tells the kernels of the node's ranks to give up, on behalf of rank `by`, unless they have been told before. A
    /// store: no driver call, and no stream, which could queue behind others.
    pub(crate) fn abort(&self, by: u32) {
        for (_, record) in &self.host {
            let told = word(*record, offset_of!(FaultRecord, abort));
            // What was said first stays.
            let _ = told.compare_exchange(0, by + 1, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// As `drop`, but says what failed; a later drop does nothing.
    pub(crate) fn release(&mut self) -> Result<()> {
        let memory = std::mem::replace(&mut self.memory, Memory::Released);
        let host = std::mem::take(&mut self.host);
        let ordinal = Some(self.context.ordinal());
        let _in = self.context.enter()?;
        let own = host.iter().find(|(rank, _)| *rank == self.own.start);
        match (memory, own) {
            // SAFETY: allocated by cuMemHostAlloc; the owner has waited for kernels that write it.
            (Memory::Pinned, Some((_, start))) => unsafe {
                cu!(ordinal, cuMemFreeHost((*start).cast()))
            },
            // SAFETY: registered by us and still mapped; the owner has waited for kernels that write it.
            (Memory::Pages(_pages), Some((_, start))) => unsafe {
                cu!(ordinal, cuMemHostUnregister((*start).cast()))
            },
            _ => Ok(()),
        }
    }
}

fn state(record: *mut FaultRecord) -> u32 {
    word(record, offset_of!(FaultRecord, state)).load(Ordering::Acquire)
}

/// A word of a live record.
fn word<'a>(record: *mut FaultRecord, offset: usize) -> &'a AtomicU32 {
    // SAFETY: inside the record, aligned as all its words are, and accessed by hosts as an atomic alone.
    unsafe { AtomicU32::from_ptr(record.byte_add(offset).cast()) }
}

impl Drop for FaultRecords {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}
