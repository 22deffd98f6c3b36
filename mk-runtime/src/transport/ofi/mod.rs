//! Transport `ofi`: remote writes through libfabric, with immediates as remote CQ data, counted by the receiver.
//!
//! Unordered by contract, whatever the provider: the code that SRD needs (provider `efa`) is the code that runs on
//! `tcp;ofi_rxm` and `shm` anywhere. Endpoints are reliable datagram ones (`FI_EP_RDM`), every write asks for
//! `FI_DELIVERY_COMPLETE`, and progress is made by [`Transport::poll`]. The library is opened at run time (`load`).

mod load;
mod objects;
mod provider;
mod sys;

use super::card::{Card, Key, Kind};
use super::{
    Caps, Event, NetMemory, Notify, Ordering, Posted, Transport, TransportError, Write,
    check_write, memory,
};
use objects::Objects;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::{Duration, Instant};

/// Of what an [`Ofi`] end is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// libfabric's name of the provider: `efa`, `tcp;ofi_rxm`, `shm`.
    pub provider: String,
    /// The address of the interface, for providers that have them; the first one where none is named.
    pub address: Option<String>,
    /// Most writes that are accepted and not reported; fewer where the provider's queue is shorter.
    pub depth: usize,
    /// How long a peer may take no write and deliver none before it has failed.
    pub silence: Duration,
}

impl Options {
    /// 1024 writes, and 10 s of silence.
    pub fn new(provider: &str) -> Options {
        let silence = Duration::from_secs(10);
        Options { provider: provider.into(), address: None, depth: 1024, silence }
    }
}

/// Most completions of one call, and calls of one poll.
const BATCH: usize = 64;
const BATCHES: usize = 16;
/// Sleep of a wait. Providers without a thread of their own make progress only when they are polled.
const NAP: Duration = Duration::from_micros(50);

/// The end of one rank.
pub struct Ofi {
    rank: u32,
    caps: Caps,
    silence: Duration,
    objects: Objects,
    /// Given back behind the objects.
    _only: Option<OnlyShm>,
    arena: Option<Arena>,
    peers: HashMap<u32, Peer>,
    /// What operations point to; the last ones are those of receives. Never moved.
    contexts: Box<[Context]>,
    /// By context: the write that has it.
    writes: Vec<Option<Pending>>,
    free: Vec<usize>,
    outstanding: usize,
    looked: Instant,
}

struct Arena {
    memory: Arc<dyn NetMemory>,
    base: u64,
    key: Key,
}

/// A connected peer.
struct Peer {
    card: Card,
    address: u64,
    outstanding: usize,
    /// Since when it has delivered nothing though it should, and taken nothing though it was asked.
    quiet_since: Option<Instant>,
    failed: Option<String>,
}

#[derive(Clone, Copy)]
struct Pending {
    token: u64,
    peer: u32,
    /// Reported as failed; the provider may still use its context.
    given_up: bool,
}

/// Room that some providers use while an operation runs (`fi_context2`).
#[repr(C)]
#[derive(Clone)]
struct Context([*mut c_void; 8]);

// SAFETY: memory of providers, which are used by one thread at a time.
unsafe impl Send for Context {}

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

impl Ofi {
    /// Opens the end of a rank.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] without libfabric, or a device for its provider; [`TransportError::Refused`], with
    /// the reason, where results would be wrong or late.
    pub fn open(rank: u32, options: &Options) -> Result<Ofi, TransportError> {
        let found = provider::find(&options.provider, options.address.as_deref())?;
        let answer = found.answer.clone();
        let only = answer.is_shm().then(OnlyShm::take).transpose()?;
        let depth = options.depth.clamp(1, answer.tx_size);
        let receives = match answer.mode & sys::FI_RX_CQ_DATA {
            0 => 0,
            _ => answer.rx_size,
        };
        let objects = Objects::open(found, 4 * (depth + receives).next_power_of_two())?;
        let caps = Caps {
            name: objects.name().into(),
            ordering: Ordering::Unordered,
            lanes: 1,
            depth,
            max_bytes: answer.max_bytes as u64,
            gpu_memory: false,
        };
        let mut end = Ofi {
            rank,
            caps,
            silence: options.silence,
            objects,
            _only: only,
            arena: None,
            peers: HashMap::new(),
            contexts: vec![Context([std::ptr::null_mut(); 8]); depth + receives].into(),
            writes: vec![None; depth],
            free: (0..depth).collect(),
            outstanding: 0,
            looked: Instant::now(),
        };
        for i in depth..depth + receives {
            end.receive(i)?;
        }
        Ok(end)
    }

    fn context(&mut self, i: usize) -> *mut c_void {
        (&raw mut self.contexts[i]).cast()
    }

    /// The context that an operation had.
    fn index(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let i = offset / size_of::<Context>();
        (offset.is_multiple_of(size_of::<Context>()) && i < self.contexts.len()).then_some(i)
    }

    fn receive(&mut self, i: usize) -> Result<(), TransportError> {
        let context = self.context(i);
        // SAFETY: the context is that of this receive alone, and lives as long as the endpoint.
        let code = unsafe { self.objects.receive(context) };
        self.objects.check("fi_recv", code as i32)
    }

    fn state(&self, what: String) -> TransportError {
        TransportError::State { transport: self.caps.name.clone(), what }
    }

    fn arena(&self) -> Result<&Arena, TransportError> {
        match &self.arena {
            Some(arena) if self.objects.is_open() => Ok(arena),
            _ => Err(self.state(format!("rank {} has no arena, or is closed", self.rank))),
        }
    }

    fn completed(
        &mut self,
        entry: &sys::CqEntry,
        events: &mut Vec<Event>,
    ) -> Result<(), TransportError> {
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 {
            // Immediates have 32 bits; providers carry up to 64.
            events.push(Event::Arrived { peer: None, immediate: entry.data as u32 });
        }
        match self.index(entry.context) {
            Some(i) if i >= self.writes.len() => self.receive(i),
            Some(i) if entry.flags & sys::FI_REMOTE_CQ_DATA == 0 => {
                self.ended(i, None, events);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A write has ended: delivered, or not.
    fn ended(&mut self, i: usize, why: Option<String>, events: &mut Vec<Event>) {
        let Some(Pending { token, peer, given_up }) = self.writes[i].take() else { return };
        self.free.push(i);
        if given_up {
            return;
        }
        self.outstanding -= 1;
        let Some(p) = self.peers.get_mut(&peer) else { return };
        p.outstanding -= 1;
        p.quiet_since = (p.outstanding > 0).then(Instant::now);
        match why {
            None => events.push(Event::Delivered { token }),
            Some(what) => {
                let error = TransportError::Peer { peer, what: what.clone() };
                p.failed.get_or_insert(what);
                events.push(Event::Failed { token, error });
            }
        }
    }

    /// The failed operation at the head of the queue. One that is not of this rank is a peer's that this end refused.
    fn failed(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let Some(error) = self.objects.failure() else { return Ok(()) };
        let what = self.objects.found.library.text(error.err.saturating_abs());
        match self.index(error.context) {
            Some(i) if i < self.writes.len() => self.ended(i, Some(what), events),
            Some(i) if error.err != sys::ECANCELED => return self.receive(i),
            _ => tracing::warn!(
                transport = self.caps.name,
                what,
                "an operation of a peer failed here"
            ),
        }
        Ok(())
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
            p.failed.get_or_insert(what.into());
            (p.quiet_since, p.outstanding) = (None, 0);
        }
        for write in self.writes.iter_mut().flatten().filter(|w| w.peer == peer && !w.given_up) {
            write.given_up = true;
            self.outstanding -= 1;
            let error = TransportError::Peer { peer, what: what.into() };
            events.push(Event::Failed { token: write.token, error });
        }
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
        if self.arena.is_some() || !self.objects.is_open() {
            return Err(self.state(format!("rank {} has an arena, or is closed", self.rank)));
        }
        // Where the provider does not choose keys. Some have short ones.
        let key = super::random_key()? & self.key_mask();
        let (base, key) = self.objects.register(&*memory, key)?;
        self.arena = Some(Arena { memory, base, key: Key(key) });
        Ok(())
    }

    fn card(&mut self, _peer: u32) -> Result<Vec<u8>, TransportError> {
        let Arena { memory, base, key } = self.arena()?;
        let (bytes, base, key) = (memory.bytes(), *base, *key);
        let address = self.objects.address()?;
        Card { kind: Kind::Ofi, rank: self.rank, bytes, base, key, address }.to_bytes()
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        let card = Card::read(Kind::Ofi, card)?;
        self.arena()?;
        if card.rank != peer || peer == self.rank || self.peers.contains_key(&peer) {
            let what = format!(
                "rank {} made it, and rank {} connects to rank {peer}, once",
                card.rank, self.rank
            );
            return Err(TransportError::Card { what });
        }
        let address = self.objects.insert(&card.address)?;
        let new = Peer { card, address, outstanding: 0, quiet_since: None, failed: None };
        self.peers.insert(peer, new);
        Ok(())
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        let own = self.arena()?.memory.bytes();
        match self.peers.get(&write.peer) {
            Some(peer) => check_write(&self.caps, write, own, peer.card.bytes),
            None => {
                let what = format!("rank {} is not connected to rank {}", self.rank, write.peer);
                Err(self.state(what))
            }
        }
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        let own = self.arena()?.memory.base();
        let Some(peer) = self.peers.get_mut(&write.peer) else { return Ok(Posted::WouldBlock) };
        if let Some(what) = &peer.failed {
            return Err(TransportError::Peer { peer: write.peer, what: what.clone() });
        }
        if peer.quiet_since.is_some_and(|since| since.elapsed() > self.silence) {
            peer.failed = Some(silent(self.silence));
            return Err(TransportError::Peer { peer: write.peer, what: silent(self.silence) });
        }
        let Some(i) = self.free.pop() else { return Ok(Posted::WouldBlock) };
        let to = (peer.address, peer.card.base + write.to, peer.card.key.0);
        let immediate = match write.notify {
            Notify::Immediate(data) => Some(data),
            Notify::Nothing | Notify::Word { .. } => None,
        };
        let context: *mut c_void = (&raw mut self.contexts[i]).cast();
        // SAFETY: `check_write` has checked the source, which the arena holds until the endpoint is closed; the context is
        // free.
        let code = unsafe {
            let from = (own.add(write.from as usize).cast_const(), write.bytes as usize);
            self.objects.write(from, immediate, to, context)
        };
        if code != 0 {
            self.free.push(i);
        }
        match -code {
            0 => {
                self.writes[i] =
                    Some(Pending { token: write.token, peer: write.peer, given_up: false });
                peer.outstanding += 1;
                self.outstanding += 1;
                if peer.outstanding == 1 {
                    peer.quiet_since = Some(Instant::now());
                }
                Ok(Posted::Taken)
            }
            sys::EAGAIN => {
                peer.quiet_since.get_or_insert_with(Instant::now);
                Ok(Posted::WouldBlock)
            }
            code => {
                let what = self.objects.found.library.text(code as i32);
                peer.failed = Some(what.clone());
                Err(TransportError::Peer { peer: write.peer, what })
            }
        }
    }

    fn raise(&mut self, at: u64, value: u32) -> Result<(), TransportError> {
        memory::raise(&*self.arena()?.memory, at, value)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        if !self.objects.is_open() {
            return Err(self.state(format!("rank {} is closed", self.rank)));
        }
        // SAFETY: plain numbers and pointers.
        let mut entries: [sys::CqEntry; BATCH] = unsafe { std::mem::zeroed() };
        for _ in 0..BATCHES {
            match self.objects.completions(&mut entries) {
                n if n > 0 => {
                    for entry in &entries[..n as usize] {
                        self.completed(entry, events)?;
                    }
                }
                0 => break,
                code if -code == sys::EAGAIN => break,
                code if -code == sys::EAVAIL => self.failed(events)?,
                code => self.objects.check("fi_cq_read", code as i32)?,
            }
        }
        self.give_up(events);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(NAP));
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let begin = Instant::now();
        while self.outstanding > 0 && begin.elapsed() < limit && self.objects.is_open() {
            self.poll(events)?;
            self.wait(NAP);
        }
        let result = self.objects.close();
        for write in self.writes.iter_mut().filter_map(Option::take).filter(|w| !w.given_up) {
            events.push(Event::Failed { token: write.token, error: TransportError::Closed });
        }
        self.outstanding = 0;
        result
    }
}

impl Ofi {
    /// Bits that a key of the caller's may have.
    fn key_mask(&self) -> u64 {
        // SAFETY: the library's own, from `fi_getinfo`.
        let bytes = unsafe { (*(*self.objects.found.info).domain_attr).mr_key_size };
        u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
    }
}
