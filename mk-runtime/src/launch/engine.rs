//! The operations of a host program, carried out by copy engines beside the kernel on a stream of their own.
//!
//! ```text
//! caller's stream   ───── kernel ───────────────────────────┬──  captured:   gate ──┬── kernel ──┬──
//! engine's stream         until the kernel says ── copies ──┘                       └── copies ──┘
//! ```
//!
//! The copies may write to peers' memory when every rank has entered the launch. The kernel says so by a word in which
//! the stream waits for 1 and puts back 0. The kernel is enqueued before that wait, so that it begins before, whatever
//! queues they share. Nothing else tells the driver of this order, nor that the copies are behind what the caller's
//! stream did before the kernel: CUDA asks for events beside such waits, so that work that shares a queue comes in
//! order, and here the order of enqueueing is that already. A graph need not keep it. In a captured launch the gate, a
//! kernel of one CTA before both, ends when every rank has entered.
//!
//! A copy of the epoch behind the data sets a flag of the peer that waits: no operation holds a value that changes from
//! launch to launch.

use super::program::WORD;
use crate::driver::cu;
use crate::error::{Error, Result};
use crate::gpu::{Event, Kernel, Module, Stream, StreamRef};
use crate::mem::Layout;
use crate::world::World;
use cudarc::driver::sys;
use mk_abi::device::ControlBlock;
use mk_abi::{HostOp, HostProgram, KernelSource};
use std::mem::offset_of;
use std::sync::Arc;

/// A rank's host program in the launches of one instance.
pub(super) struct Engine {
    gate: Kernel,
    threads: u32,
    ops: Vec<Placed>,
    /// The word that the kernel, or the gate, leaves the epoch in.
    epoch: u64,
    /// The word by which the kernel lets the copies begin.
    begins: u64,
    /// A stream that is part of a capture takes nothing else.
    captured: Stream,
    eager: Stream,
    /// The gate has ended.
    begun: Event,
    done: Event,
}

/// An operation with addresses.
enum Placed {
    AwaitEntry,
    Copy { tensor: usize, from_bytes: u64, to: u64, bytes: usize },
    Raise { word: u64 },
}

impl Engine {
    pub(super) fn new(
        world: &World,
        rank: u32,
        source: &KernelSource,
        program: &HostProgram,
        module: &Arc<Module>,
        control: u64,
        symmetric: &Layout,
    ) -> Result<Engine> {
        let place = |op: &HostOp| {
            Ok(match *op {
                HostOp::AwaitEntry => Placed::AwaitEntry,
                HostOp::Copy { tensor, from_bytes, to_rank, to_bytes, bytes } => Placed::Copy {
                    tensor: tensor as usize,
                    from_bytes,
                    to: symmetric.address(to_rank)? + to_bytes,
                    bytes: bytes as usize,
                },
                HostOp::Raise { rank: p, word } => {
                    Placed::Raise { word: symmetric.address(p)? + word * WORD as u64 }
                }
            })
        };
        let limits = world.device(rank)?;
        if world.sharing(rank) > 1 {
            let (kernel, device) = (source.name.clone(), limits.ordinal);
            return Err(Error::EngineOnSharedGpu { kernel, device });
        }
        Ok(Engine {
            gate: Kernel::new(module, &program.gate, &source.name)?,
            threads: program.gate_threads,
            ops: program.ranks[rank as usize].iter().map(place).collect::<Result<_>>()?,
            epoch: control + offset_of!(ControlBlock, launch) as u64,
            begins: control + offset_of!(ControlBlock, engines) as u64,
            captured: Stream::new(world, rank)?,
            eager: Stream::new(world, rank)?,
            begun: Event::untimed(world, rank)?,
            done: Event::untimed(world, rank)?,
        })
    }

    pub(super) fn gate(&self) -> &Kernel {
        &self.gate
    }

    /// Whether a launch may be captured: the engine's stream belongs to no capture, or to the one that the caller's
    /// does. The context is current.
    pub(super) fn may_capture(&self, stream: StreamRef) -> Result<bool> {
        let device = self.gate.context().ordinal();
        let own = self.captured.as_ref().capture(device)?;
        Ok(own.is_none() || own == stream.capture(device)?)
    }

    /// Puts the gate before a captured launch's kernel, and the engine's stream behind it: before the kernel is
    /// enqueued. In any other launch that stream follows the kernel's word alone. The context is current.
    ///
    /// # Safety
    /// `params` points to the parameter that the kernel declares.
    pub(super) unsafe fn open(
        &self,
        stream: StreamRef,
        params: *mut std::ffi::c_void,
    ) -> Result<()> {
        let block = [self.threads, 1, 1];
        // SAFETY: the gate takes the kernel's parameter (checked at bind); the rest by the caller.
        unsafe { self.gate.launch([1; 3], block, 0, stream.raw(), &mut [params]) }?;
        self.begun.record_entered(stream)?;
        self.begun.hold_entered(self.captured.as_ref())
    }

    /// Enqueues the operations on these tensors, and has the caller's stream wait for them. The kernel is enqueued; the
    /// context is current.
    pub(super) fn carry_out(&self, stream: StreamRef, eager: bool, tensors: &[u64]) -> Result<()> {
        let own = if eager { self.eager.as_ref() } else { self.captured.as_ref() };
        let mut held = false;
        let made = self.ops.iter().try_for_each(|op| match op {
            // Otherwise the gate has ended before this stream goes on.
            Placed::AwaitEntry if eager => self.hold(own).map(|()| held = true),
            Placed::AwaitEntry => Ok(()),
            Placed::Copy { tensor, from_bytes, to, bytes } => {
                self.copy(own, tensors[*tensor] + from_bytes, *to, *bytes)
            }
            Placed::Raise { word } => self.raise(own, *word),
        });
        // The word goes back behind the copies: before them it would keep them waiting.
        let taken = if held { self.take_back(own) } else { Ok(()) };
        // Also behind operations that failed: those before them still read the caller's tensors.
        let joined = self.done.record_entered(own).and_then(|()| self.done.hold_entered(stream));
        made.and(taken).and(joined)
    }

    /// Has the engine's stream wait for the kernel's word.
    fn hold(&self, own: StreamRef) -> Result<()> {
        let (device, when) = (
            Some(self.gate.context().ordinal()),
            sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ,
        );
        // SAFETY: a word of the control block, which lives as long as the instance, and that until its streams are
        // through.
        unsafe { cu!(device, cuStreamWaitValue32_v2(own.raw(), self.begins, 1, when as u32)) }
    }

    /// For the next launch, whose kernel is behind this stream's end.
    fn take_back(&self, own: StreamRef) -> Result<()> {
        let device = Some(self.gate.context().ordinal());
        let how = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT;
        // SAFETY: as in `hold`.
        unsafe { cu!(device, cuStreamWriteValue32_v2(own.raw(), self.begins, 0, how as u32)) }
    }

    fn copy(&self, stream: StreamRef, from: u64, to: u64, bytes: usize) -> Result<()> {
        let device = Some(self.gate.context().ordinal());
        // SAFETY: as in `raise`; a caller's tensor may also be pinned memory of the host.
        unsafe { cu!(device, cuMemcpyAsync(to, from, bytes, stream.raw())) }
    }

    /// Copies the epoch to a word.
    fn raise(&self, stream: StreamRef, word: u64) -> Result<()> {
        let device = Some(self.gate.context().ordinal());
        // SAFETY: both ranges were checked against their memory (the source at bind, the tensors at this launch);
        // peers' memory is mapped for as long as the instance lives, which ends behind its streams.
        unsafe { cu!(device, cuMemcpyDtoDAsync_v2(word, self.epoch, WORD, stream.raw())) }
    }
}
