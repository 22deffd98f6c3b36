//! A transport behind a slower, less orderly or broken network: any transport, with a rate, a latency, another order of
//! writes, and faults at chosen moments.
//!
//! It holds each accepted write back until a link of that rate would have carried it, and posts it then. Where the
//! transport is unordered, writes that are due may leave in another order; in order, only lanes change places.

use super::{Caps, Event, NetMemory, Ordering, Posted, Transport, TransportError, Write};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The network that a [`Shaped`] transport pretends to be.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Bytes per second that leave the rank; no bound where there is none.
    pub bytes_per_s: Option<f64>,
    /// Time from a write's last byte leaving to its arrival.
    pub latency: Duration,
    /// Shuffles writes that are due, by this seed.
    pub reorder: Option<u64>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The write of this number, counted from 0, fails.
    Fails(u64),
    /// From the write of this number on nothing leaves for a time.
    Stalls {
        /// The first write that waits.
        at: u64,
        /// How long.
        time: Duration,
    },
    /// From the write of this number on, every post would block as often as this before it is taken.
    Blocks {
        /// The first write.
        at: u64,
        /// How often.
        times: u32,
    },
    /// With the write of this number, the peer that it goes to is gone.
    Gone(u64),
}

/// A transport behind a [`Shape`].
pub struct Shaped {
    inner: Box<dyn Transport>,
    shape: Shape,
    /// Accepted, not posted yet: when it is due.
    held: VecDeque<(Instant, Write)>,
    /// Posted, not reported.
    inside: usize,
    /// When the link is free.
    free: Instant,
    /// Writes accepted so far.
    count: u64,
    /// Refusals left of the next post.
    refusals: Option<u32>,
    gone: Vec<u32>,
    failed: Vec<Event>,
    random: u64,
}

impl Shaped {
    /// Puts a transport behind a network.
    pub fn new(inner: Box<dyn Transport>, shape: Shape) -> Shaped {
        let random = shape.reorder.unwrap_or(0) | 1;
        Shaped {
            inner,
            shape,
            held: VecDeque::new(),
            inside: 0,
            free: Instant::now(),
            count: 0,
            refusals: None,
            gone: Vec::new(),
            failed: Vec::new(),
            random,
        }
    }

    /// When a write that is accepted now has arrived.
    fn due(&mut self, write: &Write) -> Instant {
        let mut start = self.free.max(Instant::now());
        let stall = self.shape.faults.iter().find_map(|f| match f {
            Fault::Stalls { at, time } if *at == self.count => Some(*time),
            _ => None,
        });
        start += stall.unwrap_or_default();
        let seconds = self.shape.bytes_per_s.map_or(0.0, |rate| write.bytes as f64 / rate);
        self.free = start + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        self.free + self.shape.latency
    }

    /// Whether a post is to be refused once more.
    fn refuses(&mut self) -> bool {
        let times = self.shape.faults.iter().find_map(|f| match f {
            Fault::Blocks { at, times } if *at <= self.count => Some(*times),
            _ => None,
        });
        let left = self.refusals.get_or_insert(times.unwrap_or(0));
        if *left > 0 {
            *left -= 1;
            return true;
        }
        false
    }

    /// Posts what is due.
    fn release(&mut self) -> Result<(), TransportError> {
        let now = Instant::now();
        let mut ready = self.held.iter().take_while(|(due, _)| *due <= now).count();
        while ready > 0 {
            let i = self.next(ready);
            let Some((_, write)) = self.held.get(i).copied() else { return Ok(()) };
            if self.gone.contains(&write.peer) {
                self.fail(i, &write, gone(write.peer));
            } else {
                match self.inner.post(&write) {
                    Ok(Posted::WouldBlock) => return Ok(()),
                    Ok(Posted::Taken) => {
                        self.held.remove(i);
                        self.inside += 1;
                    }
                    Err(error) => self.fail(i, &write, error),
                }
            }
            ready -= 1;
        }
        Ok(())
    }

    fn fail(&mut self, i: usize, write: &Write, error: TransportError) {
        self.held.remove(i);
        self.failed.push(Event::Failed { token: write.token, error });
    }

    /// Which of the first `ready` held writes leaves next.
    fn next(&mut self, ready: usize) -> usize {
        if self.shape.reorder.is_none() {
            return 0;
        }
        // xorshift64 (Marsaglia, 2003): any order will do, if it is the same for the same seed.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let picked = (self.random % ready as u64) as usize;
        match self.inner.caps().ordering {
            Ordering::Unordered => picked,
            // The first of its lane.
            Ordering::InOrder => {
                let lane = |i: usize| self.held.get(i).map(|(_, w)| (w.peer, w.lane));
                (0..picked).find(|i| lane(*i) == lane(picked)).unwrap_or(picked)
            }
        }
    }
}

fn gone(peer: u32) -> TransportError {
    TransportError::Peer { peer, what: "it is gone, as the shape of the network says".into() }
}

impl Transport for Shaped {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        self.inner.register(memory)
    }

    fn card(&mut self, peer: u32) -> Result<Vec<u8>, TransportError> {
        self.inner.card(peer)
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        self.inner.connect(peer, card)
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        self.inner.check(write)
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        if self.shape.faults.contains(&Fault::Gone(self.count)) && !self.gone.contains(&write.peer)
        {
            self.gone.push(write.peer);
        }
        if self.gone.contains(&write.peer) {
            return Err(gone(write.peer));
        }
        if self.held.len() + self.inside >= self.inner.caps().depth || self.refuses() {
            return Ok(Posted::WouldBlock);
        }
        let due = self.due(write);
        if self.shape.faults.contains(&Fault::Fails(self.count)) {
            let what = "it fails, as the shape of the network says".into();
            let error = TransportError::Write { token: write.token, what };
            self.failed.push(Event::Failed { token: write.token, error });
        } else {
            self.held.push_back((due, *write));
        }
        self.count += 1;
        self.refusals = None;
        Ok(Posted::Taken)
    }

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        self.inner.raise(words)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.release()?;
        let before = events.len();
        self.inner.poll(events)?;
        let ended = events[before..].iter().filter(|e| e.ends_write());
        self.inside -= ended.count();
        events.append(&mut self.failed);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        let due = self.held.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        if self.failed.is_empty() && due != Some(Duration::ZERO) {
            self.inner.wait(due.map_or(limit, |due| due.min(limit)));
        }
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let begin = Instant::now();
        while !self.held.is_empty() && begin.elapsed() < limit {
            self.poll(events)?;
            self.wait(limit.saturating_sub(begin.elapsed()));
        }
        let closed = |(_, w): (Instant, Write)| Event::Failed {
            token: w.token,
            error: TransportError::Closed,
        };
        events.extend(self.held.drain(..).map(closed));
        events.append(&mut self.failed);
        let before = events.len();
        let result = self.inner.shutdown(limit.saturating_sub(begin.elapsed()), events);
        self.inside -= events[before..].iter().filter(|e| e.ends_write()).count();
        result
    }
}
