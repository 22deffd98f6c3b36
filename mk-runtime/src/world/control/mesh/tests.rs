use super::super::group::{Abroad, Group, LocalListener, PeerAddress};
use super::super::order::Orders;
use super::super::tcp::Token;
use super::super::watch::{GRACE, Member};
use super::super::wire::MAX_FRAME;
use super::super::{Bootstrap, Deadline, UnixBootstrap};
use super::*;
use crate::Error;
use crate::world::Topology;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// On a machine that is busy with other tests a thread may not come to its turn for a while.
const FAST: Keeping = Keeping { ping: Duration::from_millis(100), silence: Duration::from_secs(2) };

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

fn token() -> Token {
    Token::new(b"the secret of this run").unwrap()
}

/// A network that passes on what comes, stands still, or breaks.
#[derive(Clone, Default)]
struct Relay(Arc<AtomicU8>);

const STILL: u8 = 1;
const BROKEN: u8 = 2;

impl Relay {
    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }

    /// An address that leads to `to`.
    fn before(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = self.0.clone();
        thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(to).unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            loop {
                match state.load(Ordering::Acquire) {
                    0 => {}
                    // What stands still closes nothing.
                    STILL => {
                        thread::sleep(Duration::from_secs(20));
                        return;
                    }
                    _ => return,
                }
                let mut piece = [0; 4096];
                let mut any = false;
                for (mut from, mut to) in [(&near, &far), (&far, &near)] {
                    match from.read(&mut piece) {
                        Ok(0) => return,
                        // Sent behind a change of state that was not seen above: it does not arrive.
                        Ok(_) if state.load(Ordering::Acquire) != 0 => any = true,
                        Ok(n) => {
                            to.write_all(&piece[..n]).unwrap();
                            any = true;
                        }
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                }
                if !any {
                    thread::sleep(Duration::from_micros(200));
                }
            }
        });
        address
    }
}

/// A group for each rank of several hosts, each on a thread, as processes would be. The way to rank 0 goes through the
/// relay, if there is one.
fn hosts<T: Send>(
    run: &str,
    topology: Topology,
    keeping: Keeping,
    relay: Option<&Relay>,
    work: impl Fn(Group, u32) -> T + Sync,
) -> Vec<T> {
    let run = format!("mesh/{run}/{}", std::process::id());
    let size = topology.ranks();
    thread::scope(|scope| {
        let start = |rank| {
            let (run, work) = (&run, &work);
            scope.spawn(move || {
                let mut b = UnixBootstrap::meet(run, rank, size, Duration::from_secs(10)).unwrap();
                let (listener, gate) =
                    (LocalListener::open().unwrap(), MeshListener::open(HERE).unwrap());
                let at = match relay.filter(|_| rank == 0) {
                    Some(relay) => relay.before(gate.address()),
                    None => gate.address(),
                };
                let said = b.all_gather(format!("{} {at}", listener.name()).as_bytes()).unwrap();
                let addresses = (0..).zip(said).map(|(peer, said)| {
                    let said = String::from_utf8(said).unwrap();
                    let (listener, address) = said.split_once(' ').unwrap();
                    match topology.reaches(rank, peer) {
                        true => PeerAddress::Near(listener.into()),
                        false => PeerAddress::Far(address.parse().unwrap()),
                    }
                });
                let addresses: Vec<_> = addresses.collect();
                let abroad = Some(Abroad { gate, token: token(), keeping });
                let orders = Orders::new().unwrap();
                let group = Group::connect(rank, &topology, &addresses, &listener, abroad, orders);
                work(group.unwrap(), rank)
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn two_by(local: u32) -> Topology {
    Topology::nodes_of(2 * local, local).unwrap()
}

/// What an instance was told: by which rank, and why.
#[derive(Default)]
struct Raised(AtomicU32, Mutex<String>);

impl Raised {
    fn joined(group: &Group, instance: u32) -> Arc<Raised> {
        let raised = Arc::<Raised>::default();
        group.join(instance, Arc::downgrade(&raised) as Weak<dyn Member>);
        raised
    }

    /// By whom, if so within the time.
    fn within(&self, limit: Duration) -> Option<u32> {
        let begin = Instant::now();
        while self.0.load(Ordering::Acquire) == 0 && begin.elapsed() < limit {
            thread::sleep(Duration::from_millis(2));
        }
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Member for Raised {
    fn raise(&self, by: u32) {
        self.0.store(by + 1, Ordering::Release);
    }

    fn told(&self, by: u32, why: &str) {
        *self.1.lock().unwrap() = why.into();
        self.raise(by);
    }

    fn text(&self, rank: u32) -> String {
        format!("what rank {rank} launches")
    }
}

#[test]
fn calls_reach_all_hosts() {
    hosts("calls", two_by(2), FAST, None, |group, rank| {
        for round in 0..50u8 {
            let mine = vec![round; 1000 * rank as usize + 1];
            let all = group.all_gather("round", &mine, soon()).unwrap();
            for (peer, part) in all.iter().enumerate() {
                assert_eq!(*part, vec![round; 1000 * peer + 1]);
            }
        }
        // The longest part, from everybody at once.
        let call = "long";
        let longest = vec![rank as u8; MAX_FRAME - 8 - 8 - call.len() - 8];
        let all = group.all_gather(call, &longest, soon()).unwrap();
        assert!((0..).zip(&all).all(|(r, part)| *part == vec![r; longest.len()]));
        let mine = match rank {
            3 => Err(Error::Shape { what: "no room".into() }),
            _ => Ok(()),
        };
        let error = group.agree("bind", mine, soon()).unwrap_err().to_string();
        assert!(error.ends_with("no room"), "{error}");
        // Silence of those who have nothing to say is none.
        thread::sleep(FAST.silence + FAST.silence / 4);
        group.all_gather("end", &[], soon()).unwrap();
        assert_eq!(group.dead(), None);
    });
}

/// Launches of a process that leaves, across hosts as on one.
#[test]
fn leaving_is_not_dying() {
    for (theirs, mine) in [(2, 2), (1, 2)] {
        hosts(&format!("leaves/{theirs}"), two_by(1), FAST, None, |group, rank| {
            let launches = if rank == 1 { theirs } else { mine };
            (0..launches).for_each(|_| group.launching(Some(1)).unwrap());
            group.all_gather("launched", &[], soon()).unwrap();
            if rank == 1 {
                return;
            }
            let raised = Raised::joined(&group, 1);
            let missed = theirs < mine;
            assert_eq!(raised.within(GRACE + GRACE / 2), missed.then_some(1));
            assert_eq!(group.dead(), missed.then_some(1));
            let error = group.launching(Some(1)).unwrap_err();
            assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
            let error = group.all_gather("bind", &[], soon()).unwrap_err();
            assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
        });
    }
}

/// A connection that breaks, and one on which nothing comes any more: of a process that has died, of a host without
/// power.
#[test]
fn a_host_that_is_gone_is_missed() {
    for (state, most) in [(BROKEN, Duration::ZERO), (STILL, FAST.silence)] {
        let (relay, both) = (Relay::default(), Barrier::new(2));
        hosts(&format!("gone/{state}"), two_by(1), FAST, Some(&relay), |group, rank| {
            let raised = Raised::joined(&group, 1);
            group.all_gather("here", &[], soon()).unwrap();
            both.wait();
            relay.set(state);
            let begin = Instant::now();
            let error = group.all_gather("a call", &[], soon()).unwrap_err();
            assert!(matches!(error, Error::PeerGone { .. }), "{error}");
            assert!(begin.elapsed() < most + GRACE, "{:?}", begin.elapsed());
            assert_eq!(raised.within(3 * GRACE), Some(1 - rank));
            assert!(begin.elapsed() < most + 2 * GRACE, "{:?}", begin.elapsed());
            assert_eq!(group.dead(), Some(1 - rank));
        });
    }
}

/// Each finds that the other launches something else, whoever comes first; on a host the others learn it from each
/// other.
#[test]
fn launches_are_compared_across_hosts() {
    hosts("launches", two_by(2), FAST, None, |group, rank| {
        let node = rank / 2;
        let round = || group.all_gather("round", &[], soon()).unwrap();
        let members = [1, 2].map(|instance| Raised::joined(&group, instance));
        (0..300).for_each(|_| group.launching(Some(3)).unwrap());
        round();
        // Those of the first host come first.
        if node == 0 {
            group.launching(Some(1)).unwrap();
        }
        round();
        thread::sleep(Duration::from_millis(100));
        if node == 1 {
            let error = group.launching(Some(2)).unwrap_err();
            let Error::OutOfStep { launch: 301, peer, ours, theirs, .. } = &error else {
                panic!("{error}")
            };
            assert!(*peer == rank - 2 && ours.contains("launches") && theirs.contains("launches"));
        }
        if node == 0 {
            let by = members[0].within(Duration::from_secs(5));
            assert_eq!(by, Some(rank + 2));
            let other = group.other_launch(1, rank, rank + 2);
            assert_eq!(other, Some(format!("what rank {} launches", rank + 2)));
        }
        round();
        // Who was refused has launched nothing, so that nobody is told to give it up.
        assert_eq!(members[1].within(Duration::ZERO), None);
        // What comes next is in step again, and behind a capture nothing is compared.
        group.launching(Some(1)).unwrap();
        round();
        if rank == 3 {
            group.lose_count();
        }
        round();
        thread::sleep(Duration::from_millis(100));
        if rank % 2 == 1 {
            group.launching(Some(rank)).unwrap();
        }
        round();
    });
}

/// However close together they come, and if a host leaves at once: at least one of two hosts gives up, and none both
/// refuses a launch and is told to give it up.
#[test]
fn not_both_hosts_miss_it() {
    const ROUNDS: u32 = 3;
    (0..10).for_each(|world| both_hosts_miss_none(&format!("close/{world}"), ROUNDS));
}

fn both_hosts_miss_none(run: &str, rounds: u32) {
    let seen = hosts(run, two_by(1), FAST, None, |group, rank| {
        let launch = |i| {
            let instance = 2 * i + rank;
            let raised = Raised::joined(&group, instance);
            group.all_gather("round", &[], soon()).unwrap();
            let refused = group.launching(Some(instance)).is_err();
            group.all_gather("made", &[], soon()).unwrap();
            // Who was let through is told sooner or later, however loaded the machine is.
            let limit = if refused { Duration::from_millis(30) } else { Duration::from_secs(10) };
            let told = raised.within(limit).is_some();
            assert!(!(refused && told));
            refused || told
        };
        (0..rounds).map(launch).collect::<Vec<_>>()
    });
    assert!(seen[0].iter().zip(&seen[1]).all(|(a, b)| *a && *b), "{seen:?}");
}

/// A kernel that gives up on one host ends those of the others at once, also where the instance is bound a little
/// later.
#[test]
fn giving_up_crosses_hosts() {
    hosts("gives-up", two_by(2), FAST, None, |group, rank| {
        let first = Raised::joined(&group, 1);
        group.all_gather("bound", &[], soon()).unwrap();
        let begin = Instant::now();
        if rank == 3 {
            group.give_up(1, 3, "e7: nothing came");
            group.give_up(2, 3, "e8");
        }
        if rank < 2 {
            assert_eq!(first.within(Duration::from_secs(2)), Some(3));
            assert!(begin.elapsed() < Duration::from_secs(1));
            assert_eq!(*first.1.lock().unwrap(), "e7: nothing came");
        }
        group.all_gather("told", &[], soon()).unwrap();
        if rank < 2 {
            let second = Raised::joined(&group, 2);
            assert_eq!(second.within(Duration::ZERO), Some(3));
        }
        group.all_gather("end", &[], soon()).unwrap();
    });
}

/// Strangers come while the world is made, and nobody does afterwards.
#[test]
fn strangers_leave_the_world_unharmed() {
    let gates = Mutex::new(Vec::new());
    let strangers = Mutex::new(Vec::new());
    let topology = two_by(1);
    let run = format!("mesh/strangers/{}", std::process::id());
    thread::scope(|scope| {
        for rank in 0..2 {
            let (run, gates, strangers) = (&run, &gates, &strangers);
            scope.spawn(move || {
                let mut b = UnixBootstrap::meet(run, rank, 2, Duration::from_secs(20)).unwrap();
                let (listener, gate) =
                    (LocalListener::open().unwrap(), MeshListener::open(HERE).unwrap());
                let at = gate.address();
                if rank == 0 {
                    gates.lock().unwrap().push(at);
                    let connect = || TcpStream::connect(at).unwrap();
                    // One goes, one is half-open, one sends a lot, and one greets without the secret.
                    drop(connect());
                    let half = connect();
                    let mut noisy = connect();
                    noisy.write_all(&[0xff; 8192]).unwrap();
                    let wrong = Token::new(b"the secret of another run").unwrap();
                    let me = super::super::tcp::End { rank: 1, ranks: 2, token: &wrong };
                    let stream = connect();
                    let other = Token::new(b"the secret of another run").unwrap();
                    assert_eq!(format!("{other:?}"), "Token(…)");
                    let (near, far) = (half, noisy);
                    strangers.lock().unwrap().extend([near, far]);
                    let said = thread::scope(|inner| {
                        let going = inner.spawn(|| {
                            super::super::tcp::introduce(stream, me, 0, soon()).map(|_| ())
                        });
                        let group = finish(&mut b, rank, &topology, &listener, gate);
                        (going.join().unwrap(), group)
                    });
                    assert!(format!("{:?}", said.0).contains("does not know the token"));
                    check(&said.1);
                } else {
                    // Behind them.
                    while gates.lock().unwrap().is_empty() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    check(&finish(&mut b, rank, &topology, &listener, gate));
                }
            });
        }
    });
    let at = gates.lock().unwrap()[0];
    assert!(TcpStream::connect(at).is_err(), "the gate is still open");
}

fn finish(
    b: &mut UnixBootstrap,
    rank: u32,
    topology: &Topology,
    listener: &LocalListener,
    gate: MeshListener,
) -> Group {
    let said = b.all_gather(gate.address().to_string().as_bytes()).unwrap();
    let addresses = (0..).zip(said).map(|(peer, said)| match peer == rank {
        true => PeerAddress::Near(String::new()),
        false => PeerAddress::Far(String::from_utf8(said).unwrap().parse().unwrap()),
    });
    let addresses: Vec<_> = addresses.collect();
    let abroad = Some(Abroad { gate, token: token(), keeping: Keeping::default() });
    let orders = Orders::new().unwrap();
    Group::connect(rank, topology, &addresses, listener, abroad, orders).unwrap()
}

fn check(group: &Group) {
    let all = group.all_gather("check", &[7], soon()).unwrap();
    assert_eq!(all, [[7], [7]]);
}

/// Bytes that the peer did not send, however they come, end the connection.
#[test]
fn frames_are_cut_as_they_were_put_together() {
    let mut bytes = Vec::new();
    let contents = [&b"one"[..], b"", &[9; 5000]];
    for content in contents {
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend([7; 32]);
        bytes.extend(content);
    }
    for step in [1, 7, 36, 4096, bytes.len()] {
        let mut frames = Frames::new(5000);
        let mut seen = Vec::new();
        for piece in bytes.chunks(step) {
            frames.take(piece);
            while let Some(Frame { head, content }) = frames.frame().unwrap() {
                assert_eq!(head[4..], [7; 32]);
                seen.push(content.to_vec());
            }
        }
        assert_eq!(seen, contents);
    }
    let mut frames = Frames::new(4999);
    frames.take(&bytes[36 + 3 + 36..]);
    let long = frames.frame().unwrap_err();
    assert!(long.contains("5000 bytes is longer than 4999"), "{long}");
}

#[test]
fn messages_are_read_as_they_were_written() {
    let all = [
        Message::Alive,
        Message::Call(vec![1, 2, 3]),
        Message::Call(Vec::new()),
        Message::Launched { first: 9, instances: vec![1, 2, u32::MAX] },
        Message::Uncounted(u64::MAX),
        Message::GiveUp { instance: 7, by: 3, why: "weil ä".into() },
        Message::Leaves(0),
    ];
    for message in &all {
        let bytes = message.to_bytes();
        assert_eq!(Message::read(&bytes).as_ref(), Some(message));
        let longer = [&bytes[..], &[0]].concat();
        let also = Message::read(&longer);
        assert!(also.is_none_or(|m| m.to_bytes() == longer), "{message:?}");
        for cut in 0..bytes.len() {
            let part = Message::read(&bytes[..cut]);
            assert!(part.is_none_or(|m| m.to_bytes() == bytes[..cut]), "{message:?}");
        }
    }
    assert_eq!(Message::read(&[]), None);
    assert_eq!(Message::read(&[6]), None);
    assert_eq!(Message::read(&vec![1; MAX_FRAME + 2]), None);
    let long = Message::GiveUp { instance: 1, by: 2, why: "ä".repeat(5000) };
    let cut = Message::read(&long.to_bytes()).unwrap();
    assert!(matches!(cut, Message::GiveUp { why, .. } if why.len() <= 2048 && why.len() > 2000));
}
