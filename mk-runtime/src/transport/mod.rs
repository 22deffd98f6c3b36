//! Transports: writes into the memory of ranks on other nodes.
//!
//! A [`Transport`] is one rank's end of a network. It has one piece of registered memory (the *net arena*), writes
//! parts of it into the arenas of connected peers, and says when. Two ordering classes tell how a receiver learns of a
//! write:
//!
//! | [`Ordering`] | networks | behind the data comes | set in the receiver's memory by |
//! | --- | --- | --- | --- |
//! | `InOrder` | InfiniBand RC | a word ([`Notify::Word`]) on the data's lane | the sender's card |
//! | `Unordered` | SRD, libfabric | an immediate ([`Notify::Immediate`]) with the data | the receiver's host, by [`Transport::raise`] |
//!
//! What every transport promises, and `tests/transport` checks on each:
//! - an accepted write ends in exactly one [`Event::Delivered`] or [`Event::Failed`]; *delivered* means that the bytes,
//!   and the word, are in the peer's memory;
//! - a receiver sees a notification once, and not before the data that it came with;
//! - on one lane to one peer of an `InOrder` transport, flags are set in the order of posts;
//! - `post` never blocks: with [`Caps::depth`] writes not reported yet it says [`Posted::WouldBlock`];
//! - a peer that is gone, or silent for too long, ends its writes in errors, within a bound;
//! - nothing outside the registered arena is ever read or written on behalf of a peer.
//!
//! What receives need on the way (posted buffers, credits) is the implementation's own affair.

pub mod card;
mod flush;
pub mod loopback;
mod memory;
mod network;
pub mod ofi;
mod place;
pub mod rails;
pub mod shaped;
pub mod verbs;

pub use crate::error::TransportError;
pub use flush::{Flush, Visibility};
pub use memory::{CopyEngine, Dmabuf, Gpu, HostMemory, NetMemory, Piece};
pub use network::{Network, TRANSPORTS, TransportRow};
pub use place::{Distance, Place};

use std::sync::Arc;
use std::time::Duration;

/// In which order a network delivers what one rank writes to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// Writes of one lane arrive in the order of posts, so that a word can follow data.
    InOrder,
    /// In any order: the receiver counts immediates.
    Unordered,
}

/// What a transport can do. Constant from its creation on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Its name in messages: `loopback`, `ofi (tcp;ofi_rxm)`.
    pub name: String,
    /// The order of delivery.
    pub ordering: Ordering,
    /// Lanes to each peer, at least 1. Only writes of one lane are ordered.
    pub lanes: u32,
    /// Most writes that are accepted and not reported, at least 1.
    pub depth: usize,
    /// Most bytes of a write.
    pub max_bytes: u64,
    /// Whether registered memory may be a GPU's.
    pub gpu_memory: bool,
    /// What the receiver does between data in it and a word.
    pub flush: Flush,
}

/// A write of bytes of the own arena into a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Names the write in events. Chosen by the caller, who does not use it twice at once.
    pub token: u64,
    /// The receiver.
    pub peer: u32,
    /// Below [`Caps::lanes`].
    pub lane: u32,
    /// First byte of the own arena.
    pub from: u64,
    /// First byte of the peer's arena.
    pub to: u64,
    /// How many. Of 0 there is only the notification.
    pub bytes: u64,
    /// How the receiver learns of it.
    pub notify: Notify,
}

impl Write {
    /// The word that is set behind it, and its value.
    fn word(&self) -> Option<(u64, u32)> {
        match self.notify {
            Notify::Word { at, value } => Some((at, value)),
            Notify::Nothing | Notify::Immediate(_) => None,
        }
    }
}

/// How a receiver learns of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Not at all.
    Nothing,
    /// A 32-bit word of its arena is set behind the data. `InOrder` transports only.
    Word {
        /// First byte of the word, a multiple of 4.
        at: u64,
        /// Its new value.
        value: u32,
    },
    /// Its [`Transport::poll`] gives this number. `Unordered` transports only.
    Immediate(u32),
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// Accepted: an event will follow.
    Taken,
    /// Not accepted: try again after [`Transport::poll`].
    WouldBlock,
}

/// What [`Transport::poll`] reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write of this rank is in the peer's memory; its source may be overwritten.
    Delivered {
        /// [`Write::token`].
        token: u64,
    },
    /// A write to this rank is in its memory.
    Arrived {
        /// The writer, where the network says.
        peer: Option<u32>,
        /// The number that came with it.
        immediate: u32,
    },
    /// A write of this rank failed. Some of it may be in the peer's memory.
    Failed {
        /// [`Write::token`].
        token: u64,
        /// Why.
        error: TransportError,
    },
    /// A peer has failed, whether or not this rank writes to it. Once for each peer, and before an end is closed.
    Lost {
        /// Its rank.
        peer: u32,
        /// Why.
        error: TransportError,
    },
}

impl Event {
    /// Whether a write of this rank has ended.
    pub fn ends_write(&self) -> bool {
        matches!(self, Event::Delivered { .. } | Event::Failed { .. })
    }
}

/// One rank's end of a network. See the [module](self) for what it promises.
pub trait Transport: Send {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Registers the arena, once, before any card is made. The transport holds it until it is dropped.
    ///
    /// # Errors
    /// When it has an arena, or the network refuses the memory.
    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError>;

    /// The card by which `peer` connects to this rank: address and key of the arena, for that peer's eyes only.
    ///
    /// # Errors
    /// Without an arena.
    fn card(&mut self, peer: u32) -> Result<Vec<u8>, TransportError>;

    /// Connects to a peer by the card that it made for this rank.
    ///
    /// # Errors
    /// For bytes that are no card of such a transport, and for a peer that cannot be reached.
    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError>;

    /// Whether a write is one that this end can make.
    ///
    /// # Errors
    /// For a write outside an arena, beyond [`Caps`], or to a peer that is not connected.
    fn check(&self, write: &Write) -> Result<(), TransportError>;

    /// Starts a write. Never blocks.
    ///
    /// # Errors
    /// As [`Transport::check`], and for a peer that has failed. The write is not accepted then.
    fn post(&mut self, write: &Write) -> Result<Posted, TransportError>;

    /// Sets words of the own arena, the first byte of each and its value, visibly behind all data whose arrival was
    /// reported: what a receiver's host does on an unordered network. In memory of a GPU, to which many at once take
    /// hardly longer than one, they may be set a little later, but a write that is posted then has them.
    ///
    /// # Errors
    /// For a word outside the arena; others may be set then.
    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError>;

    /// Makes progress, and adds what has happened to `events`. Never blocks.
    ///
    /// # Errors
    /// When this end is unusable. A failure of one write or peer is an event.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError>;

    /// Sleeps until something may have happened, for at most `limit`.
    fn wait(&mut self, limit: Duration);

    /// Waits until accepted writes have ended, for at most `limit`, and closes this end: from then on no peer's write
    /// reaches the arena. Events of writes that ended meanwhile are added to `events`; what has not is failed.
    ///
    /// # Errors
    /// When the network does not let go of the memory.
    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError>;
}

/// Checks a write against capabilities and both arenas.
pub(crate) fn check_write(
    caps: &Caps,
    write: &Write,
    own_bytes: u64,
    peer_bytes: u64,
) -> Result<(), TransportError> {
    let wrong = |what: String| Err(TransportError::Write { token: write.token, what });
    let inside =
        |from: u64, bytes: u64, of: u64| from.checked_add(bytes).is_some_and(|end| end <= of);
    if write.bytes > caps.max_bytes {
        return wrong(format!(
            "{} bytes are more than {} takes, {}",
            write.bytes, caps.name, caps.max_bytes
        ));
    }
    if write.lane >= caps.lanes {
        return wrong(format!("lane {} of {}", write.lane, caps.lanes));
    }
    if !inside(write.from, write.bytes, own_bytes) {
        let end = write.from.saturating_add(write.bytes);
        return wrong(format!("bytes {}..{end} of an arena of {own_bytes}", write.from));
    }
    if !inside(write.to, write.bytes, peer_bytes) {
        let end = write.to.saturating_add(write.bytes);
        return wrong(format!("bytes {}..{end} of the peer's arena of {peer_bytes}", write.to));
    }
    match (write.notify, caps.ordering) {
        (Notify::Nothing, _) | (Notify::Immediate(_), Ordering::Unordered) => Ok(()),
        (Notify::Word { at, .. }, Ordering::InOrder)
            if at % 4 == 0 && inside(at, 4, peer_bytes) =>
        {
            Ok(())
        }
        (Notify::Word { at, .. }, Ordering::InOrder) => {
            wrong(format!("word at {at} of the peer's arena of {peer_bytes} bytes"))
        }
        (Notify::Word { .. }, Ordering::Unordered) => {
            wrong("a word behind data, on an unordered network: let the receiver set it".into())
        }
        (Notify::Immediate(_), Ordering::InOrder) => {
            wrong("an immediate, on an ordered network: let a word follow the data".into())
        }
    }
}

/// A key that a stranger does not guess.
pub(crate) fn random_key() -> Result<u64, TransportError> {
    let mut key = [0; 8];
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut key));
    read.map_err(|e| TransportError::Memory {
        what: format!("no key for an arena: /dev/urandom: {e}"),
    })?;
    Ok(u64::from_ne_bytes(key))
}
