//! Processes of several hosts find each other over TCP.
//!
//! Rank 0 listens; every other rank connects, and both show that they know the run's token before either believes the other (`auth.rs`):
//! neither sends the token, and what was shown to one newcomer is of no use to another. From then on every frame has a length within bounds and a tag of
//! the connection's own key. Gathers go through rank 0. A stranger, a wrong token or a frame that is too long ends its own connection, and nothing else.
//!
//! What travels is not encrypted: it is addresses and keys of arenas, which are worth something to those alone who reach the fabric.

mod auth;

use super::pack::{Pack, Unpack};
use super::rendezvous::os;
use super::wire::{self, Deadline};
use super::{Bootstrap, Error};
pub use auth::Token;
use auth::{Key, TAG, nonce};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Most bytes of a frame: a rank's part of a gather, or all parts on their way back.
const MAX_FRAME: usize = 4 << 20;
/// Most bytes of a part, so that those of all ranks are a frame.
pub const MAX_PART: usize = 48 << 10;
/// What one newcomer may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// Between two looks for who has come, and between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
/// What ranks other than 0 wait longer, so that they hear from rank 0 who is missing.
const SLACK: Duration = Duration::from_secs(1);
/// How a newcomer begins. Changes with what follows.
const MAGIC: &[u8; 8] = b"mk-tcp 1";
/// What a newcomer says first: magic, rank, ranks of the run, nonce.
const GREETING: usize = 8 + 4 + 4 + 32;

/// Where the ranks of a run meet.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Of rank 0: where it listens, and others find it.
    pub address: SocketAddr,
    /// The secret that the run's processes share.
    pub token: Token,
    /// This process.
    pub rank: u32,
    /// All of them.
    pub world_size: u32,
    /// Bound on the meeting, and on each later call.
    pub limit: Duration,
}

/// A [`Bootstrap`] over TCP.
#[derive(Debug)]
pub struct TcpBootstrap {
    rank: u32,
    world_size: u32,
    limit: Duration,
    /// Of rank 0: one for each other rank, from rank 1. Of others: the one to rank 0.
    links: Vec<Link>,
}

impl TcpBootstrap {
    /// Meets the other processes of a run.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with the ranks that did not come; [`Error::Shape`] for a rank that does not exist; [`Error::System`].
    pub fn meet(meeting: &Meeting) -> Result<TcpBootstrap, Error> {
        let Meeting { rank, world_size, limit, .. } = *meeting;
        if rank >= world_size || world_size > mk_abi::device::MAX_RANKS as u32 {
            return Err(Error::Shape {
                what: format!("rank {rank} of a world of {world_size} does not exist"),
            });
        }
        let mut this = TcpBootstrap { rank, world_size, limit, links: Vec::new() };
        match (world_size, rank) {
            (1, _) => {}
            (_, 0) => {
                let listener = TcpListener::bind(meeting.address).map_err(|e| Error::System {
                    call: "bind",
                    what: format!("{}: {e} (is another process rank 0?)", meeting.address),
                })?;
                this.links = welcome_all(&listener, meeting)?;
            }
            _ => this.links = vec![join(meeting)?],
        }
        // Rank 0 answers when all are here.
        this.gather(&[], Deadline::within(limit + SLACK)).map_err(|e| match e {
            Error::PeerGone { .. } => missing(meeting, Vec::new(), "rank 0 has given up".into()),
            other => other,
        })?;
        Ok(this)
    }

    fn gather(&mut self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let call = "a gather over TCP";
        if mine.len() > MAX_PART {
            let what = format!("a message of {} bytes is longer than {MAX_PART}", mine.len());
            return Err(Error::Shape { what });
        }
        if self.world_size == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        if self.rank != 0 {
            let link = &mut self.links[0];
            link.send(mine, deadline).map_err(|b| b.of(0, call, deadline))?;
            let all = link.receive(deadline).map_err(|b| b.of(0, call, deadline))?;
            let mut fields = Unpack::new(&all);
            let parts: Option<Vec<_>> =
                (0..self.world_size).map(|_| fields.bytes().map(<[u8]>::to_vec)).collect();
            return parts
                .ok_or_else(|| Broken::Bad("parts are missing".into()).of(0, call, deadline));
        }
        let mut all = Pack::default().bytes(mine);
        let mut parts = vec![mine.to_vec()];
        for (peer, link) in (1..).zip(&mut self.links) {
            let part = link.receive(deadline).map_err(|b| b.of(peer, call, deadline))?;
            all = all.bytes(&part);
            parts.push(part);
        }
        let all = all.done();
        for (peer, link) in (1..).zip(&mut self.links) {
            link.send(&all, deadline).map_err(|b| b.of(peer, call, deadline))?;
        }
        Ok(parts)
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let slack = if self.rank == 0 { Duration::ZERO } else { SLACK };
        self.gather(mine, Deadline::within(self.limit + slack))
    }

    fn lost(&mut self) -> Option<u32> {
        let first = u32::from(self.rank == 0);
        let mut links = (first..).zip(&self.links);
        links.find(|(_, link)| wire::is_closed(link.stream.as_fd())).map(|(rank, _)| rank)
    }
}

fn missing(meeting: &Meeting, missing: Vec<u32>, what: String) -> Error {
    Error::Rendezvous { rank: meeting.rank, missing, what, waited: meeting.limit }
}

/// Rank 0 waits for all others.
fn welcome_all(listener: &TcpListener, meeting: &Meeting) -> Result<Vec<Link>, Error> {
    let deadline = Deadline::within(meeting.limit);
    listener.set_nonblocking(true).map_err(|e| os("bind", &e))?;
    let mut came: Vec<Option<Link>> = (1..meeting.world_size).map(|_| None).collect();
    while came.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, from)) => match welcome(stream, meeting) {
                Ok((rank, link)) => {
                    let place = came.get_mut((rank as usize).wrapping_sub(1));
                    if let Some(place @ None) = place {
                        *place = Some(link);
                    } else {
                        tracing::warn!(%from, rank, "a second process says that it is this rank");
                    }
                }
                Err(why) => tracing::warn!(%from, ?why, "a stranger was turned away"),
            },
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
            }
            Err(e) => return Err(os("accept", &e)),
        }
        if deadline.over() {
            let absent = (1..).zip(&came).filter(|(_, l)| l.is_none()).map(|(r, _)| r).collect();
            return Err(missing(meeting, absent, "not all processes of this run came".into()));
        }
    }
    Ok(came.into_iter().flatten().collect())
}

/// Hears who a newcomer is, and shows that this is rank 0.
fn welcome(stream: TcpStream, meeting: &Meeting) -> Result<(u32, Link), Broken> {
    let deadline = Deadline::within(HELLO);
    let _ = stream.set_nodelay(true);
    stream.set_nonblocking(false).map_err(|e| Broken::io(&e))?;
    let mut greeting = [0; GREETING];
    fill(&stream, &mut greeting, deadline)?;
    let (rank, ranks) = (word(&greeting[8..]), word(&greeting[12..]));
    if greeting[..8] != *MAGIC || ranks != meeting.world_size || rank == 0 || rank >= ranks {
        return Err(Broken::Bad("it is no rank of this run".into()));
    }
    let mine = nonce().map_err(|e| Broken::io(&e))?;
    let session = meeting.token.session(&greeting, &mine);
    put(&stream, &mine, deadline)?;
    put(&stream, &session.shows(0), deadline)?;
    let mut shown = [0; TAG];
    fill(&stream, &mut shown, deadline)?;
    if !session.is_shown(rank, &shown) {
        return Err(Broken::Bad("it does not know the token".into()));
    }
    Ok((rank, Link { stream, key: session.key(), sent: 0, received: 0, first: 0, second: 1 }))
}

/// Finds rank 0, and shows that this is a rank of its run.
fn join(meeting: &Meeting) -> Result<Link, Error> {
    let deadline = Deadline::within(meeting.limit);
    loop {
        // Rank 0 may not listen yet; whoever else listens there is not it.
        let last = match TcpStream::connect_timeout(&meeting.address, deadline.left()) {
            Ok(stream) => match introduce(stream, meeting) {
                Ok(link) => return Ok(link),
                Err(broken) => broken,
            },
            Err(e) => Broken::io(&e),
        };
        if deadline.over() {
            let what = format!("rank 0 does not answer at {}: {last:?}", meeting.address);
            return Err(missing(meeting, vec![0], what));
        }
        std::thread::sleep(PAUSE);
    }
}

fn introduce(stream: TcpStream, meeting: &Meeting) -> Result<Link, Broken> {
    // Rank 0 hears one newcomer after the other.
    let deadline = Deadline::within(HELLO * meeting.world_size);
    let _ = stream.set_nodelay(true);
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(MAGIC);
    greeting[8..12].copy_from_slice(&meeting.rank.to_le_bytes());
    greeting[12..16].copy_from_slice(&meeting.world_size.to_le_bytes());
    greeting[16..].copy_from_slice(&nonce().map_err(|e| Broken::io(&e))?);
    put(&stream, &greeting, deadline)?;
    let (mut theirs, mut shown) = ([0; 32], [0; TAG]);
    fill(&stream, &mut theirs, deadline)?;
    fill(&stream, &mut shown, deadline)?;
    let session = meeting.token.session(&greeting, &theirs);
    if !session.is_shown(0, &shown) {
        return Err(Broken::Bad("who listens there does not know the token".into()));
    }
    put(&stream, &session.shows(meeting.rank), deadline)?;
    Ok(Link { stream, key: session.key(), sent: 0, received: 0, first: 1, second: 0 })
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b))
}

/// A connection whose both ends have shown that they know the token.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    key: Key,
    sent: u64,
    received: u64,
    /// Directions of what is sent and received, so that neither end takes its own frames for the other's.
    first: u8,
    second: u8,
}

impl Link {
    fn send(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend(self.key.tag(self.first, self.sent, bytes));
        frame.extend(bytes);
        self.sent += 1;
        put(&self.stream, &frame, deadline)
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Vec<u8>, Broken> {
        let mut head = [0; 4 + TAG];
        fill(&self.stream, &mut head, deadline)?;
        let length = length(&head)?;
        let mut bytes = vec![0; length];
        fill(&self.stream, &mut bytes, deadline)?;
        if !self.key.is_tag(self.second, self.received, &bytes, &head[4..]) {
            return Err(Broken::Bad("a frame that the other end did not send".into()));
        }
        self.received += 1;
        Ok(bytes)
    }
}

/// The length that a frame's head says.
fn length(head: &[u8]) -> Result<usize, Broken> {
    match word(head) as usize {
        n if n <= MAX_FRAME => Ok(n),
        n => Err(Broken::Bad(format!("a frame of {n} bytes is longer than {MAX_FRAME}"))),
    }
}

/// Why a message did not arrive.
#[derive(Debug)]
enum Broken {
    Gone,
    Late,
    Bad(String),
}

impl Broken {
    fn io(error: &std::io::Error) -> Broken {
        use ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            WouldBlock | TimedOut => Broken::Late,
            BrokenPipe | ConnectionReset | UnexpectedEof => Broken::Gone,
            _ => Broken::Bad(error.to_string()),
        }
    }

    fn of(self, peer: u32, call: &str, deadline: Deadline) -> Error {
        let during = call.to_string();
        match self {
            Broken::Gone => Error::PeerGone { rank: peer, during },
            Broken::Late => {
                Error::PeerSilent { ranks: vec![peer], during, waited: deadline.limit() }
            }
            Broken::Bad(what) => Error::PeerFailed { rank: peer, during, what },
        }
    }
}

fn put(mut stream: &TcpStream, mut bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.left())).map_err(|e| Broken::io(&e))?;
        match stream.write(bytes) {
            Ok(0) => return Err(Broken::Gone),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted && !deadline.over() => {}
            Err(e) => return Err(Broken::io(&e)),
        }
    }
    Ok(())
}

fn fill(mut stream: &TcpStream, out: &mut [u8], deadline: Deadline) -> Result<(), Broken> {
    let mut at = 0;
    while at < out.len() {
        // A peer that sends a byte now and then does not hold the others up.
        if deadline.over() {
            return Err(Broken::Late);
        }
        stream.set_read_timeout(Some(deadline.left())).map_err(|e| Broken::io(&e))?;
        match stream.read(&mut out[at..]) {
            Ok(0) => return Err(Broken::Gone),
            Ok(n) => at += n,
            Err(e) if e.kind() == ErrorKind::Interrupted && !deadline.over() => {}
            Err(e) => return Err(Broken::io(&e)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
