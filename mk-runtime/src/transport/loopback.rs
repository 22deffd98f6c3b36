//! Transport `loopback`: ranks of one process, and threads of the host that copy between their arenas, as cards would.
//! Arenas in memory of GPUs are copied by the sending GPU's copy engines. Copies inside one GPU stand still while a
//! kernel fills it, so that peers on one GPU are refused.
//!
//! A [`LoopbackNetwork`] has an end for each rank and a few copying threads. In order, a lane belongs to one thread;
//! unordered, writes go to the threads by turns, and overtake each other. Copy engines get all of a rank's writes from
//! one thread, those that wait at once: pieces that touch become one copy, and words follow all of them. A copy holds
//! both arenas, so that an arena that is closed is not written any more.

use super::card::{ConnectionCard, Key, Kind};
use super::{
    Caps, CopyEngine, Event, Flush, NetMemory, Notify, Ordering, Piece, Posted, Transport,
    TransportError, Write, check_write, memory,
};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most writes that a thread takes at once.
const BATCH: usize = 64;

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
            let thread = thread.spawn(move || copy_all(&receiver, &ends, options.ordering));
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
        let engine = self.arena()?.memory.copy_engine().is_some();
        let jobs = locked(&self.wires.jobs);
        let thread = match self.caps.ordering {
            // A driver takes one thread's copies at a time, and what touches as one.
            _ if engine => self.rank as usize,
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

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        let memory = self.arena()?.memory;
        memory::raise_soon(&*memory, words)?;
        if memory.copy_engine().is_some() {
            for (at, _) in words {
                let Range { start, end } = self.raised.clone();
                let all = start.min(*at)..end.max(at + 4);
                self.raised = if start == end { *at..at + 4 } else { all };
            }
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

fn copy_all(jobs: &Receiver<Job>, ends: &[End], ordering: Ordering) {
    let mut next = None;
    while let Some(first) = next.take().or_else(|| jobs.recv().ok()) {
        let (from, peer) = (first.from, first.write.peer);
        let mut batch = vec![first];
        while batch.len() < BATCH && next.is_none() {
            match jobs.try_recv() {
                Ok(job) if (job.from, job.write.peer) == (from, peer) => batch.push(job),
                Ok(job) => next = Some(job),
                Err(_) => break,
            }
        }
        if ordering == Ordering::Unordered {
            batch.sort_by_key(|job| job.write.from);
        }
        copy(ends, from, peer, &batch);
    }
}

fn tell(end: &End, event: Event) {
    locked(&end.events).push_back(event);
    end.bell.notify_all();
}

/// Copies what one rank writes to another, and sets the words. Both keep their arenas meanwhile.
fn copy(ends: &[End], from: u32, peer: u32, jobs: &[Job]) {
    // The lower rank first: a thread that waits for one arena holds none that its holder waits for.
    let (low, high) = (from.min(peer), from.max(peer));
    let read = |rank: u32| ends[rank as usize].arena.read().unwrap_or_else(PoisonError::into_inner);
    let (low_arena, high_arena) = (read(low), read(high));
    let (home, there) =
        if from == low { (&low_arena, &high_arena) } else { (&high_arena, &low_arena) };
    let ended = |write: &Write, ended: Result<(), TransportError>| {
        let event = match ended {
            Ok(()) => Event::Delivered { token: write.token },
            Err(error) => Event::Failed { token: write.token, error },
        };
        if let (Event::Delivered { .. }, Notify::Immediate(immediate)) = (&event, write.notify) {
            tell(&ends[peer as usize], Event::Arrived { peer: Some(from), immediate });
        }
        tell(&ends[from as usize], event);
    };
    let Some(home) = &**home else {
        jobs.iter().for_each(|job| ended(&job.write, Err(TransportError::Closed)));
        return;
    };
    let gone = |what: &str| TransportError::Peer { peer, what: what.into() };
    let checked = |job: &Job| {
        let there = there.as_ref().ok_or_else(|| gone("it has closed its end"))?;
        if there.key != job.key {
            return Err(gone("it does not know the key of the write"));
        }
        // The card may have told of another length.
        let (write, all) = (job.write, there.memory.bytes());
        let inside = |at: u64, bytes| at.checked_add(bytes).is_some_and(|end| end <= all);
        let word = write.word().is_none_or(|(at, _)| inside(at, 4));
        if !inside(write.to, write.bytes) || !word {
            return Err(gone("the write is outside its arena"));
        }
        Ok((write, there))
    };
    let mut writes = Vec::new();
    for job in jobs {
        match checked(job) {
            Ok(write) => writes.push(write),
            Err(error) => ended(&job.write, Err(error)),
        }
    }
    let Some((_, there)) = writes.first() else { return };
    let writes = || writes.iter().map(|(write, _)| write);
    let piece = |write: &Write| Piece {
        from: home.memory.base().wrapping_add(write.from as usize),
        to: there.memory.base().wrapping_add(write.to as usize),
        bytes: write.bytes,
    };
    // Sending takes about half of the time that fetching takes.
    let reaches = |e: &&dyn CopyEngine| there.memory.gpu().is_none_or(|gpu| e.reaches(&gpu));
    let engine = home.memory.copy_engine().filter(reaches).or(there.memory.copy_engine());
    let raise =
        |write: &Write| write.word().map_or(Ok(()), |word| memory::raise(&*there.memory, &[word]));
    let Some(engine) = engine else {
        for write in writes() {
            let Piece { from, to, bytes } = piece(write);
            // SAFETY: `post` has checked the source, `checked` destination and word; both arenas are held, and are of
            // different ranks. Other threads and GPUs may touch the bytes as a card's would be: the plan orders what
            // matters.
            unsafe { std::ptr::copy(from, to, bytes as usize) };
            ended(write, raise(write));
        }
        return;
    };
    let mut pieces: Vec<Piece> = Vec::new();
    for next in writes().map(piece).filter(|piece| piece.bytes > 0) {
        match pieces.last_mut() {
            Some(last) if last.goes_on(&next) => last.bytes += next.bytes,
            _ => pieces.push(next),
        }
    }
    // Words of the host are set by the host, behind all.
    let by_engine = there.memory.copy_engine().is_some();
    let words = writes().filter_map(Write::word).filter(|_| by_engine);
    let words: Vec<_> =
        words.map(|(at, value)| (there.memory.base().wrapping_add(at as usize), value)).collect();
    // SAFETY: as above.
    let copied = unsafe { engine.copy(&pieces, &words) };
    for write in writes() {
        let copied = copied.clone().map_err(|what| TransportError::Memory { what });
        ended(write, copied.and_then(|()| if by_engine { Ok(()) } else { raise(write) }));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state(what: String) -> TransportError {
    TransportError::State { transport: "loopback".into(), what }
}

#[cfg(test)]
mod tests {
    use super::super::HostMemory;
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
    use std::sync::mpsc;

    /// Memory of the host. Its engine records each call, and begins to copy when the test tells it to.
    #[derive(Debug)]
    struct Engined {
        memory: HostMemory,
        calls: Mutex<Vec<(usize, usize)>>,
        begins: Mutex<Receiver<()>>,
    }

    // SAFETY: as `HostMemory`.
    unsafe impl NetMemory for Engined {
        fn base(&self) -> *mut u8 {
            self.memory.base()
        }

        fn bytes(&self) -> u64 {
            self.memory.bytes()
        }

        fn copy_engine(&self) -> Option<&dyn CopyEngine> {
            Some(self)
        }
    }

    impl CopyEngine for Engined {
        fn reaches(&self, _: &crate::transport::Gpu) -> bool {
            true
        }

        unsafe fn copy(&self, pieces: &[Piece], words: &[(*mut u8, u32)]) -> Result<(), String> {
            locked(&self.calls).push((pieces.len(), words.len()));
            let _ = locked(&self.begins).recv();
            for piece in pieces {
                // SAFETY: the caller's.
                unsafe { std::ptr::copy(piece.from, piece.to, piece.bytes as usize) };
            }
            // SAFETY: the caller's.
            unsafe { self.set(words) }
        }

        unsafe fn set(&self, words: &[(*mut u8, u32)]) -> Result<(), String> {
            for (at, value) in words {
                // SAFETY: the caller's.
                unsafe { AtomicU32::from_ptr(at.cast()) }.store(*value, Release);
            }
            Ok(())
        }

        fn settle(&self) -> Result<(), String> {
            Ok(())
        }
    }

    /// While an engine copies the first of 40 writes, the others wait, and then go together: as one piece in order,
    /// and unordered from whichever end they were posted.
    #[test]
    fn writes_that_wait_are_copied_together() {
        for ordering in [Ordering::InOrder, Ordering::Unordered] {
            let mut network = LoopbackNetwork::new(Options::new(2, ordering)).unwrap();
            let mut ends = [network.end(0).unwrap(), network.end(1).unwrap()];
            let mut begin = Vec::new();
            let memories = [0, 1].map(|_| {
                let (sender, receiver) = mpsc::channel();
                begin.push(sender);
                let memory = HostMemory::new(8192).unwrap();
                let (calls, begins) = (Mutex::default(), Mutex::new(receiver));
                Arc::new(Engined { memory, calls, begins })
            });
            for (end, memory) in ends.iter_mut().zip(&memories) {
                end.register(memory.clone()).unwrap();
            }
            let cards = [1, 0].map(|i: u32| ends[i as usize].card(1 - i).unwrap());
            ends[0].connect(1, &cards[0]).unwrap();
            ends[1].connect(0, &cards[1]).unwrap();
            let bytes: Vec<u8> = (0..2560).map(|i| (i % 251) as u8).collect();
            memories[0].memory.write(4096, &bytes);
            let in_order = ordering == Ordering::InOrder;
            let mut numbers: Vec<u64> = (0..40).collect();
            if !in_order {
                numbers[1..].reverse();
            }
            for i in numbers {
                let notify = match ordering {
                    Ordering::InOrder => Notify::Word { at: 4 * i, value: 1 + i as u32 },
                    Ordering::Unordered => Notify::Immediate(i as u32),
                };
                let at = 4096 + 64 * i;
                let lane = (i % 2) as u32;
                let write = Write { token: i, peer: 1, lane, from: at, to: at, bytes: 64, notify };
                assert_eq!(ends[0].post(&write).unwrap(), Posted::Taken);
                while i == 0 && locked(&memories[0].calls).is_empty() {
                    std::thread::yield_now();
                }
            }
            begin.iter().for_each(|begin| (0..40).for_each(|_| begin.send(()).unwrap()));
            let (mut sent, mut arrived) = (Vec::new(), Vec::new());
            while sent.len() < 40 || !in_order && arrived.len() < 40 {
                ends[0].poll(&mut sent).unwrap();
                ends[1].poll(&mut arrived).unwrap();
            }
            assert!(sent.iter().all(|e| matches!(e, Event::Delivered { .. })), "{sent:?}");
            let words = if in_order { [1, 39] } else { [0, 0] };
            assert_eq!(*locked(&memories[0].calls), [(1, words[0]), (1, words[1])], "{ordering:?}");
            let mut there = vec![0; bytes.len()];
            memories[1].memory.read(4096, &mut there);
            assert_eq!(there, bytes);
            let word = |i: u64| memories[1].memory.word(4 * i).load(Relaxed);
            assert!(!in_order || (0..40).all(|i| word(i) == 1 + i as u32));
        }
    }
}
