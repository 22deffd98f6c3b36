//! Transport `verbs`: RDMA writes by libibverbs over reliable connections (RC), on InfiniBand and RoCE.
//!
//! A lane to a peer is a queue pair. In order, a write is its data and then, on the same queue pair, the word: the card
//! of the receiver makes them visible in that order, because the arena is registered without relaxed ordering.
//! Unordered, writes with immediates go to the queue pairs by turns, and the receiver counts, as on SRD.
//!
//! - *Delivered* is the acknowledgement of the peer's card. What comes later on the lane, words included, is behind the
//!   write.
//! - Completions are selective (`queue.rs`); a peer that nothing is sent to is asked for a sign of life, so that its
//!   death shows.
//! - Only immediates consume receives. A receiver returns credits by empty sends, which have immediates, too.
//!
//! Feature `verbs` has the device side, by crates `ibverbs` and `ibverbs-sys`. The library is opened when an end is; a
//! program with the feature starts without it. Choices (device, port, GID, GPU memory) are functions of what is there,
//! in this module whatever the features.

#[cfg(any(test, feature = "verbs"))]
mod address;
mod choice;
mod gpu;
#[cfg(any(test, feature = "verbs"))]
mod queue;

#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod end;
#[cfg(feature = "verbs")]
mod lane;
#[cfg(feature = "verbs")]
mod objects;
#[cfg(feature = "verbs")]
mod open;

use super::{Flush, Ordering, TransportError};
use std::time::Duration;

pub use choice::{Choice, Gid, GidKind, Port, choose, spread};
#[cfg(feature = "verbs")]
pub use end::Verbs;
pub use gpu::{GpuAccess, GpuAnswers};
#[cfg(feature = "verbs")]
pub use open::open;

/// Its name in messages.
const NAME: &str = "verbs";
/// Most queue pairs to a peer: the capacity of a card.
pub const MAX_LANES: u32 = 16;

/// Of what an end is made. What is `None` is chosen from what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order of delivery that it gives: words behind data, or immediates on queue pairs by turns.
    pub ordering: Ordering,
    /// Queue pairs to each peer, at most [`MAX_LANES`]. Unordered, all of them are one lane.
    pub queue_pairs: u32,
    /// Most writes that are accepted and not reported; fewer where the device's queues are shorter.
    pub depth: usize,
    /// Immediates on a queue pair that the receiver has not polled, at least 2.
    pub window: u16,
    /// Ports that an end uses side by side; its queue pairs are spread over them.
    pub cards: u32,
    /// The device: `mlx5_0`.
    pub device: Option<String>,
    /// Its port.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs.
    pub gid_index: Option<u32>,
    /// Bytes of a packet; not more than the port's.
    pub mtu: Option<u32>,
    /// Service level (InfiniBand), 0 to 15.
    pub service_level: u8,
    /// Traffic class (RoCE).
    pub traffic_class: u8,
    /// PCI address of the GPU that the device is to be near to: `0000:3b:00.0`.
    pub near: Option<String>,
    /// What is done before a word in memory of a GPU; in order, nothing can be.
    pub flush: Flush,
    /// Time between attempts, as the specification writes it: 4.096 us x 2^n.
    pub ack_timeout: u8,
    /// Attempts behind the first, 0 to 6: on soft-RoCE 7 is for ever, as it is everywhere for `rnr_retries`.
    pub retries: u8,
    /// Attempts at a peer without receives, 0 to 6.
    pub rnr_retries: u8,
    /// How long a peer may give no credits before it has failed; a fourth of it is the time between signs of life.
    pub silence: Duration,
}

impl Options {
    /// 4 queue pairs, 256 writes, 256 immediates each; 67 ms between 7 attempts; 10 s of silence.
    pub fn new(ordering: Ordering) -> Options {
        Options {
            ordering,
            queue_pairs: 4,
            depth: 256,
            window: 256,
            cards: 1,
            device: None,
            port: None,
            gid_index: None,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            near: None,
            flush: Flush::None,
            ack_timeout: 14,
            retries: 6,
            rnr_retries: 6,
            silence: Duration::from_secs(10),
        }
    }

    /// Refuses numbers that mean nothing.
    ///
    /// # Errors
    /// [`TransportError::State`], with the first one.
    pub fn check(&self) -> Result<(), TransportError> {
        let limits = [
            ("queue_pairs", self.queue_pairs, 1, MAX_LANES),
            ("cards", self.cards, 1, MAX_LANES),
            ("window", self.window.into(), 2, 4096),
            ("service_level", self.service_level.into(), 0, 15),
            // 31 is 2.4 hours, and 0 is for ever.
            ("ack_timeout", self.ack_timeout.into(), 1, 31),
            ("retries", self.retries.into(), 0, 6),
            ("rnr_retries", self.rnr_retries.into(), 0, 6),
        ];
        for (name, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(state(format!("{name} is {value}, and may be {least} to {most}")));
            }
        }
        if self.flush != Flush::None && self.ordering == Ordering::InOrder {
            return Err(state(format!(
                "flush is {}, and in order the card sets words itself",
                self.flush
            )));
        }
        if self.depth == 0 || self.silence.is_zero() {
            return Err(state("depth and silence may not be 0".into()));
        }
        Ok(())
    }
}

/// Opens the end of a rank: not in this build, which is without feature `verbs`.
///
/// # Errors
/// Always [`TransportError::Unavailable`], or for options that mean nothing.
#[cfg(not(feature = "verbs"))]
pub fn open(_rank: u32, options: &Options) -> Result<Box<dyn super::Transport>, TransportError> {
    options.check()?;
    Err(unavailable("this program was built without it", "build it with `--features verbs`"))
}

fn unavailable(what: impl Into<String>, help: &str) -> TransportError {
    TransportError::Unavailable { transport: NAME.into(), what: what.into(), help: help.into() }
}

fn state(what: String) -> TransportError {
    TransportError::State { transport: NAME.into(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_limits() {
        let good = Options::new(Ordering::InOrder);
        assert_eq!(good.check(), Ok(()));
        let wrong = [
            Options { queue_pairs: 0, ..good.clone() },
            Options { queue_pairs: MAX_LANES + 1, ..good.clone() },
            Options { depth: 0, ..good.clone() },
            Options { cards: 0, ..good.clone() },
            Options { window: 1, ..good.clone() },
            Options { flush: Flush::Driver, ..good.clone() },
            Options { service_level: 16, ..good.clone() },
            Options { ack_timeout: 0, ..good.clone() },
            Options { ack_timeout: 32, ..good.clone() },
            Options { retries: 7, ..good.clone() },
            Options { rnr_retries: 7, ..good.clone() },
            Options { silence: Duration::ZERO, ..good.clone() },
        ];
        for options in wrong {
            assert!(options.check().is_err(), "{options:?}");
            assert!(open(0, &options).is_err());
        }
    }
}
