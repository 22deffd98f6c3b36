//! Plain device memory of one rank (`cuMemAlloc`).

use crate::driver::ledger::{between_launches, wait_for_launches};
use crate::driver::{Context, cu};
use crate::world::World;
use crate::{Error, Result};
use std::sync::Arc;

/// Device memory, freed on drop. Freeing waits for the GPU, other methods for the launches of instances on it and for
/// nothing else: replays of graphs, and what the caller enqueued, are the caller's to wait for.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    ptr: u64,
    bytes: u64,
}

impl DeviceBuffer {
    /// Allocates; the contents are undefined. Zero bytes are a null pointer.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others.
    pub fn new(world: &World, rank: u32, bytes: u64) -> Result<DeviceBuffer> {
        DeviceBuffer::in_context(world.context(rank)?.clone(), bytes)
    }

    fn in_context(context: Arc<Context>, bytes: u64) -> Result<DeviceBuffer> {
        let mut ptr = 0;
        if bytes > 0 {
            let _quiet = between_launches();
            let _in = context.enter()?;
            // SAFETY: a valid out-pointer; the context is current.
            unsafe { cu!(Some(context.ordinal()), cuMemAlloc_v2(&mut ptr, bytes as usize)) }?;
        }
        Ok(DeviceBuffer { context, ptr, bytes })
    }

    /// Allocates and zeroes. Waits for nothing else that the GPU does.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn zeroed(world: &World, rank: u32, bytes: u64) -> Result<DeviceBuffer> {
        DeviceBuffer::filled(world, rank, bytes, 0)
    }

    /// Like [`DeviceBuffer::zeroed`], with another byte.
    pub(crate) fn filled(world: &World, rank: u32, bytes: u64, byte: u8) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::new(world, rank, bytes)?;
        memset(&buffer.context, buffer.ptr, byte, bytes)?;
        Ok(buffer)
    }

    /// Allocates, with one word everywhere: a constant that kernels read. Waits for nothing else that the GPU does.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn of_words(world: &World, rank: u32, word: u32, n: u64) -> Result<DeviceBuffer> {
        let bytes = n.checked_mul(4).ok_or_else(|| Error::Shape {
            what: format!("{n} words are more bytes than can be counted"),
        })?;
        let buffer = DeviceBuffer::new(world, rank, bytes)?;
        if n > 0 {
            let (device, ptr) = (Some(buffer.device()), buffer.ptr);
            // SAFETY: just allocated, with room for so many words.
            buffer.context.run(|stream| unsafe {
                cu!(device, cuMemsetD32Async(ptr, word, n as usize, stream))
            })?;
        }
        Ok(buffer)
    }

    /// Device address; 0 for an empty buffer.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// Device ordinal.
    pub fn device(&self) -> i32 {
        self.context.ordinal()
    }

    /// Where it was allocated.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Writes one byte value everywhere, after the GPU's launches, and waits.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn fill(&self, byte: u8) -> Result<()> {
        wait_for_launches(self.device())?;
        memset(&self.context, self.ptr, byte, self.bytes)
    }

    /// Copies from host memory, after the GPU's launches, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths differ; [`Error::Cuda`].
    pub fn upload(&self, bytes: &[u8]) -> Result<()> {
        self.same_size(bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        wait_for_launches(self.device())?;
        let (device, from) = (Some(self.device()), bytes.as_ptr().cast());
        // SAFETY: both ranges are `self.bytes` long and live.
        self.context.run(|stream| unsafe {
            cu!(device, cuMemcpyHtoDAsync_v2(self.ptr, from, bytes.len(), stream))
        })
    }

    /// Copies to host memory, after the GPU's launches.
    ///
    /// # Errors
    /// [`Error::Cuda`], also that of an earlier kernel.
    pub fn download(&self) -> Result<Vec<u8>> {
        let mut out = vec![0u8; self.bytes as usize];
        if out.is_empty() {
            return Ok(out);
        }
        wait_for_launches(self.device())?;
        download(&self.context, self.ptr, &mut out)?;
        Ok(out)
    }

    /// Copies all of another buffer, which may be on another GPU, after both GPUs' launches, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the sizes differ; [`Error::Cuda`].
    pub fn copy_from(&self, from: &DeviceBuffer) -> Result<()> {
        self.same_size(from.bytes)?;
        self.copy_range(0, from, 0, self.bytes)
    }

    /// Copies `bytes` bytes; otherwise as [`DeviceBuffer::copy_from`].
    ///
    /// # Errors
    /// [`Error::Shape`] when a range does not fit; [`Error::Cuda`].
    pub fn copy_range(&self, at: u64, from: &DeviceBuffer, from_at: u64, bytes: u64) -> Result<()> {
        let fits = |buffer: &DeviceBuffer, at: u64| {
            at.checked_add(bytes).is_some_and(|end| end <= buffer.bytes)
        };
        if !fits(self, at) || !fits(from, from_at) {
            return Err(Error::Shape {
                what: format!(
                    "a copy of {bytes} bytes from offset {from_at} of {} to offset {at} of {} does not fit",
                    from.bytes, self.bytes
                ),
            });
        }
        if bytes == 0 {
            return Ok(());
        }
        wait_for_launches(from.device())?;
        wait_for_launches(self.device())?;
        let (to, here) = (self.ptr + at, self.context.raw());
        let (source, there) = (from.ptr + from_at, from.context.raw());
        let device = Some(self.device());
        // SAFETY: both ranges were checked, and each is in its context.
        self.context.run(|stream| unsafe {
            cu!(device, cuMemcpyPeerAsync(to, here, source, there, bytes as usize, stream))
        })
    }

    fn same_size(&self, bytes: u64) -> Result<()> {
        if bytes == self.bytes {
            return Ok(());
        }
        Err(Error::Shape { what: format!("{bytes} bytes do not fill a buffer of {}", self.bytes) })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        let _quiet = between_launches();
        self.context.free("device memory was not freed", |gpu| {
            // SAFETY: allocated by us and not used again; the driver waits for kernels that use it.
            unsafe { cu!(gpu, cuMemFree_v2(self.ptr)) }
        });
    }
}

/// Fills device memory that nothing uses at present with a byte, and waits for that alone: the GPU may be at work on
/// what only ends when a peer does something, who may be waiting for this process. (The driver waits all the same for
/// one stream of some 75.)
pub(super) fn memset(context: &Context, ptr: u64, byte: u8, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let device = Some(context.ordinal());
    // SAFETY: the callers pass ranges that they own.
    context.run(|stream| unsafe { cu!(device, cuMemsetD8Async(ptr, byte, bytes as usize, stream)) })
}

/// Fills host memory from device memory that nothing writes at present.
pub(super) fn download(context: &Context, ptr: u64, to: &mut [u8]) -> Result<()> {
    let (device, host) = (Some(context.ordinal()), to.as_mut_ptr().cast());
    // SAFETY: the callers pass ranges of that length.
    context.run(|stream| unsafe { cu!(device, cuMemcpyDtoHAsync_v2(host, ptr, to.len(), stream)) })
}

/// Waits for all work of a GPU, from any thread; launches of other threads on it wait, too. Of the calls
/// that do that, those that free memory leave captures alone, and of those, this needs no memory of the GPU's.
pub(crate) fn drain(context: &Context) -> Result<()> {
    let _quiet = between_launches();
    let _in = context.enter()?;
    let (device, mut page) = (Some(context.ordinal()), std::ptr::null_mut());
    // SAFETY: a valid out-pointer; the context is current.
    unsafe { cu!(device, cuMemHostAlloc(&mut page, 4096, 0)) }?;
    // SAFETY: just allocated, and never used.
    unsafe { cu!(device, cuMemFreeHost(page)) }
}
