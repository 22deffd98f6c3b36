//! The contract of transports: cases that two ranks run together, on any of them. See `mk_runtime::transport`.

use super::side::{OUT, Side, patient, pattern};
use mk_runtime::transport::{Notify, Posted, TransportError, Write, card::MAX_CARD};
use std::time::{Duration, Instant};

/// A case: its name, bytes of either area, and the body of both ranks.
pub type Case = (&'static str, u64, fn(&mut Side));

/// The cases, one test each.
pub const CASES: &[Case] = &[
    ("sizes", 65 << 20, sizes),
    ("flood", 16 << 20, flood),
    ("order", 1 << 20, order),
    ("delivered", 1 << 20, delivered),
    ("pressure", 1 << 20, pressure),
    ("dead_peer", 4 << 20, dead_peer),
    ("dead_writer", 16 << 20, dead_writer),
    ("bad_key", 1 << 16, bad_key),
    ("longer_arena", 1 << 16, longer_arena),
    ("refusals", 1 << 16, refusals),
    ("sender_closes", 16 << 20, sender_closes),
    ("receiver_closes", 16 << 20, receiver_closes),
];

/// A dead or hostile peer ends writes within this.
const ENDED: Duration = Duration::from_secs(8);

pub fn run(case: &str, side: &mut Side) {
    let found = CASES.iter().find(|(name, ..)| *name == case);
    (found.expect("a case").2)(side);
}

/// From nothing to 64 MiB, either way; bytes beside them stay.
fn sizes(s: &mut Side) {
    s.connect(|card| card);
    let list: [u64; 10] = [0, 1, 2, 3, 64, 100, 4096, 65_537, 1 << 20, 64 << 20];
    for (i, n) in (0..).zip(list) {
        for writer in [0, 1] {
            // The longest goes one way.
            if writer == 1 && n > 1 << 20 {
                continue;
            }
            let word = 2 * i + writer;
            // Odd places, so that nothing is aligned by chance.
            let (from, to) = (n % 7, n % 5 + 1);
            if s.me == writer {
                s.memory.write(OUT + from, &pattern(u64::from(word), n));
                let write = s.write(u64::from(word), (from, to, n), word);
                s.post_all(&write);
                s.until("delivery", |s| s.delivered.contains(&u64::from(word)));
                assert_eq!(s.recv(), b"seen");
            } else {
                s.until("notification", |s| s.has(word));
                let at = s.incoming() + to;
                assert!(s.bytes(at, n) == pattern(u64::from(word), n), "{n} bytes");
                assert_eq!(s.bytes(at - 1, 1), [0]);
                let behind = s.bytes(at + n, 64);
                assert!(behind.iter().all(|b| *b == 0), "behind {n} bytes: {behind:?}");
                if n <= 1 << 20 {
                    s.memory.write(at, &vec![0; n as usize]);
                }
                s.send(b"seen");
            }
        }
    }
    s.meet();
}

const FLOOD: u32 = 4000;
const PIECE: u64 = 4096;

/// Thousands of writes under way both ways: none lost, none twice, no notification before its data.
fn flood(s: &mut Side) {
    s.connect(|card| card);
    let lanes = s.transport().caps().lanes;
    let (me, peer) = (u64::from(s.me), u64::from(s.peer()));
    for i in 0..u64::from(FLOOD) {
        s.memory.write(OUT + i * PIECE, &pattern(2 * i + me, PIECE));
    }
    s.meet();
    let mut next = 0;
    let mut unseen: Vec<u32> = (0..FLOOD).collect();
    s.until("all of a flood", |s| {
        for _ in 0..64 {
            if next == FLOOD {
                break;
            }
            let at = u64::from(next) * PIECE;
            let write = s.write(u64::from(next), (at, at, PIECE), next);
            match s.post(&Write { lane: next % lanes, ..write }).unwrap() {
                Posted::Taken => next += 1,
                Posted::WouldBlock => break,
            }
        }
        let new = |i: &u32| s.has(*i);
        let new: Vec<u32> = unseen.iter().copied().filter(new).collect();
        unseen.retain(|i| !new.contains(i));
        for i in new {
            let at = s.incoming() + u64::from(i) * PIECE;
            let right = s.bytes(at, PIECE) == pattern(2 * u64::from(i) + peer, PIECE);
            assert!(right, "write {i} was announced before it was here");
        }
        s.delivered.len() == FLOOD as usize && unseen.is_empty()
    });
    assert!(s.failed.is_empty());
    s.meet();
    let again: Vec<_> = s.arrived.iter().filter(|(_, n)| **n != 1).collect();
    assert!(again.is_empty(), "notifications that came twice: {again:?}");
    let expected = if s.ordered() { 0 } else { FLOOD as usize };
    assert_eq!(s.arrived.len(), expected);
}

/// On an ordered network words come behind data, and in order; on an unordered one there is nothing to show beyond
/// `flood`, and words are refused.
fn order(s: &mut Side) {
    s.connect(|card| card);
    if !s.ordered() {
        let word = Write { notify: Notify::Word { at: 0, value: 1 }, ..s.write(0, (0, 0, 8), 0) };
        assert!(matches!(s.post(&word), Err(TransportError::Write { .. })));
        return s.meet();
    }
    const BIG: u64 = 256 << 10;
    for round in 1..=30u32 {
        if s.me == 0 {
            s.memory.write(OUT, &pattern(u64::from(round), BIG));
            let data = s.write(u64::from(round) * 2, (0, 0, BIG), 0);
            s.post_all(&Write { notify: Notify::Nothing, ..data });
            let word = s.write(u64::from(round) * 2 + 1, (0, 0, 0), 0);
            s.post_all(&Write { notify: Notify::Word { at: 0, value: round }, ..word });
            assert_eq!(s.recv(), b"seen");
        } else {
            s.until("a word", |s| s.memory.word(0) == round);
            let right = s.bytes(s.incoming(), BIG) == pattern(u64::from(round), BIG);
            assert!(right, "the word of round {round} came before its data");
            s.send(b"seen");
        }
    }
    const LAST: u32 = 1000;
    if s.me == 0 {
        for value in 1..=LAST {
            let write = s.write(1000 + u64::from(value), (0, 0, 64), 1);
            s.post_all(&Write { notify: Notify::Word { at: 4, value }, ..write });
        }
        s.drain(ENDED);
    } else {
        let mut before = 0;
        s.until("the last word", |s| {
            let now = s.memory.word(4);
            assert!(now >= before, "{now} after {before}");
            before = now;
            now == LAST
        });
    }
    s.meet();
}

/// What is reported as delivered is in the peer's memory, without a further step of the peer.
fn delivered(s: &mut Side) {
    s.connect(|card| card);
    for round in 0..20u64 {
        let n = 1 + round * 50_000;
        if s.me == 0 {
            s.memory.write(OUT, &pattern(round, n));
            let write = Write { notify: Notify::Nothing, ..s.write(round, (0, 0, n), 0) };
            s.post_all(&write);
            s.until("delivery", |s| s.delivered.contains(&round));
            s.send(b"delivered");
            assert_eq!(s.recv(), b"seen");
        } else {
            assert_eq!(s.recv(), b"delivered");
            assert!(s.bytes(s.incoming(), n) == pattern(round, n), "round {round}");
            s.send(b"seen");
        }
    }
    s.meet();
}

/// A rank that does not poll is stopped by its depth, and goes on when it polls.
fn pressure(s: &mut Side) {
    s.connect(|card| card);
    if s.me == 1 {
        assert_eq!(s.recv(), b"done");
        return;
    }
    let depth = s.transport().caps().depth;
    for round in 0..3u64 {
        let begin = Instant::now();
        let mut taken = 0;
        // Connecting takes a while on some networks, and polls.
        while taken == 0 {
            super::side::bounded(begin, "the first write");
            s.poll();
            loop {
                let token = (round << 32) | taken as u64;
                let write = s.write(token, (0, 0, 8), 0);
                match s.post(&write).unwrap() {
                    Posted::Taken => taken += 1,
                    Posted::WouldBlock => break,
                }
                assert!(taken <= depth, "{taken} writes are under way, of {depth}");
            }
        }
        s.drain(ENDED);
    }
    assert!(s.failed.is_empty());
    s.send(b"done");
}

/// The writes to a rank that has died end, and posts to it fail.
fn dead_peer(s: &mut Side) {
    s.connect(|card| card);
    if s.me == 1 {
        s.until("a first write", |s| s.has(0));
        return s.death();
    }
    let first = s.write(0, (0, 0, 64 << 10), 0);
    s.post_all(&first);
    s.drain(ENDED);
    let begin = Instant::now();
    let mut token = 1;
    let error = loop {
        assert!(begin.elapsed() < patient(ENDED), "a dead peer takes writes");
        let write = s.write(token, (0, 0, 64 << 10), 1);
        match s.post(&write) {
            Ok(Posted::Taken) => token += 1,
            Ok(Posted::WouldBlock) => {}
            Err(error) => break error,
        }
        s.poll();
        if let Some(error) = s.failed.values().next() {
            break error.clone();
        }
    };
    assert!(matches!(error, TransportError::Peer { peer: 1, .. }), "{error}");
    s.drain(ENDED);
}

/// A rank that dies in the middle of its writes does no harm to the one that it wrote to.
fn dead_writer(s: &mut Side) {
    s.connect(|card| card);
    if s.me == 1 {
        fill(s, 64);
        return s.death();
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        s.poll();
    }
    s.shutdown(Duration::ZERO);
}

/// A write with a wrong key fails, and nothing of the peer's memory changes.
fn bad_key(s: &mut Side) {
    hostile(s, KEY);
}

/// Nor does a write beyond the peer's arena, whatever its card said.
fn longer_arena(s: &mut Side) {
    hostile(s, LENGTH);
}

/// Places in a card.
const LENGTH: usize = 12;
const KEY: usize = 28;

fn hostile(s: &mut Side, field: usize) {
    let me = s.me;
    s.connect(|mut card| {
        if me == 1 {
            match field {
                KEY => card[KEY] ^= 0x55,
                // 4 GiB more.
                _ => card[LENGTH + 4] = 1,
            }
        }
        card
    });
    if s.me == 0 {
        s.memory.write(OUT, &[7; 4096]);
        let end = (1 << 32) - OUT - s.area;
        let write = s.write(0, (0, if field == KEY { 0 } else { end }, 4096), 3);
        let begin = Instant::now();
        let refused = loop {
            match s.post(&write) {
                Ok(Posted::Taken) => break false,
                Ok(Posted::WouldBlock) => {
                    assert!(begin.elapsed() < patient(ENDED), "it is neither taken nor refused");
                    s.poll();
                }
                Err(_) => break true,
            }
        };
        if !refused {
            s.drain(ENDED);
            assert!(s.failed.contains_key(&0), "a write that the peer refuses is delivered");
        }
        s.send(b"ended");
    } else {
        assert_eq!(s.recv(), b"ended");
        for (at, n) in [(0, OUT), (OUT, s.area), (s.incoming(), s.area)] {
            assert!(s.bytes(at, n).iter().all(|b| *b == 0), "memory at {at} has changed");
        }
    }
}

/// What no network could do is refused at once, and so is what is no card.
fn refusals(s: &mut Side) {
    let peer = s.peer();
    let again = s.memory.registered();
    assert!(s.transport().register(again).is_err(), "a second arena");
    let unconnected = s.write(0, (0, 0, 8), 0);
    assert!(matches!(s.post(&unconnected), Err(TransportError::State { .. })));
    let card = s.transport().card(peer).unwrap();
    for n in [0, 3, card.len() - 1] {
        let refused = s.transport().connect(peer, &card[..n]);
        assert!(matches!(refused, Err(TransportError::Card { .. })), "{n} bytes");
    }
    let long = vec![0xff; 2 * MAX_CARD];
    assert!(matches!(s.transport().connect(peer, &long), Err(TransportError::Card { .. })));
    // Its own card is nobody else's.
    assert!(matches!(s.transport().connect(peer, &card), Err(TransportError::Card { .. })));
    s.connect(|card| card);
    let good = s.write(0, (0, 0, 8), 0);
    let lanes = s.transport().caps().lanes;
    let whole = OUT + 2 * s.area;
    let wrong = [
        Write { from: whole, ..good },
        Write { from: u64::MAX - 3, ..good },
        Write { to: whole + 4096, ..good },
        Write { to: u64::MAX - 3, ..good },
        Write { bytes: u64::MAX, ..good },
        Write { lane: lanes, ..good },
    ];
    for write in wrong {
        assert!(matches!(s.post(&write), Err(TransportError::Write { .. })), "{write:?}");
    }
    s.transport().raise(&[(8, 5)]).unwrap();
    s.until("a word that was raised", |s| s.memory.word(8) == 5);
    for at in [2, whole + 8192, u64::MAX - 3] {
        assert!(s.transport().raise(&[(at, 1)]).is_err(), "{at}");
    }
    s.meet();
}

const MIB: u64 = 1 << 20;

/// Posts pieces of 1 MiB until nothing more is taken, at most so many.
fn fill(s: &mut Side, most: u64) {
    for token in 0..most {
        let at = token % 16 * MIB;
        let write = s.write(token, (at, at, MIB), 0);
        match s.post(&write) {
            Ok(Posted::Taken) => {}
            Ok(Posted::WouldBlock) => s.poll(),
            // The peer may be gone.
            Err(_) => return,
        }
    }
}

/// A rank that closes with writes under way ends them all, in time; nothing arrives after that.
fn sender_closes(s: &mut Side) {
    s.connect(|card| card);
    if s.me == 0 {
        s.memory.write(OUT, &vec![1; 16 * MIB as usize]);
        fill(s, 64);
        let begin = Instant::now();
        s.shutdown(Duration::from_millis(20));
        assert!(begin.elapsed() < patient(Duration::from_secs(4)), "{:?}", begin.elapsed());
        s.send(b"closed");
    } else {
        assert_eq!(s.recv(), b"closed");
        // What was on its way may still be read from the wire.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(300) {
            s.poll();
        }
        let at = s.incoming();
        let now = s.bytes(at, 16 * MIB);
        s.until("a while", |_| begin.elapsed() > Duration::from_millis(500));
        assert!(s.bytes(at, 16 * MIB) == now, "a closed end writes");
    }
}

/// A rank that closes while others write to it: its memory is its own again, and their writes end.
fn receiver_closes(s: &mut Side) {
    s.connect(|card| card);
    if s.me == 1 {
        s.until("a first write", |s| s.has(0));
        s.shutdown(Duration::from_millis(20));
        let at = s.incoming();
        s.memory.write(at, &vec![9; 16 * MIB as usize]);
        s.send(b"closed");
        assert_eq!(s.recv_idle(), b"ended");
        assert!(s.bytes(at, 16 * MIB).iter().all(|b| *b == 9), "a closed end is written");
    } else {
        s.memory.write(OUT, &vec![1; 16 * MIB as usize]);
        let begin = Instant::now();
        let mut token = 0;
        // Until it shows.
        while s.failed.is_empty() && begin.elapsed() < patient(ENDED) {
            let at = token % 16 * MIB;
            let write = s.write(token, (at, at, MIB), 0);
            match s.post(&write) {
                Ok(Posted::Taken) => token += 1,
                Ok(Posted::WouldBlock) => {}
                Err(_) => break,
            }
            s.poll();
        }
        assert!(begin.elapsed() < patient(ENDED), "a closed peer takes writes");
        s.drain(ENDED);
        assert_eq!(s.recv(), b"closed");
        s.send(b"ended");
    }
}
