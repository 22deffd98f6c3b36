//! The proxy: a thread of a rank's host that carries its GPU's commands to the network.
//!
//! A kernel does not post to a card; it writes a command of 64 bytes into a fifo of its instance ([`Fifo`]), and the
//! proxy posts it. Where a flag is to be set behind data, the sender's card does it on an ordered network, and the
//! receiver's proxy on an unordered one, by an immediate; the sender's own flags are set when the data is delivered.
//! Net flags are set once in a launch, to its epoch, so that a write of the value does what an addition would.
//!
//! A proxy knows commands and words, and neither plans nor kernels. What a kernel asks for outside its range is a
//! fault, not a write. After a fault a proxy sends nothing more; what is under way ends.

mod arena;
pub mod connect;
mod engine;
mod fifo;
pub mod ring;
mod thread;
mod words;

pub use arena::{Arena, Lease};
pub use connect::{Ends, connect};
pub use engine::{Attached, Engine, Watch};
pub use fifo::{Fifo, MAX_FIFO, Writer};
pub use thread::Proxy;

use crate::error::TransportError;

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands taken.
    pub commands: u64,
    /// Bytes posted.
    pub bytes: u64,
    /// Reports that waited for those of epochs before.
    pub early: u64,
    /// Immediates of epochs that were over, or of instances that are not here.
    pub dropped: u64,
    /// Flushes of what cards wrote to a GPU.
    pub flushes: u64,
}

/// Why a rank's network is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the network of rank {rank} has failed{}: {error}", edge.map_or(String::new(), |e| format!(" at e{e}")))]
pub struct NetFault {
    /// Whose.
    pub rank: u32,
    /// The edge of the plan whose command failed, where one did.
    pub edge: Option<u32>,
    /// How.
    pub error: TransportError,
}

impl NetFault {
    /// The rank that is to blame: a peer that has failed, or this one.
    pub fn of(&self) -> u32 {
        match self.error {
            TransportError::Peer { peer, .. } => peer,
            _ => self.rank,
        }
    }
}
