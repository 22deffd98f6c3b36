//! Processes of several hosts find each other over TCP.
//!
//! Rank 0 listens; every other rank connects, and both show that they know the run's token before either believes the
//! other (`auth.rs`): neither sends the token, and a proof shown to one newcomer is useless to another. From then on
//! every frame has a length within bounds and a tag of the connection's own key. Gathers go through rank 0. A stranger,
//! a wrong token or a frame that is too long ends its own connection, and nothing else.
//!
//! What travels is not encrypted: it is addresses and keys of arenas, which are worth something to those alone who
//! reach the fabric.

mod auth;
mod link;

use super::Bootstrap;
use super::pack::{Pack, Unpack};
use super::rendezvous::os;
use super::wire::{self, Broken, Deadline, failed};
use crate::{Error, Result};
pub use auth::Token;
pub(super) use auth::nonce;
pub(super) use link::{End, HEAD, HELLO, Link, introduce, length, listen, reach, welcome};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

/// Most bytes of a frame: a rank's part of a gather, or all parts on their way back.
const MAX_FRAME: usize = 4 << 20;
/// Most bytes of a part, so that those of all ranks are a frame.
pub const MAX_PART: usize = 48 << 10;
/// Polling interval, and delay between attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
/// What ranks other than 0 wait longer, so that they hear from rank 0 who is missing.
const SLACK: Duration = Duration::from_secs(1);

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

impl Meeting {
    fn end(&self) -> End<'_> {
        End { rank: self.rank, ranks: self.world_size, token: &self.token }
    }
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
    /// [`Error::Rendezvous`] with the ranks that did not come; [`Error::Shape`] for a rank that does not exist;
    /// [`Error::System`].
    pub fn meet(meeting: &Meeting) -> Result<TcpBootstrap> {
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

    fn gather(&mut self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
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
            link.send(mine, deadline).map_err(|b| failed(&b, 0, call, deadline))?;
            let all =
                link.receive(MAX_FRAME, deadline).map_err(|b| failed(&b, 0, call, deadline))?;
            let mut fields = Unpack::new(&all);
            let parts: Option<Vec<_>> =
                (0..self.world_size).map(|_| fields.bytes().map(<[u8]>::to_vec)).collect();
            return parts.ok_or_else(|| {
                failed(&Broken::Bad("parts are missing".into()), 0, call, deadline)
            });
        }
        let mut all = Pack::default().bytes(mine);
        let mut parts = vec![mine.to_vec()];
        for (peer, link) in (1..).zip(&mut self.links) {
            let part =
                link.receive(MAX_FRAME, deadline).map_err(|b| failed(&b, peer, call, deadline))?;
            all = all.bytes(&part);
            parts.push(part);
        }
        let all = all.done();
        for (peer, link) in (1..).zip(&mut self.links) {
            link.send(&all, deadline).map_err(|b| failed(&b, peer, call, deadline))?;
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

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let slack = if self.rank == 0 { Duration::ZERO } else { SLACK };
        self.gather(mine, Deadline::within(self.limit + slack))
    }

    fn address(&self) -> Option<IpAddr> {
        let all = || self.links.iter().filter_map(|link| Some(link.stream.local_addr().ok()?.ip()));
        // A host may call itself by a name that only it knows.
        all().find(|address| !address.is_loopback()).or(all().next())
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
fn welcome_all(listener: &TcpListener, meeting: &Meeting) -> Result<Vec<Link>> {
    let deadline = Deadline::within(meeting.limit);
    listener.set_nonblocking(true).map_err(|e| os("bind", &e))?;
    let mut came: Vec<Option<Link>> = (1..meeting.world_size).map(|_| None).collect();
    while came.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, from)) => match welcome(stream, meeting.end()) {
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

/// Finds rank 0, and shows that this is a rank of its run.
fn join(meeting: &Meeting) -> Result<Link> {
    let deadline = Deadline::within(meeting.limit);
    let (mut why, mut answered) = (Broken::Late, false);
    loop {
        // Rank 0 may not listen yet, and another process may listen there. Rank 0 handles newcomers sequentially.
        let patient = Deadline::within(HELLO * meeting.world_size);
        let stream = reach(meeting.address, deadline);
        let answers = stream.is_ok();
        let met = stream.and_then(|stream| introduce(stream, meeting.end(), 0, patient));
        match met {
            Ok(link) => return Ok(link),
            Err(broken @ Broken::Interrupted) => {
                return Err(failed(&broken, 0, "meeting the other processes", deadline));
            }
            // What was wrong says more than that nobody is there yet, or any more.
            Err(broken) if answers && !(answered && matches!(why, Broken::Bad(_))) => {
                (why, answered) = (broken, true);
            }
            Err(broken) if !answered => why = broken,
            Err(_) => {}
        }
        if deadline.over() {
            let what = format!("rank 0 does not answer at {}: {why}", meeting.address);
            return Err(missing(meeting, vec![0], what));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests;
