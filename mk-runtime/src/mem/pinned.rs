//! Pinned memory of the host that all GPUs of this process reach.

use crate::Result;
use crate::driver::{Context, cu};
use cudarc::driver::sys;
use std::sync::Arc;

/// Memory from `cuMemHostAlloc`, zeroed. Freeing waits for the GPU: owners have waited for kernels that use it.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    host: *mut u8,
    device: u64,
    bytes: u64,
}

// SAFETY: memory that threads, cards and GPUs share; who accesses it does so by atomics, or where a plan orders it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub(crate) fn zeroed(context: &Arc<Context>, bytes: u64) -> Result<Pinned> {
        let ordinal = Some(context.ordinal());
        let _in = context.enter()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { cu!(ordinal, cuMemHostAlloc(&mut raw, bytes.max(1) as usize, flags)) }?;
        let mut this = Pinned { context: context.clone(), host: raw.cast(), device: 0, bytes };
        // SAFETY: `bytes` bytes were just allocated.
        unsafe { std::ptr::write_bytes(this.host, 0, bytes as usize) };
        // SAFETY: a valid out-pointer and the start of pinned memory. With unified addressing the address holds on all
        // GPUs.
        unsafe { cu!(ordinal, cuMemHostGetDevicePointer_v2(&mut this.device, raw, 0)) }?;
        Ok(this)
    }

    /// As the host sees it.
    pub(crate) fn host(&self) -> *mut u8 {
        self.host
    }

    /// As GPUs see it.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.free("pinned memory was not freed", |gpu| {
            // SAFETY: allocated by us; nobody uses it any more.
            unsafe { cu!(gpu, cuMemFreeHost(self.host.cast())) }
        });
    }
}
