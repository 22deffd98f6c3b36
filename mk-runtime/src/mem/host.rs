//! Fault records: pinned host memory that kernels write and the host reads while they run.

use crate::Error;
use crate::driver::{Context, cu};
use crate::world::World;
use cudarc::driver::sys;
use mk_abi::device::FaultRecord;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `FaultRecord::state`: complete.
const COMPLETE: u32 = 2;

/// One record per rank, zero at first.
#[derive(Debug)]
pub(crate) struct FaultRecords {
    context: Arc<Context>,
    host: *mut FaultRecord,
    device: u64,
    ranks: usize,
}

// SAFETY: the memory is read through atomics and volatile reads only.
unsafe impl Send for FaultRecords {}
// SAFETY: as above.
unsafe impl Sync for FaultRecords {}

impl FaultRecords {
    pub(crate) fn new(world: &World) -> Result<FaultRecords, Error> {
        let context = world.context(0)?.clone();
        let ranks = world.size() as usize;
        let _in = context.enter()?;
        let bytes = ranks * size_of::<FaultRecord>();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut raw = std::ptr::null_mut();
        let ordinal = Some(context.ordinal());
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { cu!(ordinal, cuMemHostAlloc(&mut raw, bytes, flags)) }?;
        let mut records =
            FaultRecords { context: context.clone(), host: raw.cast(), device: 0, ranks };
        // SAFETY: `bytes` bytes were just allocated.
        unsafe { std::ptr::write_bytes(records.host, 0, ranks) };
        // SAFETY: a valid out-pointer and the allocation's start. With unified addressing the address holds on all GPUs.
        unsafe { cu!(ordinal, cuMemHostGetDevicePointer_v2(&mut records.device, raw, 0)) }?;
        Ok(records)
    }

    /// Where a rank's kernel writes.
    pub(crate) fn device_ptr(&self, rank: u32) -> u64 {
        self.device + u64::from(rank) * size_of::<FaultRecord>() as u64
    }

    /// Whether any kernel began a record. Two loads per rank, no driver call.
    pub(crate) fn any(&self) -> bool {
        (0..self.ranks).any(|rank| self.state(rank) != 0)
    }

    /// The complete records. With `finished`, kernels are done and a half-written record counts too.
    pub(crate) fn read(&self, finished: bool) -> Vec<FaultRecord> {
        (0..self.ranks)
            .filter(|rank| match self.state(*rank) {
                0 => false,
                COMPLETE => true,
                _ => finished,
            })
            // SAFETY: in bounds; the state was loaded with acquire, and the kernel does not write after it stored it.
            .map(|rank| unsafe { self.host.add(rank).read_volatile() })
            .collect()
    }

    fn state(&self, rank: usize) -> u32 {
        const { assert!(offset_of!(FaultRecord, state) % align_of::<AtomicU32>() == 0) };
        // SAFETY: in bounds, aligned, and accessed as an atomic word by the host alone.
        unsafe {
            let word = self.host.add(rank).byte_add(offset_of!(FaultRecord, state)).cast::<u32>();
            AtomicU32::from_ptr(word).load(Ordering::Acquire)
        }
    }
}

impl Drop for FaultRecords {
    fn drop(&mut self) {
        let freed = self.context.enter().and_then(|_in| {
            // SAFETY: allocated by cuMemHostAlloc; the owner has waited for kernels that write it.
            unsafe { cu!(Some(self.context.ordinal()), cuMemFreeHost(self.host.cast())) }
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}
