//! Transport `loopback`: ranks of one process, and threads of the host that copy between their arenas, as cards would.
//! Arenas in memory of GPUs are copied by the receiving GPU's copy engines. Copies inside one GPU stand still while a
//! kernel fills it, so that peers on one GPU are refused.
//!
//! A [`LoopbackNetwork`] has an end for each rank and a few copying threads. In order, a lane belongs to one thread;
//! unordered, writes go to the threads by turns, and overtake each other. A copy holds both arenas, so that an arena
//! that is closed is not written any more.

use super::card::{ConnectionCard, Key, Kind};
use super::{
    Caps, Event, Flush, NetMemory, Notify, Ordering, Posted, Transport, TransportError, Write,
    check_write, memory,
};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of what a [`LoopbackNetwork`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of ranks.
    pub ranks: u32,
    /// Order of delivery.
    pub ordering: Ordering,
    /// Lanes to each peer.
    pub lanes: u32,
    /// Copying threads, at least 1.
    pub threads: usize,
    /// Writes of a rank that are accepted and not reported.
    pub depth: usize,
    /// What it says of flushes. Its own copies need none.
    pub flush: Flush,
}

impl Options {
    /// Two lanes, two threads and 256 writes for each rank.
    pub fn new(ranks: u32, ordering: Ordering) -> Options {
        Options { ranks, ordering, lanes: 2, threads: 2, depth: 256, flush: Flush::None }
    }
}

/// A network inside this process.
#[derive(Debug)]
pub struct LoopbackNetwork {
    wires: Arc<Wires>,
    given: Vec<bool>,
}

/// The ends, and the threads between them. Threads end when all ends are gone.
#[derive(Debug)]
struct Wires {
    options: Options,
    ends: Arc<Vec<End>>,
    jobs: Mutex<Vec<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What other ranks and threads see of a rank.
#[derive(Debug, Default)]
struct End {
    arena: RwLock<Option<Arena>>,
    events: Mutex<VecDeque<Event>>,
    bell: Condvar,
}

#[derive(Clone, Debug)]
struct Arena {
    memory: Arc<dyn NetMemory>,
    key: Key,
}

struct Job {
    from: u32,
    key: Key,
    write: Write,
}

impl LoopbackNetwork {
    /// Starts the threads.
    ///
    /// # Errors
    /// For a network of nothing, and where the system starts no thread.
    pub fn new(options: Options) -> Result<LoopbackNetwork, TransportError> {
        let Options { ranks, lanes, threads, depth, .. } = options;
        if ranks == 0 || lanes == 0 || threads == 0 || depth == 0 {
            return Err(state(format!("{options:?}: nothing may be 0")));
        }
        let ends: Arc<Vec<End>> = Arc::new((0..ranks).map(|_| End::default()).collect());
        let (mut jobs, mut running) = (Vec::new(), Vec::new());
        for i in 0..threads {
            let (sender, receiver) = channel();
            let ends = ends.clone();
            let thread = std::thread::Builder::new().name(format!("mk-loopback-{i}"));
            let thread = thread.spawn(move || copy_all(&receiver, &ends));
            running.push(thread.map_err(|e| state(format!("no thread: {e}")))?);
            jobs.push(sender);
        }
        let wires = Wires { options, ends, jobs: Mutex::new(jobs), threads: Mutex::new(running) };
        Ok(LoopbackNetwork { wires: Arc::new(wires), given: vec![false; ranks as usize] })
    }

    /// The end of a rank, once.
    ///
    /// # Errors
    /// For a rank that there is not, and the second time.
    pub fn end(&mut self, rank: u32) -> Result<Loopback, TransportError> {
        match self.given.get_mut(rank as usize) {
            Some(given) if !*given => *given = true,
            _ => return Err(state(format!("there is no end for rank {rank}, or it is taken"))),
        }
        let Options { ordering, lanes, depth, flush, .. } = self.wires.options;
        let caps = Caps {
            name: "loopback".into(),
            ordering,
            lanes,
            depth,
            max_bytes: 1 << 30,
            gpu_memory: true,
            flush,
        };
        Ok(Loopback {
            rank,
            caps,
            wires: self.wires.clone(),
            peers: HashMap::new(),
            outstanding: 0,
            turn: rank as usize,
            raised: 0..0,
            closed: false,
        })
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        // Threads end when nobody can send them work.
        locked(&self.jobs).clear();
        for thread in locked(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::warn!("a copying thread of the loopback transport panicked");
            }
        }
    }
}

/// The end of one rank.
#[derive(Debug)]
pub struct Loopback {
    rank: u32,
    caps: Caps,
    wires: Arc<Wires>,
    peers: HashMap<u32, ConnectionCard>,
    outstanding: usize,
    /// The thread that has the next unordered write.
    turn: usize,
    /// Where words of a GPU may not be set yet.
    raised: Range<u64>,
    closed: bool,
}

impl Loopback {
    fn end(&self) -> &End {
        &self.wires.ends[self.rank as usize]
    }

    fn arena(&self) -> Result<Arena, TransportError> {
        let arena = self.end().arena.read().unwrap_or_else(PoisonError::into_inner);
        arena.clone().ok_or_else(|| state(format!("rank {} has no arena", self.rank)))
    }

    fn peer(&self, peer: u32) -> Result<&ConnectionCard, TransportError> {
        let card = self.peers.get(&peer);
        card.ok_or_else(|| state(format!("rank {} is not connected to rank {peer}", self.rank)))
    }

    /// Takes what has happened.
    fn take(&mut self, events: &mut Vec<Event>) {
        let before = events.len();
        events.extend(locked(&self.end().events).drain(..));
        let ended = events[before..].iter().filter(|e| e.ends_write());
        self.outstanding -= ended.count();
    }

    /// No peer's write reaches the arena from here on; it waits for copies that do.
    fn close(&mut self) {
        self.closed = true;
        if let Some(Err(error)) = self.arena().ok().map(|arena| memory::settle(&*arena.memory)) {
            tracing::warn!(rank = self.rank, %error, "words of a closed end may not be set");
        }
        *self.end().arena.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Transport for Loopback {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        if let Some(gpu) = memory.gpu().filter(|_| memory.copy_engine().is_none()) {
            let what =
                format!("memory of GPU {}: its threads copy memory of the host", gpu.ordinal);
            return Err(TransportError::Refused { transport: self.caps.name.clone(), what });
        }
        let key = Key(super::random_key()?);
        let mut arena = self.end().arena.write().unwrap_or_else(PoisonError::into_inner);
        if self.closed || arena.is_some() {
            return Err(state(format!("rank {} has an arena, or is closed", self.rank)));
        }
        *arena = Some(Arena { memory, key });
        Ok(())
    }

    fn card(&mut self, _peer: u32) -> Result<Vec<u8>, TransportError> {
        let Arena { memory, key } = self.arena()?;
        let (rank, bytes) = (self.rank, memory.bytes());
        ConnectionCard { kind: Kind::Loopback, rank, bytes, base: 0, key, address: Vec::new() }
            .to_bytes()
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        let card = ConnectionCard::read(Kind::Loopback, card)?;
        if card.rank != peer || peer == self.rank || peer as usize >= self.wires.ends.len() {
            let what = format!(
                "rank {} made it, and rank {} connects to rank {peer}",
                card.rank, self.rank
            );
            return Err(TransportError::Card { what });
        }
        let gpu = self.arena()?.memory.gpu();
        let there = self.wires.ends[peer as usize].arena.read();
        let there = there.unwrap_or_else(PoisonError::into_inner);
        let theirs = there.as_ref().and_then(|arena| arena.memory.gpu());
        if let Some(gpu) = gpu.filter(|gpu| theirs.as_ref() == Some(gpu)) {
            let what = format!(
                "ranks {} and {peer} have arenas on GPU {}, inside which copies stand still while a kernel fills it; \
                 use pinned memory of the host",
                self.rank, gpu.ordinal
            );
            return Err(TransportError::Refused { transport: self.caps.name.clone(), what });
        }
        drop(there);
        self.peers.insert(peer, card);
        Ok(())
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        let own = self.arena()?;
        check_write(&self.caps, write, own.memory.bytes(), self.peer(write.peer)?.bytes)
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        let key = self.peer(write.peer)?.key;
        if self.outstanding >= self.caps.depth {
            return Ok(Posted::WouldBlock);
        }
        if write.from < self.raised.end && self.raised.start < write.from + write.bytes {
            memory::settle(&*self.arena()?.memory)?;
            self.raised = 0..0;
        }
        let jobs = locked(&self.wires.jobs);
        let thread = match self.caps.ordering {
            // Lanes of several ranks to threads of their own, where there are as many.
            Ordering::InOrder => {
                let before = (self.rank as usize).wrapping_mul(self.caps.lanes as usize);
                (write.peer as usize).wrapping_mul(31) + before + write.lane as usize
            }
            Ordering::Unordered => {
                self.turn = self.turn.wrapping_add(1);
                self.turn
            }
        };
        let job = Job { from: self.rank, key, write: *write };
        let sent = jobs[thread % jobs.len()].send(job);
        drop(jobs);
        sent.map_err(|_| state("its copying threads have ended".into()))?;
        self.outstanding += 1;
        Ok(Posted::Taken)
    }

    fn raise(&mut self, at: u64, value: u32) -> Result<(), TransportError> {
        let memory = self.arena()?.memory;
        memory::raise_soon(&*memory, at, value)?;
        if memory.copy_engine().is_some() {
            let Range { start, end } = self.raised.clone();
            self.raised = if start == end { at..at + 4 } else { start.min(at)..end.max(at + 4) };
        }
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.take(events);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        let end = self.end();
        let events = locked(&end.events);
        if events.is_empty() {
            // Woken for nothing, or not at all: the caller polls.
            drop(end.bell.wait_timeout(events, limit));
        }
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let begin = Instant::now();
        self.take(events);
        while self.outstanding > 0 && begin.elapsed() < limit {
            self.wait(limit.saturating_sub(begin.elapsed()));
            self.take(events);
        }
        self.close();
        // What has not begun fails, now that there is no arena to copy from; the rest has ended.
        while self.outstanding > 0 {
            self.wait(Duration::from_millis(10));
            self.take(events);
        }
        Ok(())
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.close();
    }
}

fn copy_all(jobs: &Receiver<Job>, ends: &[End]) {
    for job in jobs {
        let Job { from, key, write } = job;
        let (home, there) = (&ends[from as usize], &ends[write.peer as usize]);
        match copy(ends, from, key, &write) {
            Ok(()) => {
                if let Notify::Immediate(immediate) = write.notify {
                    tell(there, Event::Arrived { peer: Some(from), immediate });
                }
                tell(home, Event::Delivered { token: write.token });
            }
            Err(error) => tell(home, Event::Failed { token: write.token, error }),
        }
    }
}

fn tell(end: &End, event: Event) {
    locked(&end.events).push_back(event);
    end.bell.notify_all();
}

/// Copies the bytes and sets the word. Both ranks keep their arenas meanwhile.
fn copy(ends: &[End], from: u32, key: Key, write: &Write) -> Result<(), TransportError> {
    // The lower rank first: a thread that waits for one arena holds none that its holder waits for.
    let (low, high) = (from.min(write.peer), from.max(write.peer));
    let read = |rank: u32| ends[rank as usize].arena.read().unwrap_or_else(PoisonError::into_inner);
    let (low_arena, high_arena) = (read(low), read(high));
    let (home, there) =
        if from == low { (&low_arena, &high_arena) } else { (&high_arena, &low_arena) };
    let home = home.as_ref().ok_or(TransportError::Closed)?;
    let gone = |what: &str| TransportError::Peer { peer: write.peer, what: what.into() };
    let there = there.as_ref().ok_or_else(|| gone("it has closed its end"))?;
    if there.key != key {
        return Err(gone("it does not know the key of the write"));
    }
    // The card may have told of another length.
    let caps =
        |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= there.memory.bytes());
    let word = match write.notify {
        Notify::Word { at, value } => Some((at, value)),
        Notify::Nothing | Notify::Immediate(_) => None,
    };
    if !caps(write.to, write.bytes) || word.is_some_and(|(at, _)| !caps(at, 4)) {
        return Err(gone("the write is outside its arena"));
    }
    let source = home.memory.base().wrapping_add(write.from as usize);
    let target = there.memory.base().wrapping_add(write.to as usize);
    let engines = (there.memory.copy_engine(), home.memory.copy_engine());
    if let (Some(engine), _) | (None, Some(engine)) = engines {
        // Words of the host are set by the host, below.
        let at = |(at, value)| (there.memory.base().wrapping_add(at as usize), value);
        let behind = word.filter(|_| there.memory.copy_engine().is_some()).map(at);
        // SAFETY: `post` has checked the source, the lines above destination and word; both arenas are held.
        let pulled = unsafe { engine.pull(source, target, write.bytes, behind) };
        pulled.map_err(|what| TransportError::Memory { what })?;
        if behind.is_some() {
            return Ok(());
        }
    } else {
        // SAFETY: as above, and they are of different ranks. Other threads and GPUs may touch the bytes as a card's
        // would be: the plan orders what matters.
        unsafe { std::ptr::copy(source, target, write.bytes as usize) };
    }
    word.map_or(Ok(()), |(at, value)| memory::raise(&*there.memory, at, value))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state(what: String) -> TransportError {
    TransportError::State { transport: "loopback".into(), what }
}
