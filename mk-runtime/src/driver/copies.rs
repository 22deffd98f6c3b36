//! Copies, memsets and plain kernels that a call waits for, in a stream of the context's own.

use super::{Context, cu, ledger::between_launches};
use crate::Result;
use cudarc::driver::sys;

impl Context {
    /// Enqueues copies, memsets or plain kernels in a stream that has nothing else, and waits for them. (Not in the
    /// default stream: that waits for other blocking ones, of which one may be captured.)
    pub(crate) fn run(&self, enqueue: impl FnOnce(sys::CUstream) -> Result<()>) -> Result<()> {
        let _in = self.enter()?;
        let stream = self.copies()?;
        let enqueued = enqueue(stream);
        // SAFETY: our stream; the context is current.
        enqueued.and(unsafe { cu!(Some(self.ordinal()), cuStreamSynchronize(stream)) })
    }

    /// The context is current. One stream for as long as this lives: its creation may wait for the GPU.
    fn copies(&self) -> Result<sys::CUstream> {
        let copies = || self.copies.lock().unwrap_or_else(|e| e.into_inner());
        let there = *copies();
        if !there.is_null() {
            return Ok(there);
        }
        // Before the stream's lock: the thread that has locked the ledger may want the stream.
        let _quiet = between_launches();
        let mut stream = copies();
        if stream.is_null() {
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a valid out-pointer; the context is current.
            unsafe { cu!(Some(self.ordinal()), cuStreamCreate(&mut *stream, flags)) }?;
        }
        Ok(*stream)
    }
}
