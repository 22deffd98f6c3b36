//! A net arena in a GPU's memory: what a network card, or another GPU's copy engine, reads and writes there without the
//! host.

use crate::driver::{Context, can_access_peer, cu, ledger::between_launches};
use crate::mem::DeviceBuffer;
use crate::transport::{CopyEngine, Dmabuf, Gpu, NetMemory, Piece, TransportError};
use crate::world::World;
use crate::{Error, Result};
use cudarc::driver::sys;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of base and length: pages of the GPU, and a multiple of the host's, as dmabufs ask for.
const PAGE: u64 = 64 << 10;
/// Streams that copy; one more sets words.
const COPIES: usize = 4;

/// Most operations of a batch (CUDA's limit).
const WORDS_AT_ONCE: usize = 256;

/// Memory of a rank's GPU that can be an arena, zeroed. A transport that cannot reach it refuses it with the reason
/// ([`register`](crate::transport::Transport::register)); pinned memory of the host serves then.
#[derive(Debug)]
pub struct GpuArena {
    streams: Streams,
    /// GPUs of this process whose memory it reaches, its own among them.
    reached: Vec<i32>,
    turn: AtomicUsize,
    buffer: DeviceBuffer,
    base: u64,
    bytes: u64,
}

/// Streams for copies, and the last one for words. Of the highest priority: others never share a queue of the GPU with
/// the stream of a kernel, behind which they would wait.
#[derive(Debug)]
struct Streams {
    context: Arc<Context>,
    all: Vec<sys::CUstream>,
}

// SAFETY: a CUstream may be used from any thread.
unsafe impl Send for Streams {}
// SAFETY: as above.
unsafe impl Sync for Streams {}

impl Streams {
    fn new(context: &Arc<Context>) -> Result<Streams> {
        let mut this = Streams { context: context.clone(), all: Vec::new() };
        let device = Some(context.ordinal());
        let (mut lowest, mut highest) = (0, 0);
        // They may wait for the GPU.
        let _quiet = between_launches();
        let _in = context.enter()?;
        // SAFETY: valid out-pointers; the context is current.
        unsafe { cu!(device, cuCtxGetStreamPriorityRange(&mut lowest, &mut highest)) }?;
        for _ in 0..=COPIES {
            let mut raw = std::ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: as above.
            unsafe { cu!(device, cuStreamCreateWithPriority(&mut raw, flags, highest)) }?;
            this.all.push(raw);
        }
        Ok(this)
    }

    /// Enqueues, in the stream of this number.
    fn enqueue(
        &self,
        which: usize,
        enqueue: impl FnOnce(Option<i32>, sys::CUstream) -> Result<()>,
    ) -> Result<()> {
        let _in = self.context.enter()?;
        enqueue(Some(self.context.ordinal()), self.all[which % self.all.len()])
    }

    fn wait(&self, which: usize) -> Result<()> {
        self.enqueue(which, |device, stream| {
            // SAFETY: our stream; its context is current.
            unsafe { cu!(device, cuStreamSynchronize(stream)) }
        })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.context.free("streams of a net arena were not destroyed", |gpu| {
            // SAFETY: our streams; the driver finishes their work before it frees them.
            self.all.iter().try_for_each(|s| unsafe { cu!(gpu, cuStreamDestroy_v2(*s)) })
        });
    }
}

impl GpuArena {
    /// Allocates at least so many bytes, in whole pages, and lets the GPU reach those of this process's other ranks.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others.
    pub fn new(world: &World, rank: u32, bytes: u64) -> Result<GpuArena> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let buffer = DeviceBuffer::zeroed(world, rank, bytes + PAGE)?;
        let base = buffer.ptr().next_multiple_of(PAGE);
        let context = world.context(rank)?;
        let mut reached = Vec::new();
        for other in world.local_ranks() {
            let other = world.context(other)?;
            if reach(context, other)? {
                reached.push(other.ordinal());
            }
        }
        let streams = Streams::new(context)?;
        let arena = GpuArena { streams, reached, turn: AtomicUsize::new(0), buffer, base, bytes };
        // What the driver makes at the first use of a stream is made before a kernel runs.
        for _ in 0..COPIES {
            let (zero, to) = ([0; 8], arena.base());
            let piece = Piece { from: zero.as_ptr(), to, bytes: 8 };
            // SAFETY: inside, and nobody's yet.
            unsafe { arena.moved(&[piece], &[(to, 0), (to, 0)]) }?;
        }
        // SAFETY: as above.
        unsafe { arena.set(&[(arena.base(), 0)]) }
            .and_then(|()| arena.settle())
            .map_err(|what| Error::Transport(TransportError::Memory { what }))?;
        Ok(arena)
    }

    /// Copies bytes of it to the host, and waits.
    ///
    /// # Errors
    /// [`TransportError::Memory`] for bytes that are not inside; [`Error::Cuda`].
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.inside(at, out.len())?;
        let from = self.base().wrapping_add(at as usize);
        let piece = Piece { from, to: out.as_mut_ptr(), bytes: out.len() as u64 };
        // SAFETY: inside, and `out` has as many bytes.
        unsafe { self.moved(&[piece], &[]) }
    }

    /// Copies bytes of the host into it, and waits.
    ///
    /// # Errors
    /// As [`GpuArena::read`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.inside(at, bytes.len())?;
        let to = self.base().wrapping_add(at as usize);
        let piece = Piece { from: bytes.as_ptr(), to, bytes: bytes.len() as u64 };
        // SAFETY: inside, and `bytes` has as many.
        unsafe { self.moved(&[piece], &[]) }
    }

    /// Fills bytes, and waits.
    ///
    /// # Errors
    /// As [`GpuArena::read`].
    pub(crate) fn fill(&self, at: u64, bytes: u64, byte: u8) -> Result<()> {
        self.inside(at, bytes as usize)?;
        if bytes == 0 {
            return Ok(());
        }
        let which = self.turn();
        self.streams.enqueue(which, |device, stream| {
            // SAFETY: inside.
            unsafe { cu!(device, cuMemsetD8Async(self.base + at, byte, bytes as usize, stream)) }
        })?;
        self.streams.wait(which)
    }

    /// What kernels call its first byte.
    pub(crate) fn device(&self) -> u64 {
        self.base
    }

    fn inside(&self, at: u64, bytes: usize) -> Result<()> {
        if at.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let what = format!("{bytes} bytes at {at} of an arena of {}", self.bytes);
        Err(Error::Transport(TransportError::Memory { what }))
    }

    /// A stream for copies.
    fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % COPIES
    }

    /// # Safety
    /// As [`CopyEngine::copy`].
    unsafe fn moved(&self, pieces: &[Piece], words: &[(*mut u8, u32)]) -> Result<()> {
        let which = self.turn();
        self.streams.enqueue(which, |device, stream| {
            for Piece { from, to, bytes } in pieces.iter().filter(|p| p.bytes > 0) {
                let (from, to, bytes) = (*from as u64, *to as u64, *bytes as usize);
                // SAFETY: the caller's. With unified addressing an address says where it is.
                unsafe { cu!(device, cuMemcpyAsync(to, from, bytes, stream)) }?;
            }
            // SAFETY: the caller's.
            unsafe { write(device, stream, words) }
        })?;
        self.streams.wait(which)
    }
}

impl CopyEngine for GpuArena {
    fn reaches(&self, other: &Gpu) -> bool {
        self.reached.contains(&other.ordinal)
    }

    unsafe fn copy(&self, pieces: &[Piece], words: &[(*mut u8, u32)]) -> Result<(), String> {
        // SAFETY: the caller's.
        unsafe { self.moved(pieces, words) }.map_err(|e| e.to_string())
    }

    unsafe fn set(&self, words: &[(*mut u8, u32)]) -> Result<(), String> {
        // SAFETY: the caller's.
        let set = |device, stream| unsafe { write(device, stream, words) };
        self.streams.enqueue(COPIES, set).map_err(|e| e.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        self.streams.wait(COPIES).map_err(|e| e.to_string())
    }
}

/// Sets words after all earlier work of a stream; a memory barrier precedes each.
///
/// # Safety
/// As [`CopyEngine::set`].
unsafe fn write(
    device: Option<i32>,
    stream: sys::CUstream,
    words: &[(*mut u8, u32)],
) -> Result<()> {
    for words in words.chunks(WORDS_AT_ONCE) {
        let mut all: Vec<_> = words.iter().map(|(at, value)| operation(*at, *value)).collect();
        let (n, first) = (all.len() as u32, all.as_mut_ptr());
        // SAFETY: the caller's. Without a flag, each has its barrier.
        unsafe { cu!(device, cuStreamBatchMemOp_v2(stream, n, first, 0)) }?;
    }
    Ok(())
}

/// Sets a word, as an operation of a stream.
fn operation(at: *mut u8, value: u32) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: integers and addresses, which may be 0.
    let mut op: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    op.writeValue.operation = sys::CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = at as u64;
    op.writeValue.__bindgen_anon_1.value = value;
    op
}

/// Lets a GPU reach another's memory, if it can; otherwise copies go by way of the host.
fn reach(from: &Context, to: &Context) -> Result<bool> {
    if from.ordinal() == to.ordinal() {
        return Ok(true);
    }
    if !can_access_peer(from.ordinal(), to.ordinal())? {
        return Ok(false);
    }
    let _quiet = between_launches();
    let _in = from.enter()?;
    // SAFETY: a live context; its own is current.
    let status = unsafe { sys::cuCtxEnablePeerAccess(to.raw(), 0) };
    match status {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
        _ => crate::driver::check(status, "cuCtxEnablePeerAccess", Some(from.ordinal()))
            .map(|()| true),
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

    fn copy_engine(&self) -> Option<&dyn CopyEngine> {
        Some(self)
    }

    fn flush(&self) -> Result<(), String> {
        use sys::CUflushGPUDirectRDMAWritesScope_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as OWNER;
        use sys::CUflushGPUDirectRDMAWritesTarget_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as CURRENT;
        let device = Some(self.buffer.device());
        let flushed = self.buffer.context().enter().and_then(|_in| {
            // SAFETY: the memory's context is current.
            unsafe { cu!(device, cuFlushGPUDirectRDMAWrites(CURRENT, OWNER)) }
        });
        flushed.map_err(|e| e.to_string())
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
