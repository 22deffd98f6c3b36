//! One of the two ranks of a case: its end, its arena, and a channel to the other rank.

use mk_runtime::net::GpuArena;
use mk_runtime::transport::{
    Event, HostMemory, NetMemory, Notify, Ordering, Posted, Transport, TransportError, Write,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering as Atomic;
use std::time::{Duration, Instant};

/// Words at the begin of an arena; what is sent lies behind them, and what is received behind that.
pub const WORDS: u64 = 16_384;
pub const OUT: u64 = WORDS * 4;
/// No step of a case takes as long, on a machine that is not an emulated one.
const BOUND: Duration = Duration::from_secs(30);

/// A bound, longer where `MK_PATIENCE` is a number: an emulated machine is slower, and a busy one, too.
pub fn patient(bound: Duration) -> Duration {
    let times = std::env::var("MK_PATIENCE").ok().and_then(|n| n.parse::<u32>().ok());
    bound * times.unwrap_or(1)
}

/// Messages between the two ranks of a case, apart from the network that is tested.
pub trait Control: Send {
    fn send(&mut self, bytes: &[u8]);
    /// The next message, if it is there. Panics when the other rank is gone.
    fn try_recv(&mut self) -> Option<Vec<u8>>;
}

/// A rank's arena, as a case looks at it.
#[derive(Clone)]
pub enum Memory {
    Host(Arc<HostMemory>),
    Gpu(Arc<GpuArena>),
}

impl Memory {
    /// Bytes of an arena with areas of so many.
    pub fn bytes(area: u64) -> u64 {
        OUT + 2 * area
    }

    pub fn of_host(area: u64) -> Memory {
        Memory::Host(Arc::new(HostMemory::new(Memory::bytes(area) as usize).unwrap()))
    }

    pub fn registered(&self) -> Arc<dyn NetMemory> {
        match self {
            Memory::Host(memory) => memory.clone(),
            Memory::Gpu(memory) => memory.clone(),
        }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        match self {
            Memory::Host(memory) => memory.write(at, bytes),
            Memory::Gpu(memory) => memory.write(at, bytes).unwrap(),
        }
    }

    pub fn read(&self, at: u64, out: &mut [u8]) {
        match self {
            Memory::Host(memory) => memory.read(at, out),
            Memory::Gpu(memory) => memory.read(at, out).unwrap(),
        }
    }

    pub fn word(&self, at: u64) -> u32 {
        match self {
            Memory::Host(memory) => memory.word(at).load(Atomic::Acquire),
            Memory::Gpu(memory) => {
                let mut word = [0; 4];
                memory.read(at, &mut word).unwrap();
                u32::from_le_bytes(word)
            }
        }
    }
}

pub struct Side {
    pub me: u32,
    /// None once the rank is dead.
    transport: Option<Box<dyn Transport>>,
    pub memory: Memory,
    control: Box<dyn Control>,
    /// How this rank dies, if not by dropping its end.
    pub die: fn(),
    /// Bytes of either area.
    pub area: u64,
    posted: HashSet<u64>,
    pub delivered: HashSet<u64>,
    pub failed: HashMap<u64, TransportError>,
    pub arrived: HashMap<u32, usize>,
    /// Why the peer was reported as lost.
    pub lost: Option<TransportError>,
}

impl Side {
    pub fn new(
        me: u32,
        mut transport: Box<dyn Transport>,
        memory: Memory,
        control: Box<dyn Control>,
        area: u64,
        die: fn(),
    ) -> Side {
        transport.register(memory.registered()).unwrap();
        Side {
            me,
            transport: Some(transport),
            memory,
            control,
            die,
            area,
            posted: HashSet::new(),
            delivered: HashSet::new(),
            failed: HashMap::new(),
            arrived: HashMap::new(),
            lost: None,
        }
    }

    pub fn peer(&self) -> u32 {
        1 - self.me
    }

    /// First byte of where the peer writes.
    pub fn incoming(&self) -> u64 {
        OUT + self.area
    }

    pub fn transport(&mut self) -> &mut dyn Transport {
        &mut **self.transport.as_mut().expect("a living end")
    }

    pub fn ordered(&mut self) -> bool {
        self.transport().caps().ordering == Ordering::InOrder
    }

    /// Both ranks exchange cards, changed by `change` on their way out, and connect.
    pub fn connect(&mut self, change: impl Fn(Vec<u8>) -> Vec<u8>) {
        let peer = self.peer();
        let card = self.transport().card(peer).unwrap();
        self.send(&change(card));
        let card = self.recv();
        self.transport().connect(peer, &card).unwrap();
        self.meet();
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.control.send(bytes);
    }

    /// A message of the peer; the end makes progress meanwhile.
    pub fn recv(&mut self) -> Vec<u8> {
        let begin = Instant::now();
        loop {
            if let Some(message) = self.control.try_recv() {
                return message;
            }
            bounded(begin, "a message of the other rank");
            if self.transport.is_some() {
                self.poll();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// A message of the peer, without progress of the end.
    pub fn recv_idle(&mut self) -> Vec<u8> {
        let begin = Instant::now();
        loop {
            if let Some(message) = self.control.try_recv() {
                return message;
            }
            bounded(begin, "a message of the other rank");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns when the peer calls it, too.
    pub fn meet(&mut self) {
        self.send(b"here");
        assert_eq!(self.recv(), b"here");
    }

    /// Posts once.
    pub fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        let posted = self.transport().post(write)?;
        if posted == Posted::Taken {
            assert!(self.posted.insert(write.token), "token {} twice", write.token);
        }
        Ok(posted)
    }

    /// Posts until it is taken.
    pub fn post_all(&mut self, write: &Write) {
        let begin = Instant::now();
        while self.post(write).unwrap() == Posted::WouldBlock {
            bounded(begin, "capacity for a write");
            self.poll();
        }
    }

    /// A write of the own outgoing area to the peer's incoming one, of notification `word`.
    pub fn write(&mut self, token: u64, (from, to, bytes): (u64, u64, u64), word: u32) -> Write {
        let (peer, at) = (self.peer(), u64::from(word) * 4);
        let notify = match self.ordered() {
            true => Notify::Word { at, value: 1 },
            false => Notify::Immediate(word),
        };
        Write { token, peer, lane: 0, from: OUT + from, to: OUT + self.area + to, bytes, notify }
    }

    /// Polls and keeps the books: every accepted write ends once.
    pub fn poll(&mut self) {
        let mut events = Vec::new();
        self.transport().poll(&mut events).unwrap();
        let idle = events.is_empty();
        self.take(events);
        if idle {
            self.transport().wait(Duration::from_millis(1));
        }
    }

    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Delivered { token } => {
                    assert!(self.posted.remove(&token), "write {token} ends, and is not under way");
                    self.delivered.insert(token);
                }
                Event::Failed { token, error } => {
                    assert!(self.posted.remove(&token), "write {token} ends, and is not under way");
                    self.failed.insert(token, error);
                }
                Event::Arrived { peer, immediate } => {
                    assert!(peer.is_none_or(|p| p == self.peer()));
                    *self.arrived.entry(immediate).or_default() += 1;
                }
                Event::Lost { peer, error } => {
                    assert_eq!(peer, self.peer());
                    let before = self.lost.replace(error);
                    assert!(before.is_none(), "lost twice, first for {before:?}");
                }
            }
        }
    }

    /// Polls until all accepted writes have ended.
    pub fn drain(&mut self, limit: Duration) {
        let begin = Instant::now();
        while !self.posted.is_empty() {
            let left = self.posted.len();
            assert!(begin.elapsed() < patient(limit), "{left} writes have not ended in {limit:?}");
            self.poll();
        }
    }

    /// Whether notification `word` is here.
    pub fn has(&mut self, word: u32) -> bool {
        match self.ordered() {
            true => self.memory.word(u64::from(word) * 4) == 1,
            false => self.arrived.contains_key(&word),
        }
    }

    /// Polls until a condition holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Side) -> bool) {
        let begin = Instant::now();
        while !condition(self) {
            bounded(begin, what);
            self.poll();
        }
    }

    pub fn bytes(&self, at: u64, n: u64) -> Vec<u8> {
        let mut out = vec![0; n as usize];
        self.memory.read(at, &mut out);
        out
    }

    pub fn shutdown(&mut self, limit: Duration) {
        let mut events = Vec::new();
        let result = self.transport().shutdown(limit, &mut events);
        self.take(events);
        result.unwrap();
        assert!(self.posted.is_empty(), "a closed end has writes under way: {:?}", self.posted);
    }

    /// The rank dies with all it has.
    pub fn death(&mut self) {
        (self.die)();
        self.transport = None;
    }
}

pub fn bounded(begin: Instant, what: &str) {
    let bound = patient(BOUND);
    assert!(begin.elapsed() < bound, "{what} did not come in {bound:?}");
}

/// Bytes that no other place has.
pub fn pattern(seed: u64, n: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = Vec::with_capacity(4096);
    while block.len() < 4096 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        block.extend(x.to_le_bytes());
    }
    // A number before each block, so that no two are alike.
    let mut out = Vec::with_capacity(n as usize + 4104);
    for i in 0..n.div_ceil(4104) {
        out.extend((x ^ i).to_le_bytes());
        out.extend(&block);
    }
    out.truncate(n as usize);
    out
}
