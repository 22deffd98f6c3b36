//! Networks that a `Shaped` transport pretends to be: each fault does what it says, and writes end all the same.

use mk_runtime::transport::{
    Event, HostMemory, Notify, Ordering, Posted, Transport, TransportError, Write,
    loopback::{Loopback, LoopbackNetwork, Options},
    shaped::{Fault, Shape, Shaped},
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A shaped sender, and a receiver as it is, connected.
fn pair(shape: Shape) -> (Shaped, Loopback) {
    let options = Options::new(2, Ordering::Unordered);
    let mut network = LoopbackNetwork::new(options).unwrap();
    let [a, mut b] = [0, 1].map(|rank| network.end(rank).unwrap());
    let mut a = Shaped::new(Box::new(a), shape);
    a.register(Arc::new(HostMemory::new(1 << 20).unwrap())).unwrap();
    b.register(Arc::new(HostMemory::new(1 << 20).unwrap())).unwrap();
    let card = b.card(0).unwrap();
    a.connect(1, &card).unwrap();
    (a, b)
}

fn write(token: u64, bytes: u64) -> Write {
    let notify = Notify::Immediate(token as u32);
    Write { token, peer: 1, lane: 0, from: 0, to: 0, bytes, notify }
}

/// Polls until so many writes have ended: their tokens, and whether each was delivered.
fn ended(a: &mut Shaped, n: usize) -> Vec<(u64, bool)> {
    let begin = Instant::now();
    let (mut out, mut events) = (Vec::new(), Vec::new());
    while out.len() < n {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{} of {n} writes have ended",
            out.len()
        );
        a.poll(&mut events).unwrap();
        a.wait(Duration::from_millis(1));
        out.extend(events.drain(..).filter_map(|event| match event {
            Event::Delivered { token } => Some((token, true)),
            Event::Failed { token, .. } => Some((token, false)),
            Event::Arrived { .. } | Event::Lost { .. } => None,
        }));
    }
    out
}

fn post_all(a: &mut Shaped, writes: impl Iterator<Item = Write>) {
    for write in writes {
        assert_eq!(a.post(&write).unwrap(), Posted::Taken);
    }
}

#[test]
fn a_link_has_its_rate_and_latency() {
    let latency = Duration::from_millis(20);
    let (mut a, _b) = pair(Shape { bytes_per_s: Some(10e6), latency, ..Shape::default() });
    let begin = Instant::now();
    // 100 ms of wire.
    post_all(&mut a, (0..10).map(|i| write(i, 100_000)));
    assert_eq!(ended(&mut a, 10).len(), 10);
    assert!(begin.elapsed() >= Duration::from_millis(120), "{:?}", begin.elapsed());
}

#[test]
fn writes_change_places_and_are_all_there() {
    let latency = Duration::from_millis(5);
    let (mut a, mut b) = pair(Shape { latency, reorder: Some(3), ..Shape::default() });
    post_all(&mut a, (0..100).map(|i| write(i, 8)));
    std::thread::sleep(2 * latency);
    let mut tokens: Vec<u64> = ended(&mut a, 100).into_iter().map(|(token, _)| token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..100).collect::<Vec<_>>());
    let mut events = Vec::new();
    b.poll(&mut events).unwrap();
    let came: Vec<u32> = events
        .iter()
        .filter_map(
            |e| if let Event::Arrived { immediate, .. } = e { Some(*immediate) } else { None },
        )
        .collect();
    assert_eq!(came.len(), 100);
    // Two copying threads change neighbours at most; this network does more.
    let moved = came.iter().enumerate().filter(|(i, n)| i.abs_diff(**n as usize) > 8);
    assert!(moved.count() > 30, "{came:?}");
}

#[test]
fn one_write_fails() {
    let (mut a, _b) = pair(Shape { faults: vec![Fault::Fails(1)], ..Shape::default() });
    post_all(&mut a, (0..3).map(|i| write(i, 64)));
    let mut all = ended(&mut a, 3);
    all.sort_unstable();
    assert_eq!(all, [(0, true), (1, false), (2, true)]);
}

#[test]
fn a_link_stalls_and_goes_on() {
    let time = Duration::from_millis(200);
    let (mut a, _b) =
        pair(Shape { faults: vec![Fault::Stalls { at: 1, time }], ..Shape::default() });
    let begin = Instant::now();
    post_all(&mut a, (0..1).map(|i| write(i, 64)));
    ended(&mut a, 1);
    let first = begin.elapsed();
    post_all(&mut a, (1..3).map(|i| write(i, 64)));
    assert_eq!(ended(&mut a, 2).len(), 2);
    assert!(begin.elapsed() - first >= time);
}

#[test]
fn posts_would_block_as_often_as_asked() {
    let (mut a, _b) =
        pair(Shape { faults: vec![Fault::Blocks { at: 1, times: 3 }], ..Shape::default() });
    let mut refused = |token| {
        let mut n = 0;
        while a.post(&write(token, 8)).unwrap() == Posted::WouldBlock {
            n += 1;
        }
        n
    };
    assert_eq!([refused(0), refused(1), refused(2)], [0, 3, 3]);
}

#[test]
fn a_peer_is_gone() {
    let latency = Duration::from_millis(50);
    let (mut a, _b) = pair(Shape { latency, faults: vec![Fault::Gone(2)], ..Shape::default() });
    post_all(&mut a, (0..2).map(|i| write(i, 8)));
    assert!(matches!(a.post(&write(2, 8)), Err(TransportError::Peer { peer: 1, .. })));
    let mut all = ended(&mut a, 2);
    all.sort_unstable();
    assert_eq!(all, [(0, false), (1, false)]);
}
