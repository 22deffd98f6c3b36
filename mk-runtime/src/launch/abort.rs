//! The abort word, written from the host: what tells running kernels to give up.

use crate::Error;
use crate::driver::cu;
use crate::gpu::Stream;
use crate::mem::SymmetricMemory;
use crate::world::{Abort, World};
use mk_abi::device::SymHeader;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard};

/// Writes the abort words of all ranks. May be used from any thread, and does nothing once it is cut.
pub(super) struct AbortSwitch {
    wires: Mutex<Vec<Wire>>,
}

/// A stream of one rank, and the words that it writes.
struct Wire {
    stream: Stream,
    /// Rank and address, as mapped on the stream's GPU.
    words: Vec<(u32, u64)>,
}

impl AbortSwitch {
    /// In one process each rank's own stream writes its word. In a world of processes this process's stream writes
    /// them all, its own first.
    pub(super) fn new(world: &World, symmetric: &SymmetricMemory) -> Result<AbortSwitch, Error> {
        let at = |rank| (rank, symmetric.rank_ptr(rank) + offset_of!(SymHeader, abort) as u64);
        let own = world.local_ranks();
        let wire = |rank: u32| {
            let peers = (0..world.size()).filter(|p| !own.contains(p)).map(at);
            let words = std::iter::once(at(rank)).chain(peers).collect();
            Ok(Wire { stream: Stream::urgent(world, rank)?, words })
        };
        let wires = own.clone().map(wire).collect::<Result<_, Error>>()?;
        Ok(AbortSwitch { wires: Mutex::new(wires) })
    }

    /// Never writes again: the memory is about to go.
    pub(super) fn cut(&self) {
        self.wires().clear();
    }

    fn wires(&self) -> MutexGuard<'_, Vec<Wire>> {
        // A panic elsewhere leaves a list that is still true.
        self.wires.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Abort for AbortSwitch {
    /// By the stream itself: a copy or a memset may need an SM, and kernels may hold them all. Best effort: kernels
    /// bound their waits themselves.
    fn raise(&self, by: u32) {
        for (i, wire) in self.wires().iter().enumerate() {
            let context = wire.stream.context();
            for (w, (rank, word)) in wire.words.iter().enumerate() {
                // The process that is gone needs no telling; the first word is this process's own.
                if w > 0 && *rank == by {
                    continue;
                }
                let raised = context.enter().and_then(|_in| {
                    let (device, raw) = (Some(context.ordinal()), wire.stream.as_ref().raw());
                    // SAFETY: a word of our symmetric memory, which is mapped until the switch is cut; the stream is
                    // ours and its context current.
                    unsafe { cu!(device, cuStreamWriteValue32_v2(raw, *word, by + 1, 0)) }
                });
                if let Err(error) = raised {
                    tracing::warn!(wire = i, rank, %error, "the abort word was not written");
                }
            }
        }
    }
}
