//! Proxies over the network inside a process: what they carry, what they refuse, and how they end.

use mk_abi::{
    NetLayout,
    device::{NO_WORD, NetCommand, NetCommandKind},
};
use mk_runtime::{
    TransportError,
    proxy::{Arena, Attached, Ends, Engine, Fifo, Lease, NetFault, Proxy, Watch, Writer, connect},
    transport::{
        Flush, HostMemory, NetMemory, Notify, Ordering, Posted, Transport, Write,
        loopback::{self, LoopbackNetwork},
        shaped::{Fault, Shape, Shaped},
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering as Atomic},
    },
    time::{Duration, Instant},
};

const ARENA: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(5);

fn layout(in_order: bool) -> NetLayout {
    NetLayout {
        local: 1,
        in_order,
        fifo: 16,
        lanes: 2,
        words: 32,
        hashes: 128,
        buffers: 1024,
        bytes: 1 << 18,
        message_bytes: 1 << 16,
    }
}

/// One of two ranks, each a node.
struct Rank {
    memory: Arc<HostMemory>,
    fifo: Writer,
    lease: Lease,
    proxy: Proxy,
}

/// Kernels that can be told.
#[derive(Debug, Default)]
struct Kernels {
    gave_up: AtomicU32,
    told: AtomicU32,
}

impl Watch for Kernels {
    fn gave_up(&self, rank: u32) -> bool {
        let by = self.gave_up.load(Atomic::Relaxed);
        assert_ne!(by, u32::MAX, "the end of a proxy's thread, as a test wants it");
        by == rank + 1
    }

    fn give_up(&self, by: u32, _why: Option<&NetFault>) {
        self.told.store(by + 1, Atomic::Relaxed);
    }
}

fn ends(ordering: Ordering, shape: &Shape) -> (Ends, Vec<Arc<HostMemory>>) {
    let mut fabric = LoopbackNetwork::new(loopback::Options::new(2, ordering)).unwrap();
    let (mut ends, mut memories) = (Ends::new(), Vec::new());
    for rank in 0..2 {
        let mut end = Shaped::new(Box::new(fabric.end(rank).unwrap()), shape.clone());
        let memory = Arc::new(HostMemory::new(ARENA as usize).unwrap());
        end.register(memory.clone()).unwrap();
        ends.push((rank, Box::new(end)));
        memories.push(memory);
    }
    connect(&mut ends, 2, 1, |mine| Ok::<_, TransportError>(vec![mine.to_vec()])).unwrap();
    (ends, memories)
}

fn ranks(ordering: Ordering, shape: &Shape) -> ([Rank; 2], Arc<Kernels>) {
    let (ends, memories) = ends(ordering, shape);
    let kernels = Arc::new(Kernels::default());
    let mut list = Vec::new();
    for ((rank, end), memory) in ends.into_iter().zip(memories) {
        let layout = layout(ordering == Ordering::InOrder);
        let lease = Arena::new(ARENA).lease(layout.bytes).unwrap();
        let fifo = Fifo::on_host(layout.fifo).unwrap();
        let writer = fifo.writer();
        let engine = Engine::new(rank, 2, end, memory.clone());
        let proxy = Proxy::start(rank, engine, SOON).unwrap();
        let watch: Option<Arc<dyn Watch>> = Some(kernels.clone());
        proxy.attach(Attached { lease, layout, fifo, watch }).unwrap();
        list.push(Rank { memory, fifo: writer, lease, proxy });
    }
    let Ok(list) = list.try_into() else { panic!("two ranks") };
    (list, kernels)
}

impl Rank {
    fn word(&self, word: u32) -> u32 {
        self.memory.word(self.lease.base + 4 * u64::from(word)).load(Atomic::Acquire)
    }

    fn push(&mut self, command: NetCommand) {
        until("capacity of the fifo", || self.fifo.push(command));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SOON, "{what}");
        std::thread::yield_now();
    }
}

/// 64 bytes of message `n`, to the same place of the peer.
fn send(peer: u32, n: u32, epoch: u32) -> NetCommand {
    NetCommand {
        from: 1024 + 64 * u64::from(n),
        to: 65536 + 64 * u64::from(n),
        bytes: 64,
        peer,
        lane: n % 2,
        instance: 0,
        epoch,
        remote_word: n,
        local_word: 16 + n,
        launch_hash: 0xabcd,
        kind: NetCommandKind::Send as u32,
        edge: 7,
        reserved: 0,
        seq: 0,
    }
}

/// Every message of every launch is there when its word is, and was read when the sender's word says so.
fn carries(ordering: Ordering, shape: &Shape) {
    let ([mut a, mut b], _) = ranks(ordering, shape);
    for epoch in 1..=70 {
        for n in 0..16 {
            let base = a.lease.base + 1024 + 64 * u64::from(n);
            a.memory.write(base, &[epoch as u8 ^ n as u8; 64]);
            a.push(send(1, n, epoch));
        }
        for n in 0..16 {
            until("a message", || b.word(n) == epoch);
            let mut got = [0; 64];
            b.memory.read(b.lease.base + 65536 + 64 * u64::from(n), &mut got);
            assert_eq!(got, [epoch as u8 ^ n as u8; 64], "message {n} of launch {epoch}");
            until("a delivery", || a.word(16 + n) == epoch);
        }
    }
    let enter = NetCommand {
        kind: NetCommandKind::Enter as u32,
        bytes: 0,
        local_word: NO_WORD,
        ..send(0, 3, 1)
    };
    b.push(enter);
    until("an entry", || a.word(3) == 1);
    let hash = a.lease.base + layout(true).hash(2, 1, 1);
    assert_eq!(a.memory.word(hash).load(Atomic::Relaxed), 0xabcd);
    // What says that it has no bytes has no place either.
    b.push(NetCommand { from: u64::MAX, to: u64::MAX, bytes: 0, ..send(0, 5, 1) });
    until("a word without data", || a.word(5) == 1);
    assert_eq!((a.proxy.fault(), b.proxy.fault()), (None, None));
    until("the count", || a.proxy.counts().commands == 70 * 16);
    for rank in [a, b] {
        assert!(rank.proxy.detach(0, SOON).unwrap());
        rank.proxy.close().unwrap();
    }
}

#[test]
fn in_order() {
    carries(Ordering::InOrder, &Shape::default());
}

#[test]
fn unordered_and_shuffled() {
    let shape = Shape { latency: Duration::from_micros(50), reorder: Some(5), ..Shape::default() };
    carries(Ordering::Unordered, &shape);
}

/// What a broken kernel asks for is a fault that names the edge, and no byte is written.
#[test]
fn commands_outside_the_range_are_refused() {
    type Change = (&'static str, fn(&mut NetCommand));
    let changes: [Change; 9] = [
        ("inside the buffers", |c| c.from = 0),
        ("inside the buffers", |c| c.to = (1 << 18) - 32),
        ("inside the buffers", |c| c.to = u64::MAX - 8),
        ("inside the buffers", |c| c.bytes = (1 << 16) + 1),
        ("no rank of another node", |c| c.peer = 0),
        ("no rank of another node", |c| c.peer = 2),
        ("sets words", |c| c.remote_word = 32),
        ("of instance 1", |c| c.instance = 1),
        ("of kind 9", |c| c.kind = 9),
    ];
    for (what, change) in changes {
        let ([mut a, b], kernels) = ranks(Ordering::InOrder, &Shape::default());
        let mut command = send(1, 0, 1);
        change(&mut command);
        a.push(command);
        until(what, || a.proxy.fault().is_some());
        let fault = a.proxy.fault().unwrap();
        assert!(fault.edge == Some(7) && fault.to_string().contains(what), "{what}: {fault}");
        until("word to the kernels", || kernels.told.load(Atomic::Relaxed) == 1);
        // Nothing follows, and what did not go is nowhere.
        a.push(send(1, 1, 1));
        std::thread::sleep(Duration::from_millis(5));
        let mut all = vec![0; ARENA as usize];
        b.memory.read(0, &mut all);
        assert!(all.iter().all(|byte| *byte == 0), "{what}: something was written");
    }
}

/// Immediates of launches that are over, of other instances, and of words that there are not, are dropped and counted.
#[test]
fn late_immediates_are_dropped() {
    let (mut ends, memories) = ends(Ordering::Unordered, &Shape::default());
    let (_, mut raw) = ends.pop().unwrap();
    let (_, end) = ends.pop().unwrap();
    let layout = layout(false);
    let lease = Arena::new(ARENA).lease(layout.bytes).unwrap();
    let fifo = Fifo::on_host(layout.fifo).unwrap();
    let proxy = Proxy::start(0, Engine::new(0, 2, end, memories[0].clone()), SOON).unwrap();
    proxy.attach(Attached { lease, layout, fifo, watch: None }).unwrap();
    let word = || memories[0].word(lease.base + 4 * 5).load(Atomic::Acquire);
    let mut tell = |instance: u32, epoch: u32, word: u32| {
        let immediate = instance << 26 | (epoch % 64) << 20 | word;
        let notify = Notify::Immediate(immediate);
        let write = Write { token: 1, peer: 0, lane: 0, from: 0, to: 0, bytes: 0, notify };
        assert_eq!(raw.post(&write).unwrap(), Posted::Taken);
        let mut events = Vec::new();
        until("its end", || {
            raw.poll(&mut events).unwrap();
            !events.is_empty()
        });
    };
    tell(0, 1, 5);
    until("launch 1", || word() == 1);
    // Early ones wait.
    tell(0, 3, 5);
    until("an early one", || proxy.counts().early == 1);
    assert_eq!(word(), 1);
    tell(0, 2, 5);
    until("both", || word() == 3);
    for (n, (instance, epoch, which)) in
        (1..).zip([(0, 3, 5), (0, 1, 5), (9, 4, 5), (0, 4, 4000), (0, 60, 5)])
    {
        tell(instance, epoch, which);
        until("the count", || proxy.counts().dropped == n);
    }
    assert_eq!((word(), proxy.fault()), (3, None));
}

/// A write that fails is the proxy's fault, and the kernels of its process are told.
#[test]
fn a_failed_write_is_a_fault() {
    let shape = Shape { faults: vec![Fault::Fails(3)], ..Shape::default() };
    let ([mut a, b], kernels) = ranks(Ordering::InOrder, &shape);
    let begin = Instant::now();
    (0..6).for_each(|n| a.push(send(1, n, 1)));
    until("the fault", || a.proxy.fault().is_some());
    until("word to the kernels", || kernels.told.load(Atomic::Relaxed) == 1);
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(b.word(3), 0, "the word of a failed write");
}

/// A kernel that gives up is told to the others.
#[test]
fn kernels_that_give_up_are_seen() {
    let ([_a, _b], kernels) = ranks(Ordering::InOrder, &Shape::default());
    kernels.gave_up.store(2, Atomic::Relaxed);
    until("word to the kernels", || kernels.told.load(Atomic::Relaxed) == 2);
}

/// The thread of a proxy ends: its kernels are told, and there is a fault.
#[test]
fn a_proxy_that_dies_is_a_fault() {
    let ([a, _b], kernels) = ranks(Ordering::InOrder, &Shape::default());
    let begin = Instant::now();
    kernels.gave_up.store(u32::MAX, Atomic::Relaxed);
    until("word to the kernels", || kernels.told.load(Atomic::Relaxed) != 0);
    until("the fault", || a.proxy.fault().is_some_and(|f| f.error == TransportError::Closed));
    assert!(begin.elapsed() < Duration::from_secs(2));
}

/// Dropped with writes on a slow link: what was taken arrives, the range is free only then, and nothing is written afterwards.
#[test]
fn writes_in_flight_are_drained() {
    let latency = Duration::from_millis(100);
    let ([mut a, b], _) = ranks(Ordering::InOrder, &Shape { latency, ..Shape::default() });
    (0..8).for_each(|n| a.push(send(1, n, 1)));
    assert!(!a.proxy.detach(0, Duration::from_millis(1)).unwrap(), "nothing was under way");
    assert!(a.proxy.detach(0, SOON).unwrap());
    assert!((0..8).all(|n| b.word(n) == 1), "a range is free before its writes have ended");
    a.proxy.close().unwrap();
    b.proxy.close().unwrap();
}

/// A layout that does not fit its range, or a network that keeps another order, is refused.
#[test]
fn instances_that_are_refused() {
    let ([a, _b], _) = ranks(Ordering::InOrder, &Shape::default());
    let attach = |change: fn(&mut NetLayout)| {
        let mut layout = layout(true);
        change(&mut layout);
        let fifo = Fifo::on_host(16).unwrap();
        let error = a.proxy.attach(Attached { lease: a.lease, layout, fifo, watch: None });
        error.unwrap_err().to_string()
    };
    assert!(attach(|l| l.in_order = false).contains("net=in_order"));
    assert!(attach(|l| l.bytes = ARENA + 4096).contains("does not fit"));
    assert!(attach(|l| l.hashes = 64).contains("does not fit"));
    assert!(attach(|l| l.buffers = 128).contains("does not fit"));
}

/// Memory that must be flushed before a word of message 0 is set, and says what it saw then.
#[derive(Debug)]
struct Hidden {
    memory: Arc<HostMemory>,
    fails: bool,
    seen: AtomicU32,
}

const DATA: u64 = 65536;

// SAFETY: the memory that it has.
unsafe impl NetMemory for Hidden {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn flush(&self) -> Result<(), String> {
        let mut data = [0; 1];
        self.memory.read(DATA, &mut data);
        let word = self.memory.word(0).load(Atomic::Acquire);
        self.seen.fetch_max(100 * (word + 1) + u32::from(data[0]), Atomic::Relaxed);
        if self.fails { Err("the driver is gone".into()) } else { Ok(()) }
    }
}

/// The receiver's proxy flushes behind the data and before the word; a flush that fails is a fault, and no word is set.
#[test]
fn words_wait_for_a_flush() {
    for (flush, fails) in [(Flush::Driver, false), (Flush::None, false), (Flush::Driver, true)] {
        let options = loopback::Options { flush, ..loopback::Options::new(2, Ordering::Unordered) };
        let mut fabric = LoopbackNetwork::new(options).unwrap();
        let (mut ends, mut memories) = (Ends::new(), Vec::new());
        for rank in 0..2 {
            let mut end = fabric.end(rank).unwrap();
            let memory = Arc::new(HostMemory::new(ARENA as usize).unwrap());
            let hidden = Arc::new(Hidden { memory, fails, seen: AtomicU32::new(0) });
            end.register(hidden.clone()).unwrap();
            ends.push((rank, Box::new(end)));
            memories.push(hidden);
        }
        connect(&mut ends, 2, 1, |mine| Ok::<_, TransportError>(vec![mine.to_vec()])).unwrap();
        let mut ranks = Vec::new();
        for ((rank, end), memory) in ends.into_iter().zip(&memories) {
            let layout = layout(false);
            let lease = Arena::new(ARENA).lease(layout.bytes).unwrap();
            let fifo = Fifo::on_host(layout.fifo).unwrap();
            let writer = fifo.writer();
            let proxy =
                Proxy::start(rank, Engine::new(rank, 2, end, memory.clone()), SOON).unwrap();
            proxy.attach(Attached { lease, layout, fifo, watch: None }).unwrap();
            ranks.push((proxy, writer, lease));
        }
        memories[0].memory.write(ranks[0].2.base + 1024, &[7; 64]);
        assert_eq!(ranks[1].2.base, 0);
        assert!(ranks[0].1.push(send(1, 0, 1)));
        let word = || memories[1].memory.word(0).load(Atomic::Acquire);
        let (receiver, seen) = (&ranks[1].0, || memories[1].seen.load(Atomic::Relaxed));
        match (flush, fails) {
            (Flush::Driver, true) => {
                until("a fault", || receiver.fault().is_some());
                let fault = receiver.fault().unwrap().to_string();
                assert!(fault.contains("the driver is gone") && word() == 0, "{fault}");
            }
            (Flush::Driver, false) => {
                until("the word", || word() == 1);
                assert_eq!((seen(), receiver.counts().flushes), (107, 1), "data 7, and no word");
            }
            _ => {
                until("the word", || word() == 1);
                assert_eq!((seen(), receiver.counts().flushes), (0, 0));
            }
        }
    }
}
