//! Primary contexts, the ones that PyTorch and the CUDA runtime use too.

use super::{cu, device};
use crate::Result;
use cudarc::driver::sys;
use std::sync::Mutex;
use sys::CUstreamCaptureMode as CaptureMode;

/// A retained primary context.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: i32,
    device: sys::CUdevice,
    raw: sys::CUcontext,
    /// The stream of [`Context::run`]; null until it is needed.
    pub(super) copies: Mutex<sys::CUstream>,
}

// SAFETY: a CUcontext may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks internally.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(crate) fn retain(ordinal: i32) -> Result<Context> {
        let device = device(ordinal)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; released in Drop.
        unsafe { cu!(Some(ordinal), cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        Ok(Context { ordinal, device, raw, copies: Mutex::new(std::ptr::null_mut()) })
    }

    /// Device ordinal.
    pub(crate) fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Makes this the thread's context until the guard drops, which restores the caller's. Until then no call of this
    /// thread spoils a capture, of whatever mode, that it or another thread has open, but for `cuCtxSynchronize`, and
    /// what is put into the captured stream.
    pub(crate) fn enter(&self) -> Result<Entered> {
        let mut previous = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; the driver is initialised because a context exists.
        unsafe { cu!(Some(self.ordinal), cuCtxGetCurrent(&mut previous)) }?;
        let mut entered = Entered { restore: None, mode: None };
        if previous != self.raw {
            // SAFETY: `raw` is retained for as long as `self` lives.
            unsafe { cu!(Some(self.ordinal), cuCtxSetCurrent(self.raw)) }?;
            entered.restore = Some(previous);
        }
        entered.mode = Some(exchange_mode(CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?);
        Ok(entered)
    }

    /// Frees something in this context, for a `Drop`: what `failed` says is logged where that fails.
    pub(crate) fn free(&self, failed: &str, free: impl FnOnce(Option<i32>) -> Result<()>) {
        if let Err(error) = self.enter().and_then(|_in| free(Some(self.ordinal))) {
            tracing::warn!(%error, "{failed}");
        }
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes this the thread's context, inside the life of a [`keep_current`] guard.
    pub(crate) fn switch_to(&self, _keep: &Entered) -> Result<()> {
        // SAFETY: `raw` is retained for as long as `self` lives, and the guard restores the caller's.
        unsafe { cu!(Some(self.ordinal), cuCtxSetCurrent(self.raw)) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let copies = *self.copies.get_mut().unwrap_or_else(|e| e.into_inner());
        if !copies.is_null() {
            self.free("a stream was not destroyed", |gpu| {
                // SAFETY: our stream, which nobody uses any more.
                unsafe { cu!(gpu, cuStreamDestroy_v2(copies)) }
            });
        }
        // SAFETY: balances the retain.
        let released =
            unsafe { cu!(Some(self.ordinal), cuDevicePrimaryCtxRelease_v2(self.device)) };
        if let Err(error) = released {
            tracing::warn!(%error, "a primary context was not released");
        }
    }
}

/// A guard that restores the thread's present context, for a loop over several.
pub(crate) fn keep_current() -> Result<Entered> {
    let mut previous = std::ptr::null_mut();
    // SAFETY: a valid out-pointer; callers hold a context, so the driver is initialised.
    unsafe { cu!(None, cuCtxGetCurrent(&mut previous)) }?;
    Ok(Entered { restore: Some(previous), mode: None })
}

/// Restores the thread's context, and what its calls mean for captures, when dropped.
#[must_use]
pub(crate) struct Entered {
    restore: Option<sys::CUcontext>,
    mode: Option<CaptureMode>,
}

/// Sets what calls of this thread that a capture cannot record mean for captures; returns what it was.
fn exchange_mode(mut mode: CaptureMode) -> Result<CaptureMode> {
    // SAFETY: a valid pointer to a mode, where the driver leaves another.
    unsafe { cu!(None, cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
    Ok(mode)
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.mode.map(exchange_mode) {
            tracing::warn!(%error, "the caller's capture mode was not restored");
        }
        if let Some(previous) = self.restore {
            // SAFETY: the context was current on this thread, or is null, which means none.
            let status = unsafe { cu!(None, cuCtxSetCurrent(previous)) };
            if let Err(error) = status {
                tracing::warn!(%error, "the caller's context was not restored");
            }
        }
    }
}
