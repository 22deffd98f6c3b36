//! A net arena in a GPU's memory: what a network card reads and writes there without the host.

use crate::Error;
use crate::driver::cu;
use crate::mem::DeviceBuffer;
use crate::transport::{Dmabuf, Gpu, NetMemory};
use crate::world::World;
use cudarc::driver::sys;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Alignment of base and length: pages of the GPU, and a multiple of the host's, as dmabufs ask for.
const PAGE: u64 = 64 << 10;

/// Memory of a rank's GPU that can be an arena, zeroed. A transport that cannot reach it refuses it with the reason
/// ([`register`](crate::transport::Transport::register)); pinned memory of the host serves then.
#[derive(Debug)]
pub struct GpuArena {
    buffer: DeviceBuffer,
    base: u64,
    bytes: u64,
}

impl GpuArena {
    /// Allocates at least so many bytes, in whole pages.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others.
    pub fn new(world: &World, rank: u32, bytes: u64) -> Result<GpuArena, Error> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let buffer = DeviceBuffer::zeroed(world, rank, bytes + PAGE)?;
        let base = buffer.ptr().next_multiple_of(PAGE);
        Ok(GpuArena { buffer, base, bytes })
    }
}

// SAFETY: allocated in `new`, a page of room for the alignment, and freed with the value.
unsafe impl NetMemory for GpuArena {
    fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn gpu(&self) -> Option<Gpu> {
        Some(Gpu { ordinal: self.buffer.device() })
    }

    fn dmabuf(&self) -> Result<Dmabuf, String> {
        let mut fd: RawFd = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let (device, bytes) = (Some(self.buffer.device()), self.bytes as usize);
        let exported = self.buffer.context().enter().and_then(|_in| {
            // SAFETY: for this kind the out-pointer is that of an int; the range is mapped, and whole pages.
            unsafe {
                let out = std::ptr::from_mut(&mut fd).cast();
                cu!(device, cuMemGetHandleForAddressRange(out, self.base, bytes, kind, 0))
            }
        });
        exported.map_err(|e| e.to_string())?;
        // SAFETY: the driver has just made it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Dmabuf { fd, offset: 0 })
    }
}
