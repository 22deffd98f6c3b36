//! Handles of streams, and events.

use super::{Context, cu};
use crate::Result;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// Somebody's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRef {
    raw: sys::CUstream,
}

// SAFETY: a CUstream may be used from any thread.
unsafe impl Send for StreamRef {}
// SAFETY: as above.
unsafe impl Sync for StreamRef {}

impl StreamRef {
    /// Borrows a `CUstream` (or `cudaStream_t`); null is the legacy default stream of the rank's GPU.
    ///
    /// # Safety
    /// It must be a stream of the primary context of the GPU of the rank that it is used for, and live for as long
    /// as the value is used.
    pub unsafe fn from_raw(raw: *mut c_void) -> StreamRef {
        StreamRef { raw: raw.cast() }
    }

    /// The `CUstream`.
    pub fn as_raw(self) -> *mut c_void {
        self.raw.cast()
    }

    /// Borrows a stream that the crate owns.
    pub(crate) fn borrowed(raw: sys::CUstream) -> StreamRef {
        StreamRef { raw }
    }

    pub(crate) fn raw(self) -> sys::CUstream {
        self.raw
    }
}

impl StreamRef {
    /// The capture that the stream of a GPU is part of, if it is, also where that is already spoilt. The context is
    /// current.
    pub(crate) fn capture(self, device: i32) -> Result<Option<u64>> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        // SAFETY: valid out-pointers and a live stream; what is null is not asked for.
        unsafe {
            cu!(
                Some(device),
                cuStreamGetCaptureInfo_v3(
                    self.raw,
                    &mut status,
                    &mut id,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut()
                )
            )
        }?;
        let none = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        Ok((status != none).then_some(id))
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: a CUevent may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event in a context.
    pub(crate) fn in_context(context: Arc<Context>, flags: sys::CUevent_flags) -> Result<Event> {
        let mut raw = std::ptr::null_mut();
        let entered = context.enter()?;
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { cu!(Some(context.ordinal()), cuEventCreate(&mut raw, flags as u32)) }?;
        drop(entered);
        Ok(Event { context, raw })
    }

    /// Marks the end of what is in the stream now.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn record(&self, stream: StreamRef) -> Result<()> {
        let _in = self.context.enter()?;
        self.record_entered(stream)
    }

    /// As [`Event::record`], with the context current already.
    pub(crate) fn record_entered(&self, stream: StreamRef) -> Result<()> {
        // SAFETY: a live event and stream of the same context.
        unsafe { cu!(Some(self.context.ordinal()), cuEventRecord(self.raw, stream.raw)) }
    }

    /// Makes later work of the stream wait for the event. An event that was never recorded is over.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn hold(&self, stream: StreamRef) -> Result<()> {
        let _in = self.context.enter()?;
        self.hold_entered(stream)
    }

    /// As [`Event::hold`], with the context current already.
    pub(crate) fn hold_entered(&self, stream: StreamRef) -> Result<()> {
        // SAFETY: a live event and stream.
        unsafe { cu!(Some(self.context.ordinal()), cuStreamWaitEvent(stream.raw, self.raw, 0)) }
    }

    /// Blocks until the event is over.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), also that of an earlier kernel.
    pub fn synchronize(&self) -> Result<()> {
        let _in = self.context.enter()?;
        // SAFETY: a live event.
        unsafe { cu!(Some(self.context.ordinal()), cuEventSynchronize(self.raw)) }
    }

    /// Time from this event to a later one, in milliseconds (resolution about 0.5 us). Both must be over.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let _in = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: a valid out-pointer and live events.
        unsafe {
            cu!(Some(self.context.ordinal()), cuEventElapsedTime_v2(&mut ms, self.raw, later.raw))
        }?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.free("an event was not destroyed", |gpu| {
            // SAFETY: our event; the driver keeps it until it is over.
            unsafe { cu!(gpu, cuEventDestroy_v2(self.raw)) }
        });
    }
}
