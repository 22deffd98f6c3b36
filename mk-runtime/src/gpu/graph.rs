//! CUDA graphs: a launch captured once and replayed.

use super::stream::Stream;
use crate::Result;
use crate::driver::StreamRef;
use crate::driver::ledger::between_launches;
use crate::driver::{Context, cu};
use cudarc::driver::sys;
use std::cell::RefCell;
use std::sync::Arc;

/// What a graph has captured, and may have failed since.
pub(crate) trait Usable: Send + Sync {
    /// Whether it may still run.
    fn usable(&self) -> Result<()>;
}

thread_local! {
    /// What this thread captures at present, if [`Graph::capture`] is at work.
    static CAPTURED: RefCell<Option<Vec<Arc<dyn Usable>>>> = const { RefCell::new(None) };
}

/// Tells a capture of this thread what it depends on. Captures of others (PyTorch's, say) do not hear of it; for them
/// the kernel looks at its abort flag when it starts.
pub(crate) fn note_capture<T: Usable + 'static>(what: &Arc<T>) {
    CAPTURED.with_borrow_mut(|captured| {
        if let Some(all) = captured {
            all.push(what.clone());
        }
    });
}

/// An instantiated graph of one rank.
///
/// A replay runs with the arguments of the capture, so tensors must stay where they are. Replays are not ordered
/// against other launches of the world: keep them on streams that the caller orders.
pub struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
    captured: Vec<Arc<dyn Usable>>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("raw", &self.raw).finish_non_exhaustive()
    }
}

// SAFETY: a CUgraphExec may move between threads; `launch` takes `&mut self`.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `enqueue` puts into the streams, one graph per stream, and uploads the graphs.
    ///
    /// # Errors
    /// What `enqueue` returns; [`Error::Cuda`](crate::Error::Cuda) for what cannot be captured.
    pub fn capture(streams: &[Stream], enqueue: impl FnOnce() -> Result<()>) -> Result<Vec<Graph>> {
        let mut begun = 0;
        let mut result = Ok(());
        for stream in streams {
            result = begin(stream);
            if result.is_err() {
                break;
            }
            begun += 1;
        }
        let outer = CAPTURED.replace(Some(Vec::new()));
        let result = result.and_then(|()| enqueue());
        let captured = CAPTURED.replace(outer).unwrap_or_default();
        // End every capture that began, also after a failure: a stream left capturing is unusable.
        let ended: Vec<_> = streams[..begun].iter().map(end).collect();
        let ready: Vec<_> =
            ended.into_iter().zip(streams).map(|(g, s)| instantiate(g?, s, &captured)).collect();
        result?;
        ready.into_iter().collect()
    }

    /// Replays the graph into a stream of its GPU.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) when an instance in it has failed;
    /// [`Error::PeerGone`](crate::Error::PeerGone); [`Error::Cuda`](crate::Error::Cuda).
    pub fn launch(&mut self, stream: StreamRef) -> Result<()> {
        for captured in &self.captured {
            captured.usable()?;
        }
        let _in = self.context.enter()?;
        // SAFETY: a live graph and stream of the same context.
        unsafe { cu!(Some(self.context.ordinal()), cuGraphLaunch(self.raw, stream.raw())) }
    }
}

fn begin(stream: &Stream) -> Result<()> {
    let context = stream.context();
    let _in = context.enter()?;
    // Thread-local: other threads of the process may go on allocating.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: our stream, in its context.
    unsafe { cu!(Some(context.ordinal()), cuStreamBeginCapture_v2(stream.as_ref().raw(), mode)) }
}

/// A graph that was recorded and cannot run yet.
struct Recorded {
    context: Arc<Context>,
    raw: sys::CUgraph,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.context.free("a recorded graph was not destroyed", |gpu| {
            // SAFETY: our graph; an executable one does not need it.
            unsafe { cu!(gpu, cuGraphDestroy(self.raw)) }
        });
    }
}

fn end(stream: &Stream) -> Result<Recorded> {
    let context = stream.context();
    let _in = context.enter()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: a capture that `begin` started; a valid out-pointer.
    unsafe { cu!(Some(context.ordinal()), cuStreamEndCapture(stream.as_ref().raw(), &mut raw)) }?;
    Ok(Recorded { context: context.clone(), raw })
}

fn instantiate(recorded: Recorded, stream: &Stream, captured: &[Arc<dyn Usable>]) -> Result<Graph> {
    let _quiet = between_launches();
    let context = recorded.context.clone();
    let device = Some(context.ordinal());
    let _in = context.enter()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: valid out-pointer and graph.
    unsafe { cu!(device, cuGraphInstantiateWithFlags(&mut raw, recorded.raw, 0)) }?;
    let exec = Graph { context: context.clone(), raw, captured: captured.to_vec() };
    // SAFETY: a live graph and stream. The upload now keeps the first replay from doing it between two ranks.
    unsafe { cu!(device, cuGraphUpload(raw, stream.as_ref().raw())) }?;
    Ok(exec)
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _quiet = between_launches();
        self.context.free("a graph was not destroyed", |gpu| {
            // SAFETY: our graph; the driver keeps it until its replays are over.
            unsafe { cu!(gpu, cuGraphExecDestroy(self.raw)) }
        });
    }
}
