//! Processes of one host find each other through a Unix-domain socket in the abstract namespace.
//!
//! Rank 0 listens under a name made from the identity of the run, so that nothing is left behind in a file system, two
//! runs on a host do not meet, and the launcher's own port is left alone. Every other rank connects, says the run's
//! token and its rank, and is answered when all have come. Gathers then go through rank 0.

use super::Bootstrap;
use super::pack::{Pack, Unpack};
use super::wire::{self, Broken, Deadline};
use crate::env;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(5);
/// What one newcomer may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// What ranks other than 0 wait longer, so that they hear from rank 0 who is missing.
const SLACK: Duration = Duration::from_secs(1);

/// A [`Bootstrap`] between the processes of one host, without a server and without a port.
#[derive(Debug)]
pub struct UnixBootstrap {
    rank: u32,
    world_size: u32,
    limit: Duration,
    /// Rank 0: one stream per other rank, from rank 1. Others: the one to rank 0.
    streams: Vec<UnixStream>,
}

impl UnixBootstrap {
    /// Meets the other processes of a run, for at most `limit`, which also bounds each later call.
    ///
    /// `run` is the same in all of them and different from that of any other run on the host; processes of other users
    /// are turned away.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with the ranks that did not come; [`Error::Shape`] for a rank that does not exist;
    /// [`Error::System`].
    pub fn meet(run: &str, rank: u32, size: u32, limit: Duration) -> Result<UnixBootstrap> {
        if rank >= size || size > mk_abi::device::MAX_RANKS as u32 {
            return Err(Error::Shape {
                what: format!("rank {rank} of a world of {size} does not exist"),
            });
        }
        let mut this = UnixBootstrap { rank, world_size: size, limit, streams: Vec::new() };
        let token = token(run, size);
        match (size, rank) {
            (1, _) => {}
            (_, 0) => this.listen(&token)?,
            _ => this.join(&token)?,
        }
        Ok(this)
    }

    /// As [`UnixBootstrap::meet`], with what a launcher's variables say.
    ///
    /// # Errors
    /// [`Error::Environment`] with the variable that is missing or wrong; [`Error::SeveralHosts`] where it has started
    /// processes on several; as [`UnixBootstrap::meet`].
    pub fn from_env(limit: Duration) -> Result<UnixBootstrap> {
        let launcher = env::launcher()?;
        if launcher.local_world_size != launcher.world_size {
            let what = format!(
                "{} of {} ranks are on this host, and sockets of a file system reach no other",
                launcher.local_world_size, launcher.world_size
            );
            return Err(Error::SeveralHosts { what });
        }
        UnixBootstrap::meet(&launcher.run, launcher.rank, launcher.world_size, limit)
    }

    fn listen(&mut self, token: &[u8; 32]) -> Result<()> {
        let deadline = Deadline::within(self.limit);
        let listener = UnixListener::bind_addr(&address(token)?).map_err(|e| Error::System {
            call: "bind",
            what: format!("{e} (is another process rank 0 of the same run?)"),
        })?;
        listener.set_nonblocking(true).map_err(|e| os("bind", &e))?;
        let mut came: Vec<Option<UnixStream>> = (1..self.world_size).map(|_| None).collect();
        while came.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Some((rank, stream)) = welcome(stream, token)
                        && let Some(place) = came.get_mut((rank as usize).wrapping_sub(1))
                    {
                        if place.as_ref().is_some_and(alive) {
                            let what = format!("two processes say that they are rank {rank}");
                            return Err(self.refuse(came, vec![], what, deadline));
                        }
                        *place = Some(stream);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(os("accept", &e)),
            }
            if deadline.over() {
                let missing: Vec<u32> =
                    (1..).zip(&came).filter(|(_, s)| s.is_none()).map(|(r, _)| r).collect();
                if !missing.is_empty() {
                    let what = "not all processes of this run came".to_string();
                    return Err(self.refuse(came, missing, what, deadline));
                }
            }
        }
        // Nobody may find the old listener once the first rank has its answer: it could be for the next world.
        drop(listener);
        self.streams = came.into_iter().flatten().collect();
        self.tell(&verdict(&Ok(Vec::new())), deadline)
    }

    /// Tells the processes that came why there will be no world.
    fn refuse(
        &self,
        came: Vec<Option<UnixStream>>,
        missing: Vec<u32>,
        what: String,
        deadline: Deadline,
    ) -> Error {
        let answer = verdict(&Err((missing.clone(), what.clone())));
        for stream in came.into_iter().flatten() {
            // A process that gave up needs no answer.
            let _ = wire::send(&stream, &answer, Deadline::within(HELLO));
        }
        Error::Rendezvous { rank: self.rank, missing, what, waited: deadline.waited() }
    }

    /// Answers all. If one is gone, those without an answer yet are told so.
    fn tell(&mut self, answer: &[u8], deadline: Deadline) -> Result<()> {
        let mut failed = None;
        for (rank, stream) in (1..).zip(&self.streams) {
            match &failed {
                None => {
                    let sent = wire::send(stream, answer, deadline);
                    failed = sent.err().map(|b| self.broken(vec![rank], &b, deadline));
                }
                Some(error) => {
                    let refusal = verdict(&Err((vec![], error.to_string())));
                    let _ = wire::send(stream, &refusal, Deadline::within(HELLO));
                }
            }
        }
        failed.map_or(Ok(()), |error| {
            self.streams.clear();
            Err(error)
        })
    }

    fn join(&mut self, token: &[u8; 32]) -> Result<()> {
        let deadline = Deadline::within(self.limit);
        let hello = Pack::default().bytes(token).u64(self.rank.into()).done();
        let name = address(token)?;
        loop {
            let met = UnixStream::connect_addr(&name).map_err(|_| Broken::Gone).and_then(|s| {
                if !wire::same_user(&s) {
                    return Err(Broken::Bad("rank 0's place is taken by another user".into()));
                }
                wire::send(&s, &hello, deadline)?;
                let answer =
                    wire::receive(&s, Deadline::within(deadline.left().saturating_add(SLACK)))?;
                Ok((s, answer))
            });
            match met {
                Ok((stream, answer)) => {
                    self.heard(&answer, deadline)?;
                    self.streams = vec![stream];
                    return Ok(());
                }
                // Not there yet, or it went away before it answered: it may come back.
                Err(Broken::Gone) if !deadline.over() => std::thread::sleep(PAUSE),
                Err(broken) => return Err(self.broken(vec![0], &broken, deadline)),
            }
        }
    }

    /// What rank 0 answered.
    fn heard<'a>(&self, answer: &'a [u8], deadline: Deadline) -> Result<Unpack<'a>> {
        let mut fields = Unpack::new(answer);
        if fields.u64() == Some(0) {
            return Ok(fields);
        }
        let what = fields.text().unwrap_or_else(|| "rank 0 sent what makes no sense".into());
        let missing = std::iter::from_fn(|| fields.u64()).map(|r| r as u32).collect();
        Err(Error::Rendezvous { rank: self.rank, missing, what, waited: deadline.waited() })
    }

    fn broken(&self, missing: Vec<u32>, broken: &Broken, deadline: Deadline) -> Error {
        let what = match broken {
            Broken::Gone => "a process went away or was never there".to_string(),
            Broken::Interrupted => "interrupted".to_string(),
            Broken::Late => "a process did not answer in time".to_string(),
            Broken::Bad(what) => what.clone(),
            Broken::NoRoom => wire::NO_ROOM.to_string(),
        };
        Error::Rendezvous { rank: self.rank, missing, what, waited: deadline.waited() }
    }

    fn gather_at_zero(&mut self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![mine.to_vec()];
        let (mut missing, mut reason) = (Vec::new(), Broken::Late);
        for (rank, stream) in (1..).zip(&self.streams) {
            match wire::receive(stream, deadline) {
                Ok(bytes) => all.push(bytes),
                Err(broken) => {
                    missing.push(rank);
                    reason = broken;
                }
            }
        }
        if !missing.is_empty() {
            let error = self.broken(missing.clone(), &reason, deadline);
            let answer = verdict(&Err((missing, error.to_string())));
            for stream in self.streams.drain(..) {
                let _ = wire::send(&stream, &answer, Deadline::within(HELLO));
            }
            return Err(error);
        }
        let answer = verdict(&Ok(all.clone()));
        self.tell(&answer, deadline)?;
        Ok(all)
    }
}

impl Bootstrap for UnixBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let deadline = Deadline::within(self.limit);
        if self.streams.is_empty() && self.world_size > 1 {
            return Err(self.broken(vec![], &Broken::Gone, deadline));
        }
        if self.rank == 0 {
            return self.gather_at_zero(mine, deadline);
        }
        let patient = Deadline::within(self.limit.saturating_add(SLACK));
        let answer = wire::send(&self.streams[0], mine, deadline)
            .and_then(|()| wire::receive(&self.streams[0], patient))
            .map_err(|b| self.broken(vec![0], &b, deadline))?;
        let mut fields = self.heard(&answer, deadline)?;
        let all: Option<Vec<Vec<u8>>> =
            (0..self.world_size).map(|_| fields.bytes().map(<[u8]>::to_vec)).collect();
        let nonsense = Broken::Bad("rank 0 sent what makes no sense".into());
        all.ok_or_else(|| self.broken(vec![0], &nonsense, deadline))
    }

    fn lost(&mut self) -> Option<u32> {
        let first = u32::from(self.rank == 0);
        let mut streams = (first..).zip(&self.streams);
        streams.find(|(_, stream)| wire::is_closed(stream.as_fd())).map(|(rank, _)| rank)
    }
}

/// 0 and what was gathered, or 1, a reason and the missing ranks.
fn verdict(outcome: &Result<Vec<Vec<u8>>, (Vec<u32>, String)>) -> Vec<u8> {
    match outcome {
        Ok(all) => all.iter().fold(Pack::default().u64(0), |p, b| p.bytes(b)).done(),
        Err((missing, what)) => {
            let text = Pack::default().u64(1).text(what);
            missing.iter().fold(text, |p, r| p.u64(u64::from(*r))).done()
        }
    }
}

/// Reads a newcomer's hello. Strangers are turned away without a word.
fn welcome(stream: UnixStream, token: &[u8; 32]) -> Option<(u64, UnixStream)> {
    stream.set_nonblocking(false).ok()?;
    if !wire::same_user(&stream) {
        return None;
    }
    let hello = wire::receive(&stream, Deadline::within(HELLO)).ok()?;
    let mut fields = Unpack::new(&hello);
    (fields.bytes()? == token).then_some(())?;
    Some((fields.u64()?, stream))
}

/// Whether the process at the other end is still there: it has nothing to say before it is answered.
fn alive(stream: &UnixStream) -> bool {
    wire::receive(stream, Deadline::within(Duration::ZERO)) == Err(Broken::Late)
}

/// What processes of a run know.
fn token(run: &str, world_size: u32) -> [u8; 32] {
    Sha256::new()
        .chain_update(b"mk rendezvous 1/")
        .chain_update(world_size.to_le_bytes())
        .chain_update(run.as_bytes())
        .finalize()
        .into()
}

fn address(token: &[u8; 32]) -> Result<SocketAddr> {
    let name: String = token[..16].iter().map(|b| format!("{b:02x}")).collect();
    SocketAddr::from_abstract_name(format!("mk-{name}")).map_err(|e| os("bind", &e))
}

pub(super) fn os(call: &'static str, error: &std::io::Error) -> Error {
    Error::System { call, what: error.to_string() }
}

#[cfg(test)]
mod tests;
