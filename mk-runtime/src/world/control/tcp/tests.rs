use super::auth::TAG;
use super::link::{GREETING, MAGIC};
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

const SECRET: &[u8] = b"the secret of this run";

/// A port that was free a moment ago.
fn meetings(ranks: u32, limit: Duration) -> Vec<Meeting> {
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let token = Token::new(SECRET).unwrap();
    let of = |rank| Meeting { address, token: token.clone(), rank, world_size: ranks, limit };
    (0..ranks).map(of).collect()
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn ranks_meet_and_gather() {
    let ranks = meetings(4, LONG).into_iter().map(|meeting| {
        thread::spawn(move || {
            // Rank 0 comes last.
            if meeting.rank == 0 {
                thread::sleep(Duration::from_millis(50));
            }
            let mut all = TcpBootstrap::meet(&meeting).unwrap();
            for round in 0..5u8 {
                let mine = vec![round ^ meeting.rank as u8; 1000 * meeting.rank as usize];
                let parts = all.all_gather(&mine).unwrap();
                for (rank, part) in parts.iter().enumerate() {
                    assert_eq!(*part, vec![round ^ rank as u8; 1000 * rank]);
                }
                all.barrier().unwrap();
            }
            let long = vec![0; MAX_PART + 1];
            assert!(matches!(all.all_gather(&long), Err(Error::Shape { .. })));
        })
    });
    ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
}

/// Strangers of all kinds come before the run's own ranks, and those meet all the same.
#[test]
fn strangers_are_turned_away() {
    let meetings = meetings(2, LONG);
    let address = meetings[0].address;
    let first = meetings[0].clone();
    let rank_0 = thread::spawn(move || {
        TcpBootstrap::meet(&first).map(|mut all| all.all_gather(b"0").unwrap())
    });
    let reach = || loop {
        if let Ok(stream) = TcpStream::connect(address) {
            break stream;
        }
        thread::sleep(PAUSE);
    };
    // One says nothing and goes, one talks of other things, one greets and shows nothing it could know.
    drop(reach());
    reach().write_all(&[0xff; 4096]).unwrap();
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(MAGIC);
    greeting[8] = 1;
    greeting[12] = 2;
    let mut stream = reach();
    stream.write_all(&greeting).unwrap();
    let mut answer = [0; 32 + TAG];
    stream.read_exact(&mut answer).unwrap();
    // What rank 0 has shown is of no use to a newcomer.
    stream.write_all(&answer[32..]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "rank 0 goes on with a stranger");
    // One of the run, with a wrong token: it does not believe rank 0 either.
    let wrong = Token::new(b"the secret of another run").unwrap();
    let other = Meeting { token: wrong, limit: Duration::from_millis(200), ..meetings[1].clone() };
    let error = TcpBootstrap::meet(&other).unwrap_err().to_string();
    assert!(error.contains("does not know the token"), "{error}");
    let mut all = TcpBootstrap::meet(&meetings[1]).unwrap();
    assert_eq!(all.all_gather(b"1").unwrap(), [b"0", b"1"]);
    assert_eq!(rank_0.join().unwrap().unwrap(), [b"0", b"1"]);
}

#[test]
fn the_missing_are_named_within_the_limit() {
    let limit = Duration::from_millis(300);
    let meetings = meetings(3, limit);
    let begin = Instant::now();
    let first = meetings[0].clone();
    let rank_0 = thread::spawn(move || TcpBootstrap::meet(&first).unwrap_err());
    let rank_1 = TcpBootstrap::meet(&meetings[1]).unwrap_err();
    let Error::Rendezvous { missing, .. } = rank_0.join().unwrap() else { panic!("another error") };
    assert_eq!(missing, [2]);
    assert!(matches!(rank_1, Error::Rendezvous { .. }), "{rank_1}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    let nobody = TcpBootstrap::meet(&meetings[2]).unwrap_err().to_string();
    assert!(nobody.contains("rank 0 does not answer"), "{nobody}");
}

/// A pair of ends that have met.
fn pair() -> [TcpBootstrap; 2] {
    let meetings = meetings(2, Duration::from_secs(2));
    let first = meetings[0].clone();
    let rank_0 = thread::spawn(move || TcpBootstrap::meet(&first).unwrap());
    let second = TcpBootstrap::meet(&meetings[1]).unwrap();
    [rank_0.join().unwrap(), second]
}

#[test]
fn frames_are_checked() {
    let begin = Instant::now();
    for (what, change) in [
        (
            "longer",
            (|f: &mut Vec<u8>| f[..4].copy_from_slice(&u32::MAX.to_le_bytes())) as fn(&mut Vec<u8>),
        ),
        ("did not send", |f| f[40] ^= 1),
        ("did not send", |f| f[10] ^= 1),
        ("gone", |f| f.truncate(20)),
    ] {
        let [mut a, b] = pair();
        let link = &b.links[0];
        let mut frame = 8u32.to_le_bytes().to_vec();
        frame.extend(link.key.tag(link.first, link.sent, b"a gather"));
        frame.extend(b"a gather");
        change(&mut frame);
        (&link.stream).write_all(&frame).unwrap();
        drop(b);
        let error = a.all_gather(b"").unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    // The same frame twice, and one's own.
    let [mut a, b] = pair();
    let link = &b.links[0];
    let mut frame = 0u32.to_le_bytes().to_vec();
    frame.extend(link.key.tag(link.first, link.sent, b""));
    (&link.stream).write_all(&[frame.clone(), frame].concat()).unwrap();
    a.all_gather(b"").unwrap();
    assert!(a.all_gather(b"").unwrap_err().to_string().contains("did not send"));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

/// A peer that dies is an error at once, one that is silent within the limit.
#[test]
fn deaths_and_silence_end() {
    let [mut a, mut b] = pair();
    assert_eq!((a.lost(), b.lost()), (None, None));
    drop(b);
    assert_eq!(a.lost(), Some(1));
    let begin = Instant::now();
    assert!(matches!(a.all_gather(b""), Err(Error::PeerGone { rank: 1, .. })));
    let [mut a, _b] = pair();
    let silent = a.all_gather(b"").unwrap_err();
    assert!(matches!(&silent, Error::PeerSilent { ranks, .. } if ranks[..] == [1]), "{silent}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}
