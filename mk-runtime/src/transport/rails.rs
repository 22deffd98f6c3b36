//! Several network cards of a rank: an end over ends, each of which has one.
//!
//! Lane l is lane l / n of card l % n, so that data and its word are on one card, and on one queue pair. Unordered,
//! writes go to the cards by turns. Card i writes to card i of a peer; connection cards are contiguous.

use super::card::ConnectionCard;
use super::{Caps, Event, NetMemory, Ordering, Posted, Transport, TransportError, Write};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The end of one rank.
pub struct Rails {
    caps: Caps,
    ends: Vec<Box<dyn Transport>>,
    /// The card that has the next unordered write.
    turn: usize,
    /// Peers that some card has lost, and why.
    lost: HashMap<u32, String>,
}

impl Rails {
    /// Over ends of the same kind; one is itself.
    ///
    /// # Errors
    /// [`TransportError::State`] without any, and for ends that differ.
    pub fn over(mut ends: Vec<Box<dyn Transport>>) -> Result<Box<dyn Transport>, TransportError> {
        let n = ends.len();
        let state =
            |what: &str| TransportError::State { transport: "rails".into(), what: what.into() };
        let first =
            ends.first().ok_or_else(|| state("an end has one card at least"))?.caps().clone();
        if n == 1 {
            return ends.pop().ok_or(TransportError::Closed);
        }
        let same =
            |c: &Caps| (c.ordering, c.lanes, c.flush) == (first.ordering, first.lanes, first.flush);
        if !ends.iter().all(|end| same(end.caps())) {
            return Err(state("its cards differ in order, lanes or flush"));
        }
        let names: Vec<&str> = ends.iter().map(|end| end.caps().name.as_str()).collect();
        let caps = Caps {
            name: names.join(" + "),
            lanes: match first.ordering {
                Ordering::InOrder => first.lanes * n as u32,
                Ordering::Unordered => first.lanes,
            },
            depth: ends.iter().map(|end| end.caps().depth).sum(),
            max_bytes: ends.iter().map(|end| end.caps().max_bytes).min().unwrap_or(0),
            gpu_memory: ends.iter().all(|end| end.caps().gpu_memory),
            ..first
        };
        Ok(Box::new(Rails { caps, ends, turn: 0, lost: HashMap::new() }))
    }

    /// The card of a write, and the write as that takes it.
    fn placed(&self, write: &Write) -> (usize, Write) {
        let n = self.ends.len();
        match self.caps.ordering {
            Ordering::InOrder => {
                let card = write.lane as usize % n;
                (card, Write { lane: write.lane / n as u32, ..*write })
            }
            Ordering::Unordered => (self.turn, *write),
        }
    }
}

impl Transport for Rails {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        self.ends.iter_mut().try_for_each(|end| end.register(memory.clone()))
    }

    fn card(&mut self, peer: u32) -> Result<Vec<u8>, TransportError> {
        let cards = self.ends.iter_mut().map(|end| end.card(peer));
        Ok(cards.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        let mut rest = card;
        let mut cards = Vec::new();
        while !rest.is_empty() {
            let (one, behind) = ConnectionCard::split(rest)?;
            cards.push(one);
            rest = behind;
        }
        let n = self.ends.len();
        if cards.len() != n {
            let what = format!("{} network cards, and this end has {n}", cards.len());
            return Err(TransportError::Card { what });
        }
        self.ends.iter_mut().zip(cards).try_for_each(|(end, card)| end.connect(peer, card))
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        let (card, placed) = self.placed(write);
        self.ends[card].check(&placed)
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        if let Some(what) = self.lost.get(&write.peer) {
            self.check(write)?;
            return Err(TransportError::Peer { peer: write.peer, what: what.clone() });
        }
        let n = self.ends.len();
        let tries = if self.caps.ordering == Ordering::InOrder { 1 } else { n };
        for _ in 0..tries {
            let (card, placed) = self.placed(write);
            self.turn = (self.turn + 1) % n;
            if self.ends[card].post(&placed)? == Posted::Taken {
                return Ok(Posted::Taken);
            }
        }
        Ok(Posted::WouldBlock)
    }

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        match self.ends.first_mut() {
            Some(end) => end.raise(words),
            None => Err(TransportError::Closed),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let mut all = Vec::new();
        let polled = self.ends.iter_mut().map(|end| end.poll(&mut all)).fold(Ok(()), Result::and);
        self.add(all, events);
        polled
    }

    fn wait(&mut self, limit: Duration) {
        // Each sleeps until it may have something, and others do meanwhile.
        let n = self.ends.len() as u32;
        self.ends.iter_mut().for_each(|end| end.wait(limit / n));
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let (begin, mut all) = (Instant::now(), Vec::new());
        let closed = self.ends.iter_mut().map(|end| {
            let left = limit.saturating_sub(begin.elapsed());
            end.shutdown(left, &mut all)
        });
        let closed = closed.fold(Ok(()), Result::and);
        self.add(all, events);
        closed
    }
}

impl Rails {
    /// A peer is lost once, whichever card says so.
    fn add(&mut self, all: Vec<Event>, events: &mut Vec<Event>) {
        for event in all {
            if let Event::Lost { peer, error } = &event
                && self.lost.insert(*peer, error.to_string()).is_some()
            {
                continue;
            }
            events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Flush, HostMemory, Notify, loopback};

    fn ends(cards: usize, ordering: Ordering, rank: u32) -> Vec<Box<dyn Transport>> {
        let network = || loopback::LoopbackNetwork::new(loopback::Options::new(2, ordering));
        (0..cards).map(|_| Box::new(network().unwrap().end(rank).unwrap()) as _).collect()
    }

    #[test]
    fn lanes_are_dealt_to_cards() {
        let rails = |ordering| {
            let ends = ends(3, ordering, 0);
            let n = ends[0].caps().lanes;
            (
                n,
                Rails {
                    caps: Caps { ordering, ..ends[0].caps().clone() },
                    ends,
                    turn: 1,
                    lost: HashMap::new(),
                },
            )
        };
        let write = |lane| {
            let notify = Notify::Word { at: 0, value: 1 };
            Write { token: 0, peer: 1, lane, from: 0, to: 0, bytes: 4, notify }
        };
        let (n, of) = rails(Ordering::InOrder);
        let placed: Vec<_> = (0..3 * n).map(|lane| of.placed(&write(lane))).collect();
        // Data and word are one write, of one lane of one card; no two lanes are the same.
        let places: Vec<_> = placed.iter().map(|(card, w)| (*card, w.lane)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
        assert!(placed.iter().all(|(_, w)| w.notify == write(0).notify && w.lane < n));
        assert_eq!(rails(Ordering::Unordered).1.placed(&write(0)).0, 1);
    }

    #[test]
    fn ends_that_differ_are_refused() {
        assert!(Rails::over(Vec::new()).is_err());
        let mut mixed = ends(1, Ordering::InOrder, 0);
        mixed.extend(ends(1, Ordering::Unordered, 0));
        assert!(Rails::over(mixed).is_err());
        let three = Rails::over(ends(3, Ordering::InOrder, 0)).unwrap();
        let Caps { lanes, depth, flush, .. } = three.caps().clone();
        assert_eq!((lanes, depth, flush), (6, 768, Flush::None));
        assert_eq!(Rails::over(ends(1, Ordering::InOrder, 0)).unwrap().caps().name, "loopback");
    }

    #[test]
    fn numbers_of_cards_are_compared() {
        let open = |n, rank| {
            let mut end = Rails::over(ends(n, Ordering::InOrder, rank)).unwrap();
            end.register(Arc::new(HostMemory::new(4096).unwrap())).unwrap();
            end
        };
        let (mut two, mut other, mut three) = (open(2, 0), open(2, 1), open(3, 1));
        let error = two.connect(1, &three.card(0).unwrap()).unwrap_err();
        assert!(error.to_string().contains("3 network cards, and this end has 2"), "{error}");
        let card = other.card(0).unwrap();
        for n in 0..card.len() {
            assert!(two.connect(1, &card[..n]).is_err(), "{n} bytes");
        }
        assert_eq!(two.connect(1, &card), Ok(()));
    }
}
