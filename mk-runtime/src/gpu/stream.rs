//! Streams that are owned, and events of a rank.

use crate::Result;
use crate::driver::{Context, Event, StreamRef, cu, ledger::between_launches};
use crate::world::World;
use cudarc::driver::sys;
use std::sync::Arc;

/// A stream that this value owns (non-blocking: it does not wait for the default stream).
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: StreamRef,
}

impl Stream {
    /// Creates a stream on a rank's GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn new(world: &World, rank: u32) -> Result<Stream> {
        Stream::in_context(world.context(rank)?.clone())
    }

    pub(crate) fn in_context(context: Arc<Context>) -> Result<Stream> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // It may wait for the GPU.
        let _quiet = between_launches();
        let entered = context.enter()?;
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { cu!(Some(context.ordinal()), cuStreamCreate(&mut raw, flags)) }?;
        drop(entered);
        Ok(Stream { context, raw: StreamRef::borrowed(raw) })
    }

    /// One stream per rank.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn per_rank(world: &World) -> Result<Vec<Stream>> {
        world.local_ranks().map(|r| Stream::new(world, r)).collect()
    }

    /// The handle, for launches.
    pub fn as_ref(&self) -> StreamRef {
        self.raw
    }

    /// Waits until everything in the stream is done.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), also that of an earlier kernel.
    pub fn synchronize(&self) -> Result<()> {
        let _in = self.context.enter()?;
        // SAFETY: our stream, in its context.
        unsafe { cu!(Some(self.context.ordinal()), cuStreamSynchronize(self.raw.raw())) }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.free("a stream was not destroyed", |gpu| {
            // SAFETY: our stream; the driver finishes its work before it frees it.
            unsafe { cu!(gpu, cuStreamDestroy_v2(self.raw.raw())) }
        });
    }
}

impl Event {
    /// An event that takes the time.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn new(world: &World, rank: u32) -> Result<Event> {
        Event::in_context(world.context(rank)?.clone(), sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event that orders only, which is cheaper.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn untimed(world: &World, rank: u32) -> Result<Event> {
        Event::in_context(world.context(rank)?.clone(), sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }
}
