//! The code above libfabric, on a provider that answers and misbehaves as a test says (`fake`).

use super::fake::{self, Arrival, Behaviour};
use super::*;
use crate::transport::{HostMemory, Notify};
use std::collections::HashMap;

const ARENA: usize = 1 << 20;

/// Connected ends, all in this thread.
struct Group {
    ends: Vec<Ofi>,
    memory: Vec<Arc<HostMemory>>,
    delivered: HashMap<u64, usize>,
    failed: HashMap<u64, TransportError>,
    /// By rank: immediates, and how often each came.
    arrived: Vec<HashMap<u32, usize>>,
    lost: Vec<(u32, String)>,
}

fn options(rails: usize) -> Options {
    Options { rails, depth: 8, silence: Duration::from_millis(200), ..Options::new("efa") }
}

impl Group {
    fn new(n: u32, behaviour: Behaviour, options: &Options) -> Group {
        let library = fake::library(behaviour);
        let mut ends: Vec<Ofi> =
            (0..n).map(|rank| Ofi::open_with(library, rank, options).unwrap()).collect();
        let memory: Vec<_> = (0..n).map(|_| Arc::new(HostMemory::new(ARENA).unwrap())).collect();
        for (end, memory) in ends.iter_mut().zip(&memory) {
            end.register(memory.clone()).unwrap();
        }
        for a in 0..n {
            for b in (0..n).filter(|b| *b != a) {
                let card = ends[b as usize].card(a).unwrap();
                ends[a as usize].connect(b, &card).unwrap();
            }
        }
        let arrived = vec![HashMap::new(); n as usize];
        Group {
            ends,
            memory,
            delivered: HashMap::new(),
            failed: HashMap::new(),
            arrived,
            lost: Vec::new(),
        }
    }

    /// A write of 64 bytes of rank 0, to a place of its own.
    fn post(&mut self, token: u64, peer: u32) -> Result<Posted, TransportError> {
        let at = token % 4096 * 64;
        self.memory[0].write(at, &token.to_le_bytes());
        let notify = Notify::Immediate(token as u32);
        self.ends[0].post(&Write { token, peer, lane: 0, from: at, to: at, bytes: 64, notify })
    }

    fn poll(&mut self) {
        for (rank, end) in self.ends.iter_mut().enumerate() {
            let mut events = Vec::new();
            if !end.is_open() {
                continue;
            }
            end.poll(&mut events).unwrap();
            for event in events {
                match event {
                    Event::Delivered { token } => *self.delivered.entry(token).or_default() += 1,
                    Event::Failed { token, error } => {
                        assert!(self.failed.insert(token, error).is_none(), "{token} failed twice");
                    }
                    Event::Arrived { immediate, .. } => {
                        let mut bytes = [0; 8];
                        self.memory[rank].read(u64::from(immediate) % 4096 * 64, &mut bytes);
                        assert_eq!(
                            u64::from_le_bytes(bytes),
                            u64::from(immediate),
                            "before its data"
                        );
                        *self.arrived[rank].entry(immediate).or_default() += 1;
                    }
                    Event::Lost { peer, error } => self.lost.push((peer, error.to_string())),
                }
            }
        }
    }

    /// Writes `0..n` to rank 1, and polls until all have ended: how often a post would have blocked.
    fn send(&mut self, n: u64) -> usize {
        let (mut next, mut blocked) = (0, 0);
        for _ in 0..1_000_000 {
            if next < n {
                match self.post(next, 1) {
                    Ok(Posted::Taken) => next += 1,
                    Ok(Posted::WouldBlock) => {
                        blocked += 1;
                        self.poll();
                    }
                    Err(_) => next = n,
                }
            } else if self.ends[0].outstanding == 0 {
                return blocked;
            } else {
                self.poll();
            }
        }
        panic!("{next} of {n} writes were taken");
    }

    /// All writes were delivered, and have arrived at rank 1, once.
    fn all_once(&mut self, n: u64) {
        self.poll();
        assert_eq!(self.delivered.len() as u64, n, "{:?}", self.failed);
        assert!(self.delivered.values().all(|k| *k == 1), "delivered twice");
        assert_eq!(self.arrived[1].len() as u64, n);
        assert!(self.arrived[1].values().all(|k| *k == 1), "arrived twice");
        assert!(self.failed.is_empty() && self.lost.is_empty());
    }
}

/// What a machine with the device must have, taken away one by one.
#[test]
fn each_missing_requirement_is_the_reason() {
    type Change = fn(&mut Behaviour, &mut Options);
    let cases: [(Change, &str); 13] = [
        (|b, _| b.version = sys::version(1, 19), "libfabric 1.19 may lose immediates"),
        (|b, _| b.cq_data_bytes = 0, "carry 0 bytes"),
        (|b, _| b.op_flags = 0, "FI_DELIVERY_COMPLETE"),
        (|b, _| b.caps &= !sys::FI_REMOTE_WRITE, "does not write to remote"),
        (|b, _| b.mode |= 1 << 58, "mode bits"),
        (|b, _| b.emulated_write = Some(true), "FI_OPT_EFA_EMULATED_WRITE"),
        (|b, _| b.emulated_write = None, "FI_OPT_EFA_EMULATED_WRITE"),
        (|b, _| b.cuda_api = -95, "FI_OPT_CUDA_API_PERMITTED"),
        (|b, _| b.p2p = -95, "FI_OPT_FI_HMEM_P2P"),
        (|b, _| b.has_options = false, "no options"),
        (|b, o| (b.caps, o.gpu_memory) = (b.caps & !sys::FI_HMEM, true), "FI_HMEM"),
        (|_, o| o.rails = 5, "5 rails on 4 devices (rdmap0-rdm, rdmap1-rdm"),
        (|_, o| o.domains = Some(vec!["eth9".into()]), "there is no device eth9, among rdmap0-rdm"),
    ];
    for (change, reason) in cases {
        let (mut behaviour, mut options) = (Behaviour::default(), options(1));
        change(&mut behaviour, &mut options);
        let error = Ofi::open_with(fake::library(behaviour), 0, &options).err().expect(reason);
        assert!(matches!(error, TransportError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let none = Behaviour { getinfo: -61, ..Behaviour::default() };
    let error = Ofi::open_with(fake::library(none), 0, &options(1)).err().expect("no device");
    assert!(matches!(error, TransportError::Unavailable { .. }), "{error}");
    // With all of it, both options were set and not only asked for.
    let whole = Ofi::open_with(fake::library(Behaviour::default()), 0, &options(1)).unwrap();
    assert!(
        fake::was_set(sys::FI_OPT_CUDA_API_PERMITTED) && fake::was_set(sys::FI_OPT_FI_HMEM_P2P)
    );
    assert!(!whole.caps().gpu_memory, "it was not asked for");
}

#[test]
fn storms_of_eagain_are_would_block() {
    let mut group = Group::new(2, Behaviour { refusals: 50, ..Behaviour::default() }, &options(1));
    let blocked = group.send(200);
    assert!(blocked >= 50 * 200, "{blocked}");
    group.all_once(200);
}

/// A provider that never takes a write again is a peer that has failed, in time, on all of its rails.
#[test]
fn a_storm_without_end_is_a_lost_peer() {
    let mut group = Group::new(2, Behaviour::default(), &options(2));
    group.send(10);
    fake::behave(|b| b.refusals = u32::MAX);
    let begin = Instant::now();
    let error = loop {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is asked for ever");
        match group.post(99, 1) {
            Ok(posted) => assert_eq!(posted, Posted::WouldBlock),
            Err(error) => break error,
        }
        group.poll();
    };
    assert!(matches!(error, TransportError::Peer { peer: 1, .. }), "{error}");
    group.poll();
    assert_eq!(group.lost.len(), 1, "{:?}", group.lost);
}

#[test]
fn late_and_out_of_order_completions() {
    for (arrival, late) in [
        (Arrival::Reversed, 0),
        (Arrival::Reversed, 7),
        (Arrival::Shuffled(3), 40),
        (Arrival::InOrder, 200),
    ] {
        for rails in [1, 3] {
            let behaviour = Behaviour { arrival, late, ..Behaviour::default() };
            let mut group = Group::new(2, behaviour, &options(rails));
            group.send(500);
            group.all_once(500);
        }
    }
}

/// A write that ends after its peer was given up is not reported again, and its context is not used before.
#[test]
fn completions_that_come_too_late() {
    let mut group =
        Group::new(2, Behaviour { late: u64::MAX / 2, ..Behaviour::default() }, &options(1));
    let posted: u64 = (0..20).map(|t| u64::from(group.post(t, 1) == Ok(Posted::Taken))).sum();
    assert_eq!(posted, 8);
    let begin = Instant::now();
    while group.failed.len() < 8 {
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", group.failed);
        group.poll();
    }
    assert_eq!(group.lost.len(), 1);
    // All come to be now.
    fake::let_all_come();
    group.poll();
    group.poll();
    assert!(group.delivered.is_empty() && group.failed.len() == 8);
}

#[test]
fn errors_in_every_completion() {
    let behaviour = Behaviour { fails: Some(1), fails_at: Some(1), ..Behaviour::default() };
    let mut group = Group::new(3, behaviour, &options(1));
    let mut taken = 0;
    for token in 0..8 {
        taken += u64::from(group.post(token, 1) == Ok(Posted::Taken));
    }
    assert_eq!(taken, 8);
    while group.ends[0].outstanding > 0 {
        group.poll();
    }
    assert_eq!(group.failed.len(), 8);
    assert!(group.failed.values().all(|e| matches!(e, TransportError::Peer { peer: 1, .. })));
    assert_eq!(group.lost.len(), 1, "{:?}", group.lost);
    assert!(group.post(8, 1).is_err(), "a lost peer takes writes");
    // Others go on, with the contexts that the failed ones had.
    for token in 100..140 {
        while group.post(token, 2).unwrap() == Posted::WouldBlock {
            group.poll();
        }
    }
    while group.ends[0].outstanding > 0 {
        group.poll();
    }
    group.poll();
    assert_eq!((group.delivered.len(), group.arrived[2].len()), (40, 40));
}

/// Arrivals consume receives, which are posted again; also those that failed.
#[test]
fn receives_are_posted_again() {
    let mut group = Group::new(2, Behaviour { queue: 4, ..Behaviour::default() }, &options(1));
    group.send(100);
    for _ in 0..4 {
        fake::fail_a_receive(1);
    }
    group.poll();
    (0..4).for_each(|_| group.poll());
    group.delivered.clear();
    group.arrived[1].clear();
    group.send(100);
    group.all_once(100);
}

#[test]
fn writes_go_to_all_rails() {
    let mut group = Group::new(2, Behaviour::default(), &options(4));
    assert_eq!(group.ends[0].caps().depth, 4 * 8);
    group.send(400);
    group.all_once(400);
    // Endpoints 0 to 3 are those of rank 0.
    let each = fake::arrivals();
    assert_eq!(each.iter().sum::<u64>(), 400);
    assert!(each[..4].iter().all(|n| (80..=120).contains(n)), "{each:?}");
}

/// The key of one rail opens no other, and numbers of rails are compared.
#[test]
fn rails_have_keys_of_their_own() {
    let library = fake::library(Behaviour::default());
    let open = |rank, rails| {
        let mut end = Ofi::open_with(library, rank, &options(rails)).unwrap();
        end.register(Arc::new(HostMemory::new(ARENA).unwrap())).unwrap();
        end
    };
    let (mut a, mut b, mut c) = (open(0, 2), open(1, 2), open(2, 1));
    let other = c.card(0).unwrap();
    assert!(matches!(a.connect(2, &other), Err(TransportError::Card { .. })));
    let card = b.card(0).unwrap();
    for n in 0..card.len() {
        assert!(a.connect(1, &card[..n]).is_err(), "{n} bytes");
    }
    // The last rail: base, key, length, 8 bytes of address.
    let mut wrong = card.clone();
    let key = wrong.len() - 18;
    wrong[key] ^= 1;
    a.connect(1, &wrong).unwrap();
    let notify = Notify::Immediate(1);
    let write = |token| Write { token, peer: 1, lane: 0, from: 0, to: 0, bytes: 8, notify };
    for token in 0..2 {
        assert_eq!(a.post(&write(token)), Ok(Posted::Taken));
    }
    let mut events = Vec::new();
    (0..8).for_each(|_| a.poll(&mut events).unwrap());
    let delivered = events.iter().filter(|e| matches!(e, Event::Delivered { token: 0 })).count();
    let failed = events.iter().filter(|e| matches!(e, Event::Failed { token: 1, .. })).count();
    assert_eq!((delivered, failed), (1, 1), "{events:?}");
}

/// What peers can reach is the arena, to the byte, and only to write; nothing once the end is closed.
#[test]
fn the_arena_is_all_that_is_registered() {
    let mut group = Group::new(2, Behaviour::default(), &options(3));
    let mut expected: Vec<_> = group
        .memory
        .iter()
        .flat_map(|m| vec![(m.base() as usize, ARENA, sys::FI_WRITE | sys::FI_REMOTE_WRITE); 3])
        .collect();
    let mut there = fake::regions();
    expected.sort_unstable();
    there.sort_unstable();
    assert_eq!(there, expected);
    for end in &mut group.ends {
        end.shutdown(Duration::ZERO, &mut Vec::new()).unwrap();
    }
    assert_eq!(fake::regions(), []);
}

/// Memory of an end that is closed is reached by nobody.
#[test]
fn memory_of_a_closed_end() {
    let mut group = Group::new(2, Behaviour::default(), &options(2));
    group.send(20);
    let mut events = Vec::new();
    group.ends[1].shutdown(Duration::from_secs(1), &mut events).unwrap();
    group.memory[1].write(0, &vec![9; ARENA]);
    assert_eq!(group.post(0, 1), Ok(Posted::Taken));
    while group.ends[0].outstanding > 0 {
        group.poll();
    }
    assert_eq!(group.failed.len(), 1);
    let mut bytes = vec![0; ARENA];
    group.memory[1].read(0, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 9), "a closed end is written");
}
