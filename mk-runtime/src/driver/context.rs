//! Primary contexts, the ones that PyTorch and the CUDA runtime use too.

use super::{cu, device};
use crate::Error;
use cudarc::driver::sys;

/// A retained primary context.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: i32,
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a CUcontext may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks internally.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(crate) fn retain(ordinal: i32) -> Result<Context, Error> {
        let device = device(ordinal)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; released in Drop.
        unsafe { cu!(Some(ordinal), cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        Ok(Context { ordinal, device, raw })
    }

    /// Device ordinal.
    pub(crate) fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Makes this the thread's context until the guard drops, which restores the caller's.
    pub(crate) fn enter(&self) -> Result<Entered, Error> {
        let mut previous = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; the driver is initialised because a context exists.
        unsafe { cu!(Some(self.ordinal), cuCtxGetCurrent(&mut previous)) }?;
        if previous == self.raw {
            return Ok(Entered { restore: None });
        }
        // SAFETY: `raw` is retained for as long as `self` lives.
        unsafe { cu!(Some(self.ordinal), cuCtxSetCurrent(self.raw)) }?;
        Ok(Entered { restore: Some(previous) })
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes this the thread's context, inside the life of a [`keep_current`] guard.
    pub(crate) fn switch_to(&self, _keep: &Entered) -> Result<(), Error> {
        // SAFETY: `raw` is retained for as long as `self` lives, and the guard restores the caller's.
        unsafe { cu!(Some(self.ordinal), cuCtxSetCurrent(self.raw)) }
    }

    /// Blocks until all work in the context is done.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        let _in = self.enter()?;
        // SAFETY: no pointers; the context is current.
        unsafe { cu!(Some(self.ordinal), cuCtxSynchronize()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: balances the retain.
        let released =
            unsafe { cu!(Some(self.ordinal), cuDevicePrimaryCtxRelease_v2(self.device)) };
        if let Err(error) = released {
            tracing::warn!(%error, "a primary context was not released");
        }
    }
}

/// A guard that restores the thread's present context, for a loop over several.
pub(crate) fn keep_current() -> Result<Entered, Error> {
    let mut previous = std::ptr::null_mut();
    // SAFETY: a valid out-pointer; callers hold a context, so the driver is initialised.
    unsafe { cu!(None, cuCtxGetCurrent(&mut previous)) }?;
    Ok(Entered { restore: Some(previous) })
}

/// Restores the thread's context when dropped.
#[must_use]
pub(crate) struct Entered {
    restore: Option<sys::CUcontext>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(previous) = self.restore {
            // SAFETY: the context was current on this thread, or is null, which means none.
            let status = unsafe { cu!(None, cuCtxSetCurrent(previous)) };
            if let Err(error) = status {
                tracing::warn!(%error, "the caller's context was not restored");
            }
        }
    }
}
