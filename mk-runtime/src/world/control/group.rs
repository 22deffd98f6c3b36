//! Control connections between the processes of a world: a Unix-domain socket between any two of one host, a TCP
//! connection (`mesh/`) between any two of different hosts.
//!
//! They carry small all-gathers and, within a host, file descriptors; a closed connection means that the process is
//! gone. All processes make collective calls in the same order. Each message carries the call's name, so a rank that
//! makes another call gets an error.

use super::mesh::{self, Bell, Far, Keeping, MeshListener, Stream};
use super::order::{self, Orders};
use super::pack::{Pack, Unpack};
use super::page::Page;
use super::rendezvous::os;
use super::tcp::{End, Token};
use super::watch::{Astray, Member, Others, Watch};
use super::wire::{self, Broken, Deadline, failed};
use crate::world::topology::Topology;
use crate::{Error, Result};
use std::fmt::Display;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Time limit for connecting all processes, after the bootstrap.
const MESH: Duration = Duration::from_secs(30);

/// A listening socket with a random abstract name. Any user can read such names (`/proc/net/unix`), so a peer must run
/// as the same user, and send the name.
pub(in crate::world) struct LocalListener {
    listener: UnixListener,
    name: String,
}

impl LocalListener {
    pub(in crate::world) fn open() -> Result<LocalListener> {
        let mut secret = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut secret))
            .map_err(|e| os("read of /dev/urandom", &e))?;
        let secret: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        let name = format!("mk-{}-{secret}", std::process::id());
        let listener = unix::SocketAddr::from_abstract_name(&name)
            .and_then(|a| UnixListener::bind_addr(&a))
            .map_err(|e| os("bind", &e))?;
        listener.set_nonblocking(true).map_err(|e| os("bind", &e))?;
        Ok(LocalListener { listener, name })
    }

    /// The name to which peers connect.
    pub(in crate::world) fn name(&self) -> &str {
        &self.name
    }

    /// Accepts one peer and returns the rank it claims, which the caller checks; `None` after the deadline.
    fn admit(&self, deadline: Deadline) -> Result<Option<(u64, UnixStream)>> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let hello = stream
                        .set_nonblocking(false)
                        .ok()
                        .filter(|()| wire::same_user(&stream))
                        .and_then(|()| wire::receive(&stream, deadline).ok());
                    let mut fields = Unpack::new(hello.as_deref().unwrap_or_default());
                    if fields.text().as_ref() == Some(&self.name)
                        && let Some(rank) = fields.u64()
                    {
                        return Ok(Some((rank, stream)));
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(os("accept", &e)),
            }
            if deadline.over() {
                return Ok(None);
            }
        }
    }
}

/// Address of a process.
#[derive(Clone, Debug)]
pub(in crate::world) enum PeerAddress {
    /// On this host, under the name of its listener.
    Near(String),
    /// On another host.
    Far(SocketAddr),
}

/// What connections to other hosts need.
#[derive(Debug)]
pub(in crate::world) struct Abroad {
    pub(in crate::world) gate: MeshListener,
    /// The world's secret.
    pub(in crate::world) token: Token,
    pub(in crate::world) keeping: Keeping,
}

#[derive(Debug)]
struct Links {
    /// To processes of this host, by rank; `None` for this process.
    streams: Vec<Option<UnixStream>>,
    /// To processes of other hosts, by rank.
    far: Vec<Option<Arc<Far>>>,
    /// Collective calls made so far.
    calls: u64,
    /// The first failure; after it, bytes left in the sockets cannot be attributed to a call.
    broken: Option<Error>,
}

/// A connection to a process.
enum Line<'a> {
    Near(&'a UnixStream),
    Far(&'a Far),
}

impl Line<'_> {
    fn send(&self, bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
        match self {
            Line::Near(stream) => wire::send(stream, bytes, deadline),
            Line::Far(far) => far.send(bytes),
        }
    }

    fn receive(&self, deadline: Deadline) -> Result<Vec<u8>, Broken> {
        match self {
            Line::Near(stream) => wire::receive(stream, deadline),
            Line::Far(far) => far.receive(deadline),
        }
    }
}

/// The control connections of this process.
#[derive(Debug)]
pub(crate) struct Group {
    rank: u32,
    links: Mutex<Links>,
    watch: Watch,
    /// The world's number among all of them, and the launches of this process in all of its worlds.
    world: u64,
    orders: Arc<Orders>,
}

impl Group {
    /// Connects this process with every other one. `addresses` say where they are, by rank; `orders` are the launches
    /// of this one on its GPU.
    pub(in crate::world) fn connect(
        rank: u32,
        topology: &Topology,
        addresses: &[PeerAddress],
        listener: &LocalListener,
        abroad: Option<Abroad>,
        orders: Arc<Orders>,
    ) -> Result<Group> {
        let deadline = Deadline::within(MESH);
        let streams = connect_near(rank, addresses, listener, deadline)?;
        let nobody = || addresses.iter().map(|_| None).collect::<Vec<_>>();
        let mut links = Links { streams, far: nobody(), calls: 0, broken: None };
        // A shared page per process of this host, read without a call (see `watch`).
        let (mine, fd) = Page::create()?;
        let all = 0..addresses.len() as u32;
        let theirs = links.all_fds(rank, "connecting", fd, all, deadline)??;
        let pages = theirs
            .iter()
            .map(|fd| fd.as_ref().map(Page::open).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let world = links.orders(rank, &orders, deadline)?;
        let (bell, ears) = UnixStream::pair().map_err(|e| os("socketpair", &e))?;
        let bell = Arc::new(Bell::new(bell).map_err(|e| os("socketpair", &e))?);
        let mut far = Vec::new();
        if let Some(Abroad { gate, token, keeping }) = abroad {
            let me = End { rank, ranks: addresses.len() as u32, token: &token };
            let addresses: Vec<_> = addresses.iter().map(PeerAddress::address).collect();
            for (peer, link) in (0..).zip(mesh::meet(&gate, me, &addresses, deadline)?) {
                let Some(link) = link else { continue };
                let end = Arc::new(Far::new(bell.clone()));
                let stream = Stream::new(link, end.clone(), keeping, MESH);
                far.push((peer, stream.map_err(|e| os("fcntl", &e))?));
                links.far[peer as usize] = Some(end);
            }
        }
        let near = links.streams.iter().map(|s| s.as_ref().map(UnixStream::try_clone).transpose());
        let near = near.collect::<Result<Vec<_>, _>>().map_err(|e| os("dup", &e))?;
        let alike = topology.alike(rank).collect();
        let watch = Watch::start(mine, Others { near, pages, far, alike, bell, ears })?;
        let group = Group { rank, links: Mutex::new(links), watch, world, orders };
        group.all_gather("connecting", &[], deadline)?;
        Ok(group)
    }

    /// Gives every process the bytes of every other, by rank. `call` names the collective call.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::PeerSilent`]; [`Error::Disagree`] when a rank makes another call. After a failure
    /// every later call gives the same one.
    pub(crate) fn all_gather(
        &self,
        call: &str,
        mine: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>> {
        self.links().checked(|links| links.all_gather(self.rank, call, mine, deadline))
    }

    /// Exchanges file descriptors among the ranks `among`, which include this one: returns those of the others by rank,
    /// `None` for this one. Collective over the whole group; each rank passes the ranks that it shares memory with.
    ///
    /// # Errors
    /// As [`Group::all_gather`].
    pub(crate) fn all_fds(
        &self,
        call: &str,
        mine: OwnedFd,
        among: Range<u32>,
        deadline: Deadline,
    ) -> Result<Vec<Option<OwnedFd>>> {
        // A descriptor that this process may not receive is an error of this process, not of the group.
        self.links().checked(|links| links.all_fds(self.rank, call, mine, among, deadline))?
    }

    /// Exchanges the result of a step: an error of one process is an error of all.
    ///
    /// # Errors
    /// Its own error; [`Error::PeerFailed`] with that of the lowest rank that has one; as [`Group::all_gather`].
    pub(crate) fn agree<T, E: From<Error> + Display>(
        &self,
        call: &str,
        mine: Result<T, E>,
        deadline: Deadline,
    ) -> Result<T, E> {
        let word = match &mine {
            Ok(_) => Pack::default().u64(0),
            Err(error) => {
                let text: String = error.to_string().chars().take(1024).collect();
                Pack::default().u64(1).text(&text)
            }
        };
        let said = self.all_gather(call, &word.done(), deadline);
        // This process's own error takes precedence over a failed exchange.
        let mine = mine?;
        for (rank, word) in (0..).zip(&said?) {
            let mut fields = Unpack::new(word);
            if fields.u64() != Some(0) {
                let what = fields.text().unwrap_or_else(|| "it sent what makes no sense".into());
                return Err(E::from(Error::PeerFailed { rank, during: call.into(), what }));
            }
        }
        Ok(mine)
    }

    /// Records a launch that waits for other ranks, before it is made. `instance` is the number that all ranks give a
    /// kernel which they must launch in the same order; `None` where order does not matter. If another rank launched a
    /// different instance at this place, the waits of that instance are told to give up.
    ///
    /// # Errors
    /// [`Error::PeerGone`] with a rank that left before this launch; [`Error::OutOfStep`], [`Error::Crossed`].
    pub(crate) fn launching(&self, instance: Option<u32>) -> Result<()> {
        let astray = self.watch.launching(instance)?;
        let Some(instance) = instance else { return Ok(()) };
        let Some(astray) = astray else {
            let Some(launch) = self.watch.ordered() else { return Ok(()) };
            if !self.orders.launching((self.world, launch)) {
                return Ok(());
            }
            self.watch.refuse(launch);
            // Others that have launched it would wait.
            if let Some(own) = self.watch.member(instance) {
                own.raise(self.rank);
            }
            let (rank, ours) = (self.rank, self.text(instance, self.rank));
            return Err(Error::Crossed { launch, rank, ours });
        };
        if let Some(other) = self.watch.member(astray.theirs) {
            other.raise(self.rank);
        }
        let Astray { launch, peer, theirs } = astray;
        let (ours, theirs) = (self.text(instance, self.rank), self.text(theirs, peer));
        Err(Error::OutOfStep { launch, rank: self.rank, ours, peer, theirs })
    }

    /// Describes what `peer` launched where `rank` launched `instance`, if they differ.
    pub(crate) fn other_launch(&self, instance: u32, rank: u32, peer: u32) -> Option<String> {
        Some(self.text(self.watch.other_launch(instance, rank, peer)?, peer))
    }

    /// Whether `peer` has made every launch of `instance` that `rank` has made, of at least one.
    pub(crate) fn launched(&self, instance: u32, rank: u32, peer: u32) -> bool {
        self.watch.launched(instance, rank, peer)
    }

    /// Stops comparing launches: graph replays cannot be counted, and after a failure ranks may have made different
    /// launches.
    pub(crate) fn lose_count(&self) {
        self.watch.lose_count();
    }

    fn text(&self, instance: u32, rank: u32) -> String {
        let member = self.watch.member(instance);
        member.map_or_else(|| format!("a kernel (bind {instance})"), |m| m.text(rank))
    }

    /// The rank of a process that has died, or that left before a launch which this process has made.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.watch.dead()
    }

    /// Tells other hosts that kernels of an instance must give up because of rank `by`.
    pub(crate) fn give_up(&self, instance: u32, by: u32, why: &str) {
        self.watch.give_up(instance, by, why);
    }

    /// Whether the process of `rank` has died.
    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.watch.is_dead(rank)
    }

    /// Notifies an instance of deaths and of other processes' messages about it, while it is alive.
    pub(crate) fn join(&self, instance: u32, member: Weak<dyn Member>) {
        self.watch.join(instance, member);
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        // After a panic in the middle of a call, the next call detects the stale message by its name.
        self.links.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Links {
    /// Makes a call unless one has failed, and remembers a failure.
    fn checked<T>(&mut self, call: impl FnOnce(&mut Links) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        call(self).inspect_err(|error| self.broken = Some(error.clone()))
    }

    /// The processes of this host.
    fn near(&self) -> impl Iterator<Item = (u32, &UnixStream)> {
        (0..).zip(&self.streams).filter_map(|(rank, s)| s.as_ref().map(|s| (rank, s)))
    }

    /// All other processes.
    fn peers(&self) -> impl Iterator<Item = (u32, Line<'_>)> {
        (0..).zip(self.streams.iter().zip(&self.far)).filter_map(|(rank, (near, far))| {
            let near = near.as_ref().map(Line::Near);
            Some((rank, near.or(far.as_deref().map(Line::Far))?))
        })
    }

    /// Tells the processes of this host of all launches that others of them have listed. The number of this world,
    /// which no other one has.
    fn orders(&mut self, rank: u32, orders: &Orders, deadline: Deadline) -> Result<u64> {
        const CALL: &str = "connecting";
        let mine = orders.known()?;
        let ids = mine.iter().fold(Pack::default().u64(order::random()?), |p, (id, _)| p.u64(*id));
        let all = self.all_gather(rank, CALL, &ids.done(), deadline)?;
        let numbers = |bytes: &Vec<u8>| {
            let mut fields = Unpack::new(bytes);
            std::iter::from_fn(|| fields.u64()).collect::<Vec<_>>()
        };
        let all: Vec<_> = all.iter().map(numbers).collect();
        let rounds = all.iter().map(|ids| ids.len().saturating_sub(1)).max().unwrap_or(0);
        for i in 0..rounds {
            // Who knows fewer tells the last one again.
            let Some((_, fd)) = mine.get(i).or(mine.last()) else { break };
            let fd = fd.try_clone().map_err(|e| os("dup", &e))?;
            let theirs = self.all_fds(rank, CALL, fd, 0..all.len() as u32, deadline)??;
            for (ids, fd) in all.iter().zip(theirs) {
                if let (Some(id), Some(fd)) = (ids.get(1 + i), fd) {
                    orders.learn(*id, fd)?;
                }
            }
        }
        Ok(all.first().and_then(|ids| ids.first()).copied().unwrap_or_default())
    }

    fn all_gather(
        &mut self,
        rank: u32,
        call: &str,
        mine: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>> {
        self.calls += 1;
        // Ranks that timed out earlier have already reported this one as silent; it must not go on without them.
        if deadline.over() {
            let (during, waited) = (call.into(), deadline.limit());
            return Err(Error::PeerSilent { ranks: vec![rank], during, waited });
        }
        let frame = |what: &[u8]| Pack::default().u64(self.calls).text(call).bytes(what).done();
        let message = Some(frame(mine)).filter(|m| m.len() <= wire::MAX_FRAME);
        let long = message.is_none();
        // If the payload is too long, an empty message is sent, so that the others do not wait.
        let message = message.unwrap_or_else(|| Pack::default().u64(self.calls).text(call).done());
        let mut all: Vec<Vec<u8>> = self.streams.iter().map(|_| mine.to_vec()).collect();
        let (mut gone, mut silent, mut astray) = (None, Vec::new(), Vec::new());
        let mut too_long = long.then_some(rank);
        for (peer, line) in self.peers() {
            // Send to all before looking at any reply: no peer waits for this rank because of another's error.
            match line.send(&message, deadline) {
                // It may have sent its part before it went.
                Ok(()) | Err(Broken::Gone) => {}
                Err(broken) => return Err(failed(&broken, peer, call, deadline)),
            }
        }
        for (peer, line) in self.peers() {
            let bytes = match line.receive(deadline) {
                Ok(bytes) => bytes,
                Err(Broken::Gone) => {
                    gone.get_or_insert(peer);
                    continue;
                }
                Err(Broken::Late) => {
                    silent.push(peer);
                    continue;
                }
                Err(broken) => return Err(failed(&broken, peer, call, deadline)),
            };
            let mut fields = Unpack::new(&bytes);
            match (fields.u64(), fields.text(), fields.bytes()) {
                (Some(n), Some(name), Some(theirs)) if n == self.calls && name == call => {
                    all[peer as usize] = theirs.to_vec();
                }
                (Some(n), Some(name), None) if n == self.calls && name == call => {
                    too_long.get_or_insert(peer);
                }
                _ => astray.push(peer),
            }
        }
        if let Some(rank) = gone {
            return Err(Error::PeerGone { rank, during: call.into() });
        }
        if !astray.is_empty() {
            let what = "the collective call that is made".into();
            return Err(Error::Disagree { during: call.into(), what, rank, ranks: astray });
        }
        if !silent.is_empty() {
            let (during, waited) = (call.into(), deadline.limit());
            return Err(Error::PeerSilent { ranks: silent, during, waited });
        }
        if let Some(rank) = too_long {
            let what = format!("its message is longer than {} bytes", wire::MAX_FRAME);
            return Err(Error::PeerFailed { rank, during: call.into(), what });
        }
        Ok(all)
    }

    fn all_fds(
        &mut self,
        rank: u32,
        call: &str,
        mine: OwnedFd,
        among: Range<u32>,
        deadline: Deadline,
    ) -> Result<Result<Vec<Option<OwnedFd>>>, Error> {
        // All ranks must be in this call before any of them receives descriptors.
        self.all_gather(rank, call, &[], deadline)?;
        let peers = || self.near().filter(|(peer, _)| among.contains(peer));
        for (peer, stream) in peers() {
            wire::send_fd(stream, mine.as_fd(), deadline)
                .map_err(|b| failed(&b, peer, call, deadline))?;
        }
        let mut all = among.clone().map(|_| None).collect::<Vec<Option<OwnedFd>>>();
        let mut refused = None;
        for (peer, stream) in peers() {
            match wire::receive_fd(stream, deadline) {
                Ok(fd) => all[(peer - among.start) as usize] = Some(fd),
                Err(b @ Broken::NoRoom) => refused = Some(failed(&b, peer, call, deadline)),
                Err(b) => return Err(failed(&b, peer, call, deadline)),
            }
        }
        Ok(refused.map_or(Ok(all), Err))
    }
}

impl PeerAddress {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            PeerAddress::Near(_) => None,
            PeerAddress::Far(address) => Some(*address),
        }
    }
}

/// Connects with every other process of this host: lower ranks listen, higher ones connect.
fn connect_near(
    rank: u32,
    addresses: &[PeerAddress],
    listener: &LocalListener,
    deadline: Deadline,
) -> Result<Vec<Option<UnixStream>>> {
    let mut streams: Vec<Option<UnixStream>> = addresses.iter().map(|_| None).collect();
    for (peer, address) in addresses.iter().enumerate().take(rank as usize) {
        let PeerAddress::Near(name) = address else { continue };
        let stream = unix::SocketAddr::from_abstract_name(name)
            .and_then(|a| UnixStream::connect_addr(&a))
            .map_err(|e| Error::SeveralHosts {
                what: format!(
                    "rank {peer} is on this machine and cannot be reached through a Unix-domain socket ({e}): it is in \
                     another network namespace, or has ended meanwhile"
                ),
            })?;
        if !wire::same_user(&stream) {
            let what = format!("rank {peer} is a process of another user");
            return Err(Error::System { call: "connect", what });
        }
        let hello = Pack::default().text(name).u64(rank.into()).done();
        wire::send(&stream, &hello, deadline)
            .map_err(|b| failed(&b, peer as u32, "connecting", deadline))?;
        streams[peer] = Some(stream);
    }
    let awaited = |streams: &[Option<UnixStream>]| -> Vec<u32> {
        let later = (0..).zip(addresses).zip(streams).skip(rank as usize + 1);
        later
            .filter(|((_, s), came)| s.address().is_none() && came.is_none())
            .map(|((r, _), _)| r)
            .collect()
    };
    loop {
        let ranks = awaited(&streams);
        if ranks.is_empty() {
            return Ok(streams);
        }
        let Some((peer, stream)) = listener.admit(deadline)? else {
            let (during, waited) = ("connecting".into(), deadline.limit());
            return Err(Error::PeerSilent { ranks, during, waited });
        };
        match usize::try_from(peer).ok().and_then(|p| streams.get_mut(p)) {
            Some(place @ None) if ranks.iter().any(|r| u64::from(*r) == peer) => {
                *place = Some(stream);
            }
            _ => {
                return Err(Error::System { call: "accept", what: format!("rank {peer} came") });
            }
        }
    }
}

/// A shared handle.
pub(crate) type SharedGroup = Arc<Group>;

#[cfg(test)]
mod tests;
