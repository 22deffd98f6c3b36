//! Transport `ofi`: remote writes through libfabric, with immediates as remote CQ data, counted by the receiver.
//!
//! Unordered by contract, whatever the provider: the code that SRD needs (provider `efa`) is the code that runs on
//! `tcp;ofi_rxm` and `shm` anywhere. Endpoints are reliable datagram ones (`FI_EP_RDM`), every write asks for
//! `FI_DELIVERY_COMPLETE`, and progress is made by [`Transport::poll`]. The library is opened at run time (`load`).
//!
//! An end has one or several *rails*, each an endpoint on a device of its own (an EFA machine has several for each
//! GPU). Rail i of an end writes to rail i of its peers, and writes go to the rails by turns: nothing is promised of
//! their order anyway.

mod load;
mod objects;
mod options;
mod provider;
mod rail;
mod sys;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use options::Options;

use super::card::{ConnectionCard, Kind};
use super::{
    Caps, Event, NetMemory, Ordering, Posted, Transport, TransportError, Write, check_write, memory,
};
use load::Library;
use rail::{Pending, Rail, Seen, Target};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::{Duration, Instant};

/// Sleep of a wait. Providers without a thread of their own make progress only when they are polled.
const NAP: Duration = Duration::from_micros(50);

/// The end of one rank.
pub struct Ofi {
    rank: u32,
    caps: Caps,
    silence: Duration,
    rails: Vec<Rail>,
    /// Given back behind the rails.
    _only: Option<OnlyShm>,
    arena: Option<Arc<dyn NetMemory>>,
    peers: HashMap<u32, Peer>,
    outstanding: usize,
    /// The rail that has the next write.
    turn: usize,
    /// What happened in a call that has no list of events.
    waiting: Vec<Event>,
    looked: Instant,
}

/// A connected peer.
struct Peer {
    bytes: u64,
    /// By rail.
    targets: Vec<Target>,
    outstanding: usize,
    /// Since when it has delivered nothing though it should, and taken nothing though it was asked.
    quiet_since: Option<Instant>,
    failed: Option<String>,
}

/// That this process has an end of provider `shm`. Two of them would share the mapping of their region, and closing
/// one would take it from the other (libfabric 1.17: a crash).
struct OnlyShm;

static SHM_ENDS: AtomicBool = AtomicBool::new(false);

impl OnlyShm {
    fn take() -> Result<OnlyShm, TransportError> {
        match SHM_ENDS.swap(true, atomic::Ordering::AcqRel) {
            false => Ok(OnlyShm),
            true => Err(TransportError::Refused {
                transport: "ofi (shm)".into(),
                what: "this process has an end of it already, and libfabric shares their memory; give each rank a \
                       process of its own, or use provider `tcp;ofi_rxm`"
                    .into(),
            }),
        }
    }
}

impl Drop for OnlyShm {
    fn drop(&mut self) {
        SHM_ENDS.store(false, atomic::Ordering::Release);
    }
}

/// What a provider is here, without opening an end of it.
///
/// # Errors
/// As [`Ofi::open`].
pub fn available(provider: &str) -> Result<String, TransportError> {
    let found = provider::find(Library::get()?, &Options::new(provider))?;
    Ok(found.iter().map(|f| f.answer.to_string()).collect::<Vec<_>>().join("; "))
}

impl Ofi {
    /// Opens the end of a rank.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] without libfabric, or a device for its provider; [`TransportError::Refused`],
    /// with the reason, where results would be wrong or late.
    pub fn open(rank: u32, options: &Options) -> Result<Ofi, TransportError> {
        Ofi::open_with(Library::get()?, rank, options)
    }

    fn open_with(
        library: &'static Library,
        rank: u32,
        options: &Options,
    ) -> Result<Ofi, TransportError> {
        let found = provider::find(library, options)?;
        let is_shm = found.iter().any(|f| f.answer.is_shm());
        let only = is_shm.then(OnlyShm::take).transpose()?;
        let open = |found| Rail::open(found, options.depth);
        let rails = found.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = rails.first() else {
            let what = "an end has one rail at least".into();
            return Err(TransportError::State { transport: options.provider.clone(), what });
        };
        let answers = || rails.iter().map(|rail| &rail.objects.found.answer);
        let name = match rails.len() {
            1 => first.objects.name().into(),
            n => format!("{}, {n} rails", first.objects.name()),
        };
        let caps = Caps {
            name,
            ordering: Ordering::Unordered,
            lanes: 1,
            depth: rails.iter().map(Rail::depth).sum(),
            max_bytes: answers().map(|a| a.max_bytes as u64).min().unwrap_or(0),
            gpu_memory: options.gpu_memory && answers().all(provider::Answer::has_gpus),
            flush: options.flush,
        };
        Ok(Ofi {
            rank,
            caps,
            silence: options.silence,
            rails,
            _only: only,
            arena: None,
            peers: HashMap::new(),
            outstanding: 0,
            turn: 0,
            waiting: Vec::new(),
            looked: Instant::now(),
        })
    }

    fn state(&self, what: String) -> TransportError {
        TransportError::State { transport: self.caps.name.clone(), what }
    }

    fn is_open(&self) -> bool {
        self.rails.iter().all(|rail| rail.objects.is_open())
    }

    fn arena(&self) -> Result<&Arc<dyn NetMemory>, TransportError> {
        match &self.arena {
            Some(arena) if self.is_open() => Ok(arena),
            _ => Err(self.state(format!("rank {} has no arena, or is closed", self.rank))),
        }
    }

    /// What a completion of a rail says.
    fn seen(&mut self, seen: Seen, events: &mut Vec<Event>) {
        match seen {
            Seen::Arrived(immediate) => events.push(Event::Arrived { peer: None, immediate }),
            Seen::Ended(write) if write.given_up => {}
            Seen::Ended(Pending { token, peer, .. }) => {
                self.ended(peer);
                events.push(Event::Delivered { token });
            }
            Seen::Failed(write, what) if write.given_up => {
                tracing::debug!(transport = self.caps.name, what, "a write given up has failed");
            }
            Seen::Failed(Pending { token, peer, .. }, what) => {
                self.ended(peer);
                let error = TransportError::Peer { peer, what: what.clone() };
                events.push(Event::Failed { token, error });
                self.lose(peer, &what, events);
            }
            Seen::Refused(what) => tracing::warn!(
                transport = self.caps.name,
                what,
                "an operation of a peer failed here"
            ),
        }
    }

    /// A write to a peer has ended.
    fn ended(&mut self, peer: u32) {
        self.outstanding -= 1;
        if let Some(p) = self.peers.get_mut(&peer) {
            p.outstanding -= 1;
            p.quiet_since = (p.outstanding > 0).then(Instant::now);
        }
    }

    /// A peer has failed, for this reason if there was none before.
    fn lose(&mut self, peer: u32, what: &str, events: &mut Vec<Event>) {
        let Some(p) = self.peers.get_mut(&peer).filter(|p| p.failed.is_none()) else { return };
        p.failed = Some(what.into());
        events.push(Event::Lost { peer, error: TransportError::Peer { peer, what: what.into() } });
    }

    /// Gives up peers that have been silent for too long.
    fn give_up(&mut self, events: &mut Vec<Event>) {
        if self.looked.elapsed() < self.silence / 8 {
            return;
        }
        self.looked = Instant::now();
        let silence = self.silence;
        let late = |p: &Peer| {
            p.outstanding > 0 && p.quiet_since.is_some_and(|since| since.elapsed() > silence)
        };
        let late: Vec<u32> =
            self.peers.iter().filter(|(_, p)| late(p)).map(|(rank, _)| *rank).collect();
        for peer in late {
            self.give_up_peer(peer, &silent(silence), events);
        }
    }

    /// Fails what is outstanding to a peer. The provider may still hold the writes, so that their contexts stay taken.
    fn give_up_peer(&mut self, peer: u32, what: &str, events: &mut Vec<Event>) {
        if let Some(p) = self.peers.get_mut(&peer) {
            (p.quiet_since, p.outstanding) = (None, 0);
        }
        let writes = self.rails.iter_mut().flat_map(Rail::under_way);
        for write in writes.filter(|w| w.peer == peer && !w.given_up) {
            write.given_up = true;
            self.outstanding -= 1;
            let error = TransportError::Peer { peer, what: what.into() };
            events.push(Event::Failed { token: write.token, error });
        }
        self.lose(peer, what, events);
    }
}

fn silent(limit: Duration) -> String {
    format!("it has delivered no write for {:.1} s", limit.as_secs_f64())
}

impl Transport for Ofi {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        if self.arena.is_some() || !self.is_open() {
            return Err(self.state(format!("rank {} has an arena, or is closed", self.rank)));
        }
        if let Some(gpu) = memory.gpu().filter(|_| !self.caps.gpu_memory) {
            let what = format!(
                "memory of GPU {}, and the end was not opened for it, or the provider reaches none (FI_HMEM); use \
                 pinned memory of the host",
                gpu.ordinal
            );
            return Err(TransportError::Refused { transport: self.caps.name.clone(), what });
        }
        for rail in &mut self.rails {
            rail.register(&*memory)?;
        }
        self.arena = Some(memory);
        Ok(())
    }

    fn card(&mut self, _peer: u32) -> Result<Vec<u8>, TransportError> {
        let bytes = self.arena()?.bytes();
        let targets = self.rails.iter_mut().map(Rail::target).collect::<Result<Vec<_>, _>>()?;
        rail::card(self.rank, bytes, &targets)?.to_bytes()
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        let card = ConnectionCard::read(Kind::Ofi, card)?;
        self.arena()?;
        if card.rank != peer || peer == self.rank || self.peers.contains_key(&peer) {
            let what = format!(
                "rank {} made it, and rank {} connects to rank {peer}, once",
                card.rank, self.rank
            );
            return Err(TransportError::Card { what });
        }
        let targets = rail::read(&card, self.rails.len())?;
        let insert = |(rail, (address, target)): (&mut Rail, (Vec<u8>, Target))| {
            let number = rail.objects.insert(&address)?;
            Ok(Target { number, ..target })
        };
        let targets = self.rails.iter_mut().zip(targets).map(insert).collect::<Result<_, _>>()?;
        let bytes = card.bytes;
        let new = Peer { bytes, targets, outstanding: 0, quiet_since: None, failed: None };
        self.peers.insert(peer, new);
        Ok(())
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        let own = self.arena()?.bytes();
        match self.peers.get(&write.peer) {
            Some(peer) => check_write(&self.caps, write, own, peer.bytes),
            None => {
                let what = format!("rank {} is not connected to rank {}", self.rank, write.peer);
                Err(self.state(what))
            }
        }
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        let own = self.arena()?.base();
        let Some(peer) = self.peers.get_mut(&write.peer) else { return Ok(Posted::WouldBlock) };
        if let Some(what) = &peer.failed {
            return Err(TransportError::Peer { peer: write.peer, what: what.clone() });
        }
        let rank = write.peer;
        let mut failed = None;
        if peer.quiet_since.is_some_and(|since| since.elapsed() > self.silence) {
            failed = Some(silent(self.silence));
        }
        let n = self.rails.len();
        let mut asked = false;
        for k in
            (0..n).filter(|_| failed.is_none()).map(|k| (self.turn + k) % n).collect::<Vec<_>>()
        {
            let rail = &mut self.rails[k];
            // SAFETY: `check_write` has checked the source, which the arena holds until the endpoints are closed.
            let posted = unsafe {
                let from = own.add(write.from as usize).cast_const();
                rail.post(write, from, &peer.targets[k])
            };
            match posted {
                Some(0) => {
                    self.turn = (k + 1) % n;
                    peer.outstanding += 1;
                    self.outstanding += 1;
                    if peer.outstanding == 1 {
                        peer.quiet_since = Some(Instant::now());
                    }
                    return Ok(Posted::Taken);
                }
                Some(sys::EAGAIN) => asked = true,
                Some(code) => failed = Some(rail.objects.found.library.text(code as i32)),
                // Full.
                None => {}
            }
            if failed.is_some() {
                break;
            }
        }
        let Some(what) = failed else {
            if asked {
                peer.quiet_since.get_or_insert_with(Instant::now);
            }
            return Ok(Posted::WouldBlock);
        };
        let mut events = std::mem::take(&mut self.waiting);
        self.lose(rank, &what, &mut events);
        self.waiting = events;
        Err(TransportError::Peer { peer: rank, what })
    }

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        memory::raise(&**self.arena()?, words)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        if !self.is_open() {
            return Err(self.state(format!("rank {} is closed", self.rank)));
        }
        events.append(&mut self.waiting);
        let mut seen = Vec::new();
        for rail in &mut self.rails {
            rail.poll(&mut seen)?;
        }
        for seen in seen {
            self.seen(seen, events);
        }
        self.give_up(events);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(NAP));
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let begin = Instant::now();
        while self.outstanding > 0 && begin.elapsed() < limit && self.is_open() {
            self.poll(events)?;
            self.wait(NAP);
        }
        events.append(&mut self.waiting);
        let closed = self.rails.iter_mut().map(|rail| rail.objects.close());
        let result = closed.fold(Ok(()), Result::and);
        for write in self.rails.iter_mut().flat_map(Rail::take_all).filter(|w| !w.given_up) {
            events.push(Event::Failed { token: write.token, error: TransportError::Closed });
        }
        self.outstanding = 0;
        result
    }
}
