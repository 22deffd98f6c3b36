//! What goes wrong on a connection of transport `verbs`: a typed error on both sides, whichever of them writes.

use super::side::{bounded, patient};
use mk_runtime::TransportError;
use mk_runtime::transport::{
    Event, HostMemory, Notify, Ordering, Posted, Transport, Write,
    verbs::{Options, Verbs},
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an arena.
const ARENA: usize = 1 << 20;
/// Both sides know within this.
const KNOWN: Duration = Duration::from_secs(8);

/// Places in a card: the low byte of its key, and of the window in its address.
const KEY: usize = 28;
const WINDOW: usize = 38 + 6;

/// Two ends, and what they have heard.
struct Pair {
    ends: [Verbs; 2],
    memory: [Arc<HostMemory>; 2],
    delivered: Vec<u64>,
    failed: Vec<(u64, TransportError)>,
    lost: [Option<TransportError>; 2],
}

impl Pair {
    /// Connected; `change` is made to the card of rank 1.
    fn new(options: &Options, change: impl Fn(&mut [u8])) -> Option<Pair> {
        let ends = (|| Ok([Verbs::open(0, options)?, Verbs::open(1, options)?]))();
        let mut ends = super::present(ends)?;
        let memory = [0, 1].map(|_| Arc::new(HostMemory::new(ARENA).unwrap()));
        for (end, memory) in ends.iter_mut().zip(&memory) {
            end.register(memory.clone()).unwrap();
        }
        let [a, b] = &mut ends;
        let (to_b, mut to_a) = (a.card(1).unwrap(), b.card(0).unwrap());
        change(&mut to_a);
        a.connect(1, &to_a).unwrap();
        b.connect(0, &to_b).unwrap();
        Some(Pair { ends, memory, delivered: vec![], failed: vec![], lost: [None, None] })
    }

    fn post(&mut self, token: u64, bytes: u64, notify: Notify) -> Result<Posted, TransportError> {
        self.ends[0].post(&Write { token, peer: 1, lane: 0, from: 0, to: 0, bytes, notify })
    }

    fn poll(&mut self, rank: usize) {
        let mut events = Vec::new();
        self.ends[rank].poll(&mut events).unwrap();
        for event in events {
            match event {
                Event::Delivered { token } => self.delivered.push(token),
                Event::Failed { token, error } => self.failed.push((token, error)),
                Event::Arrived { .. } => {}
                Event::Lost { peer, error } => {
                    assert_eq!(peer, 1 - rank as u32);
                    assert!(self.lost[rank].replace(error).is_none(), "lost twice");
                }
            }
        }
    }

    /// Polls until both sides have lost each other; the text of either error.
    fn until_lost(&mut self) -> [String; 2] {
        let begin = Instant::now();
        while self.lost.iter().any(Option::is_none) {
            assert!(begin.elapsed() < patient(KNOWN), "after {KNOWN:?} they know {:?}", self.lost);
            (0..2).for_each(|rank| self.poll(rank));
            self.ends[0].wait(Duration::from_millis(1));
        }
        [0, 1].map(|rank| {
            let error = self.lost[rank].as_ref().unwrap();
            let expected = 1 - rank as u32;
            assert!(
                matches!(error, TransportError::Peer { peer, .. } if *peer == expected),
                "{error}"
            );
            error.to_string()
        })
    }
}

fn in_order() -> Options {
    Options::new(Ordering::InOrder)
}

#[test]
fn a_wrong_key() {
    let Some(mut pair) = Pair::new(&in_order(), |card| card[KEY] ^= 0x55) else { return };
    pair.memory[0].write(0, &[7; 64]);
    assert_eq!(pair.post(1, 64, Notify::Word { at: 128, value: 1 }), Ok(Posted::Taken));
    let [writer, receiver] = pair.until_lost();
    assert!(writer.contains("refuses the write"), "{writer}");
    println!("writer: {writer}\nreceiver: {receiver}");
    assert!(
        matches!(&pair.failed[..], [(1, TransportError::Peer { peer: 1, .. })]),
        "{:?}",
        pair.failed
    );
    let mut bytes = [0; 256];
    pair.memory[1].read(0, &mut bytes);
    assert_eq!(bytes, [0; 256], "a refused write, or its word, is in memory");
    let again = pair.post(2, 64, Notify::Nothing);
    assert!(matches!(again, Err(TransportError::Peer { peer: 1, .. })), "{again:?}");
}

/// The key of an arena is of no use on a connection to another end, though both are of one process and one device.
#[test]
fn a_key_of_another_end() {
    let Some(mut other) = super::present(Verbs::open(2, &in_order())) else { return };
    let memory = Arc::new(HostMemory::new(ARENA).unwrap());
    other.register(memory.clone()).unwrap();
    let card = other.card(0).unwrap();
    let (base, key) = (20..28, KEY..KEY + 8);
    let Some(mut pair) = Pair::new(&in_order(), |to_a| {
        to_a[base.clone()].copy_from_slice(&card[base.clone()]);
        to_a[key.clone()].copy_from_slice(&card[key.clone()]);
    }) else {
        return;
    };
    pair.memory[0].write(0, &[7; 64]);
    assert_eq!(pair.post(1, 64, Notify::Nothing), Ok(Posted::Taken));
    pair.until_lost();
    assert_eq!(pair.failed.len(), 1);
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes);
    assert_eq!(bytes, [0; 64], "a stranger's memory is written");
}

#[test]
fn a_broken_queue_pair_of_the_writer() {
    let Some(mut pair) = Pair::new(&in_order(), |_| {}) else { return };
    pair.ends[0].break_queue_pair(1, 2);
    let [writer, receiver] = pair.until_lost();
    println!("writer: {writer}\nreceiver: {receiver}");
    assert!(pair.post(1, 64, Notify::Nothing).is_err());
}

#[test]
fn a_broken_queue_pair_of_the_receiver() {
    let Some(mut pair) = Pair::new(&in_order(), |_| {}) else { return };
    pair.ends[1].break_queue_pair(0, 0);
    let mut posted = 0;
    for token in 0..4 {
        posted += usize::from(pair.post(token, 64, Notify::Nothing) == Ok(Posted::Taken));
    }
    let [writer, receiver] = pair.until_lost();
    println!("writer: {writer}\nreceiver: {receiver}");
    assert_eq!(pair.failed.len(), posted, "{:?}", pair.delivered);
}

/// A receiver that has fewer receives than its card says: the network tries again, and gives up.
#[test]
fn a_receiver_without_receives() {
    let options = Options { window: 4, queue_pairs: 1, ..Options::new(Ordering::Unordered) };
    let Some(mut pair) = Pair::new(&options, |card| card[WINDOW] = 100) else { return };
    let begin = Instant::now();
    let mut token = 0;
    // Rank 1 does not poll.
    while pair.lost[0].is_none() {
        bounded(begin, "an error of the writer");
        match pair.post(token, 8, Notify::Immediate(token as u32)) {
            Ok(Posted::Taken) => token += 1,
            Ok(Posted::WouldBlock) | Err(_) => {}
        }
        pair.poll(0);
    }
    assert!(pair.failed.iter().all(|(_, e)| matches!(e, TransportError::Peer { peer: 1, .. })));
    assert_eq!(pair.delivered.len() + pair.failed.len(), token as usize);
    let [writer, receiver] = pair.until_lost();
    assert!(writer.contains("receiver not ready"), "{writer}");
    println!("writer: {writer}\nreceiver: {receiver}");
}

/// Credits hold a writer back whose receiver does not poll: nothing is retried, and nothing fails until the silence is over.
#[test]
fn a_receiver_that_does_not_poll() {
    let silence = Duration::from_secs(2);
    let options =
        Options { window: 8, queue_pairs: 2, silence, ..Options::new(Ordering::Unordered) };
    let Some(mut pair) = Pair::new(&options, |_| {}) else { return };
    let (begin, mut token) = (Instant::now(), 0);
    while begin.elapsed() < silence / 2 {
        if pair.post(token, 8, Notify::Immediate(token as u32)) == Ok(Posted::Taken) {
            token += 1;
        }
        pair.poll(0);
    }
    assert_eq!((token, pair.failed.len()), (16, 0), "two windows");
    // It polls, and both go on.
    while token < 100 {
        bounded(begin, "capacity for a write");
        if pair.post(token, 8, Notify::Immediate(token as u32)) == Ok(Posted::Taken) {
            token += 1;
        }
        (0..2).for_each(|rank| pair.poll(rank));
    }
    assert!(pair.lost.iter().all(Option::is_none));
    let error = loop {
        bounded(begin, "the end of the silence");
        match pair.post(token, 8, Notify::Immediate(token as u32)) {
            Ok(_) => pair.poll(0),
            Err(error) => break error,
        }
        token += 1;
    };
    assert!(error.to_string().contains("polled no immediate for 2.0 s"), "{error}");
}

/// The process of a peer ends: a rank that only receives hears of it, too.
#[test]
fn a_peer_that_ends_while_it_is_written_to_by_nobody() {
    let Some(mut pair) = Pair::new(&in_order(), |_| {}) else { return };
    // As the kernel does for a killed process: its queue pairs are gone, and nobody says so.
    let mut events = Vec::new();
    pair.ends[1].shutdown(Duration::ZERO, &mut events).unwrap();
    let begin = Instant::now();
    while pair.lost[0].is_none() {
        assert!(begin.elapsed() < patient(KNOWN), "nobody has missed the peer");
        pair.poll(0);
        pair.ends[0].wait(Duration::from_millis(1));
    }
    let error = pair.lost[0].take().unwrap().to_string();
    assert!(error.contains("does not answer"), "{error}");
    println!("after {:?}: {error}", begin.elapsed());
}

/// Port, GID and MTU are chosen from what is there, and overridden.
#[test]
fn what_an_end_is_made_of() {
    let Some(end) = super::present(Verbs::open(0, &in_order())) else { return };
    let (port, choice) = (end.port().clone(), end.choice().clone());
    println!("{} port {}, GID {:?}, MTU {}", port.device, port.number, choice.gid, choice.mtu);
    println!("GPU memory: {:?}", end.gpu_access());
    assert!(port.gids.contains(&choice.gid) && choice.mtu == port.mtu);
    drop(end);
    let first = port.gids[0].index;
    let given = Options {
        device: Some(port.device.clone()),
        port: Some(port.number),
        gid_index: Some(first),
        mtu: Some(256),
        service_level: 3,
        ..in_order()
    };
    let end = Verbs::open(0, &given).unwrap();
    assert_eq!((end.choice().gid.index, end.choice().mtu), (first, 256));
    for wrong in [
        Options { device: Some("nothing".into()), ..in_order() },
        Options { port: Some(9), ..in_order() },
        Options { gid_index: Some(9999), ..in_order() },
        Options { mtu: Some(8192), ..in_order() },
    ] {
        let error = Verbs::open(0, &wrong).err().expect("there is no such thing");
        assert!(matches!(error, TransportError::Unavailable { .. }), "{error}");
    }
}

/// Ends that do not fit are told apart by their cards.
#[test]
fn cards_of_other_ends() {
    let other = [
        Options { queue_pairs: 2, ..in_order() },
        Options { ordering: Ordering::Unordered, ..in_order() },
    ];
    for options in other {
        let ends = (|| Ok([Verbs::open(0, &in_order())?, Verbs::open(1, &options)?]))();
        let Some([mut a, mut b]) = super::present(ends) else { return };
        for end in [&mut a, &mut b] {
            end.register(Arc::new(HostMemory::new(4096).unwrap())).unwrap();
        }
        let card = b.card(0).unwrap();
        let error = a.connect(1, &card).unwrap_err();
        assert!(matches!(error, TransportError::Card { .. }), "{error}");
    }
}
