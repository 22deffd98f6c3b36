//! Plain device memory of one rank (`cuMemAlloc`).

use crate::Error;
use crate::driver::{Context, cu};
use crate::gpu::Stream;
use crate::world::World;
use crate::world::order::between_launches;
use std::sync::Arc;

/// Device memory, freed on drop. Freeing waits for the device.
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
    pub fn new(world: &World, rank: u32, bytes: u64) -> Result<DeviceBuffer, Error> {
        DeviceBuffer::in_context(world.context(rank)?.clone(), bytes)
    }

    fn in_context(context: Arc<Context>, bytes: u64) -> Result<DeviceBuffer, Error> {
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
    pub fn zeroed(world: &World, rank: u32, bytes: u64) -> Result<DeviceBuffer, Error> {
        DeviceBuffer::filled(world, rank, bytes, 0)
    }

    /// Like [`DeviceBuffer::zeroed`], with another byte.
    pub(crate) fn filled(
        world: &World,
        rank: u32,
        bytes: u64,
        byte: u8,
    ) -> Result<DeviceBuffer, Error> {
        let buffer = DeviceBuffer::new(world, rank, bytes)?;
        memset(&buffer.context, buffer.ptr, byte, bytes)?;
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

    /// Writes one byte value everywhere, after all earlier work of the GPU, and waits.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        self.wait()?;
        memset(&self.context, self.ptr, byte, self.bytes)
    }

    /// Copies from host memory, after all earlier work of the GPU, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths differ; [`Error::Cuda`].
    pub fn upload(&self, bytes: &[u8]) -> Result<(), Error> {
        self.same_size(bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _in = self.context.enter()?;
        self.wait()?;
        // SAFETY: both ranges are `self.bytes` long and live.
        unsafe {
            cu!(Some(self.device()), cuMemcpyHtoD_v2(self.ptr, bytes.as_ptr().cast(), bytes.len()))
        }?;
        // The copy from pageable memory may return before the device has it.
        self.wait()
    }

    /// Copies to host memory after all earlier work of the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`], also that of an earlier kernel.
    pub fn download(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![0u8; self.bytes as usize];
        if out.is_empty() {
            return Ok(out);
        }
        let _in = self.context.enter()?;
        self.wait()?;
        // SAFETY: both ranges are `self.bytes` long and live.
        unsafe {
            cu!(Some(self.device()), cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), self.ptr, out.len()))
        }?;
        Ok(out)
    }

    /// Copies all of another buffer, which may be on another GPU, after all earlier work of both GPUs, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the sizes differ; [`Error::Cuda`].
    pub fn copy_from(&self, from: &DeviceBuffer) -> Result<(), Error> {
        self.same_size(from.bytes)?;
        self.copy_range(0, from, 0, self.bytes)
    }

    /// Copies `bytes` bytes; otherwise as [`DeviceBuffer::copy_from`].
    ///
    /// # Errors
    /// [`Error::Shape`] when a range does not fit; [`Error::Cuda`].
    pub fn copy_range(
        &self,
        at: u64,
        from: &DeviceBuffer,
        from_at: u64,
        bytes: u64,
    ) -> Result<(), Error> {
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
        from.context.synchronize()?;
        let _in = self.context.enter()?;
        self.wait()?;
        // SAFETY: both ranges were checked, and each is in its context.
        unsafe {
            cu!(
                Some(self.device()),
                cuMemcpyPeer(
                    self.ptr + at,
                    self.context.raw(),
                    from.ptr + from_at,
                    from.context.raw(),
                    bytes as usize
                )
            )
        }?;
        self.wait()
    }

    fn same_size(&self, bytes: u64) -> Result<(), Error> {
        if bytes == self.bytes {
            return Ok(());
        }
        Err(Error::Shape { what: format!("{bytes} bytes do not fill a buffer of {}", self.bytes) })
    }

    fn wait(&self) -> Result<(), Error> {
        self.context.synchronize()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        let _quiet = between_launches();
        let freed = self.context.enter().and_then(|_in| {
            // SAFETY: allocated by us and not used again; the driver waits for kernels that use it.
            unsafe { cu!(Some(self.context.ordinal()), cuMemFree_v2(self.ptr)) }
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "device memory was not freed");
        }
    }
}

/// Fills device memory that nothing uses at present with a byte, and waits for that alone: the GPU may be at work on what only ends when
/// a peer does something, who may be waiting for this process. (The driver waits all the same for one stream of some 75.)
pub(super) fn memset(context: &Arc<Context>, ptr: u64, byte: u8, bytes: u64) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let stream = Stream::in_context(context.clone())?;
    let entered = context.enter()?;
    let raw = stream.as_ref().raw();
    // SAFETY: the callers pass ranges that they own, and the stream is of the current context.
    unsafe { cu!(Some(context.ordinal()), cuMemsetD8Async(ptr, byte, bytes as usize, raw)) }?;
    drop(entered);
    stream.synchronize()
}
