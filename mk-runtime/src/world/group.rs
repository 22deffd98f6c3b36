//! The processes of a world on one host, after they have met: a Unix-domain socket between each two of them.
//!
//! The sockets carry small gathers and file descriptors, and their closing tells that a process is gone. Collective
//! calls are made in the same order by all processes; each names itself, so that a rank that makes another call is an
//! error and not a confusion.

use super::pack::{Pack, Unpack};
use super::page::Page;
use super::rendezvous::os;
use super::watch::{Astray, Member, Watch};
use super::wire::{self, Broken, Deadline};
use super::{Bootstrap, Error};
use std::fmt::Display;
use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Bound on building the mesh, once the bootstrap has brought everybody here.
const MESH: Duration = Duration::from_secs(30);

/// A listening socket under a name of its own. Names are visible to all (`/proc/net/unix`); who knocks must be of the same
/// user, and say the name that it was told.
pub(super) struct Door {
    listener: UnixListener,
    name: String,
}

impl Door {
    pub(super) fn open() -> Result<Door, Error> {
        let mut secret = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut secret))
            .map_err(|e| os("read of /dev/urandom", &e))?;
        let secret: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        let name = format!("mk-{}-{secret}", std::process::id());
        let listener = SocketAddr::from_abstract_name(&name)
            .and_then(|a| UnixListener::bind_addr(&a))
            .map_err(|e| os("bind", &e))?;
        listener.set_nonblocking(true).map_err(|e| os("bind", &e))?;
        Ok(Door { listener, name })
    }

    /// The name under which peers knock.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Takes one peer in, whose rank is checked by the caller; none if none comes in time.
    fn admit(&self, deadline: Deadline) -> Result<Option<(u64, UnixStream)>, Error> {
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

#[derive(Debug)]
struct Links {
    /// By rank; none for this one.
    streams: Vec<Option<UnixStream>>,
    /// Collective calls made so far.
    calls: u64,
    /// The first failure: what the sockets hold after it belongs to nobody.
    broken: Option<Error>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    rank: u32,
    links: Mutex<Links>,
    watch: Watch,
}

impl Group {
    /// Connects this process with every other one. `names` are their doors, by rank.
    pub(super) fn connect(
        bootstrap: &dyn Bootstrap,
        door: &Door,
        names: &[String],
    ) -> Result<Group, Error> {
        let rank = bootstrap.rank();
        let deadline = Deadline::within(MESH);
        let mut streams: Vec<Option<UnixStream>> = names.iter().map(|_| None).collect();
        for (peer, name) in names.iter().enumerate().take(rank as usize) {
            let stream = SocketAddr::from_abstract_name(name)
                .and_then(|a| UnixStream::connect_addr(&a))
                .map_err(|e| Error::SeveralHosts {
                    what: format!(
                        "rank {peer} is on this machine and cannot be reached through a Unix-domain socket ({e}): it is in another network namespace, or has \
                         ended meanwhile"
                    ),
                })?;
            if !wire::same_user(&stream) {
                let what = format!("rank {peer} is a process of another user");
                return Err(Error::System { call: "connect", what });
            }
            let hello = Pack::default().text(name).u64(rank.into()).done();
            wire::send(&stream, &hello, deadline)
                .map_err(|b| failure(&b, peer as u32, "connecting", deadline))?;
            streams[peer] = Some(stream);
        }
        for _ in rank as usize + 1..names.len() {
            let (peer, stream) = door.admit(deadline)?.ok_or_else(|| {
                let later = (0..).zip(&streams).skip(rank as usize + 1);
                let ranks = later.filter(|(_, s)| s.is_none()).map(|(r, _)| r).collect();
                let (during, waited) = ("connecting".into(), deadline.limit());
                Error::PeerSilent { ranks, during, waited }
            })?;
            let place = usize::try_from(peer).ok().filter(|p| *p > rank as usize);
            match place.and_then(|p| streams.get_mut(p)) {
                Some(place @ None) => *place = Some(stream),
                _ => {
                    return Err(Error::System {
                        call: "accept",
                        what: format!("rank {peer} came"),
                    });
                }
            }
        }
        let mut links = Links { streams, calls: 0, broken: None };
        // What each process says without a call; see `watch`.
        let (mine, fd) = Page::create()?;
        let theirs = links.all_fds(rank, "connecting", fd, 0..names.len() as u32, deadline)??;
        let theirs = theirs
            .iter()
            .map(|fd| fd.as_ref().map(Page::open).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let watch = Watch::start(&links.streams, mine, theirs)?;
        let group = Group { rank, links: Mutex::new(links), watch };
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
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.links().checked(|links| links.all_gather(self.rank, call, mine, deadline))
    }

    /// Gives every process of `among`, of which this one is, a descriptor of every other's file there: in the order of
    /// their ranks, and none for this one. Collective for the whole group, each with the ranks that it shares memory with.
    ///
    /// # Errors
    /// As [`Group::all_gather`].
    pub(crate) fn all_fds(
        &self,
        call: &str,
        mine: OwnedFd,
        among: Range<u32>,
        deadline: Deadline,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        // A descriptor that this process may not have is its own failure, and not one of the group.
        self.links().checked(|links| links.all_fds(self.rank, call, mine, among, deadline))?
    }

    /// Tells the others how this process fares, and hears how they do: an error of one is an error of all.
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
        // What went wrong here says more than that the others could not be told.
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

    /// Counts a launch in which ranks meet, before it is made: of an `instance` (the number that all ranks give it) that all ranks launch
    /// in the same order, or of one for which that does not matter. Where another rank has launched something else in its place, those
    /// that wait in that are told to give up.
    ///
    /// # Errors
    /// [`Error::PeerGone`] with a rank that has left, and made none of these; [`Error::OutOfStep`].
    pub(crate) fn launching(&self, instance: Option<u32>) -> Result<(), Error> {
        let (Some(astray), Some(instance)) = (self.watch.launching(instance)?, instance) else {
            return Ok(());
        };
        if let Some(other) = self.watch.member(astray.theirs) {
            other.raise(self.rank);
        }
        let Astray { launch, peer, theirs } = astray;
        let (ours, theirs) = (self.text(instance, self.rank), self.text(theirs, peer));
        Err(Error::OutOfStep { launch, rank: self.rank, ours, peer, theirs })
    }

    /// What `peer` launched in the place of a launch of `instance` by `rank`, if it has, in words.
    pub(crate) fn other_launch(&self, instance: u32, rank: u32, peer: u32) -> Option<String> {
        Some(self.text(self.watch.other_launch(instance, rank, peer)?, peer))
    }

    /// From here on launches are not compared: replays are nobody's to count, and after a failure ranks may have made different ones.
    pub(crate) fn lose_count(&self) {
        self.watch.lose_count();
    }

    fn text(&self, instance: u32, rank: u32) -> String {
        let member = self.watch.member(instance);
        member.map_or_else(|| format!("a kernel (bind {instance})"), |m| m.text(rank))
    }

    /// A process that has died, if one has, or has left before a launch that this one has made.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.watch.dead()
    }

    /// Whether this process has.
    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.watch.is_dead(rank)
    }

    /// Tells this instance when a process dies, and what others say of it, for as long as somebody holds it.
    pub(crate) fn join(&self, instance: u32, member: Weak<dyn Member>) {
        self.watch.join(instance, member);
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        // A panic inside a call leaves the streams in the middle of one, which the next call finds out by its name.
        self.links.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Links {
    /// Makes a call unless one has failed, and remembers a failure.
    fn checked<T>(
        &mut self,
        call: impl FnOnce(&mut Links) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        call(self).inspect_err(|error| self.broken = Some(error.clone()))
    }

    fn peers(&self) -> impl Iterator<Item = (u32, &UnixStream)> {
        (0..).zip(&self.streams).filter_map(|(rank, s)| s.as_ref().map(|s| (rank, s)))
    }

    fn all_gather(
        &mut self,
        rank: u32,
        call: &str,
        mine: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.calls += 1;
        // Those whose own time was over before have been told that nothing came; who is so late must not go on without them.
        if deadline.over() {
            let (during, waited) = (call.into(), deadline.limit());
            return Err(Error::PeerSilent { ranks: vec![rank], during, waited });
        }
        let frame = |what: &[u8]| Pack::default().u64(self.calls).text(call).bytes(what).done();
        let message = Some(frame(mine)).filter(|m| m.len() <= wire::MAX_FRAME);
        let long = message.is_none();
        // Without a part of its own it is in the call all the same, or the others would wait for it.
        let message = message.unwrap_or_else(|| Pack::default().u64(self.calls).text(call).done());
        let mut all: Vec<Vec<u8>> = self.streams.iter().map(|_| mine.to_vec()).collect();
        let (mut gone, mut silent, mut astray) = (None, Vec::new(), Vec::new());
        let mut too_long = long.then_some(rank);
        for (peer, stream) in self.peers() {
            // To all before anything is believed: a peer that waits for this rank must not wait for another's fault.
            match wire::send(stream, &message, deadline) {
                // It may have sent its part before it went.
                Ok(()) | Err(Broken::Gone) => {}
                Err(broken) => return Err(failure(&broken, peer, call, deadline)),
            }
        }
        for (peer, stream) in self.peers() {
            let bytes = match wire::receive(stream, deadline) {
                Ok(bytes) => bytes,
                Err(Broken::Gone) => {
                    gone.get_or_insert(peer);
                    continue;
                }
                Err(Broken::Late) => {
                    silent.push(peer);
                    continue;
                }
                Err(broken) => return Err(failure(&broken, peer, call, deadline)),
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
    ) -> Result<Result<Vec<Option<OwnedFd>>, Error>, Error> {
        // So that all are in this call before anybody takes a byte for a descriptor.
        self.all_gather(rank, call, &[], deadline)?;
        let peers = || self.peers().filter(|(peer, _)| among.contains(peer));
        for (peer, stream) in peers() {
            wire::send_fd(stream, mine.as_fd(), deadline)
                .map_err(|b| failure(&b, peer, call, deadline))?;
        }
        let mut all = among.clone().map(|_| None).collect::<Vec<Option<OwnedFd>>>();
        let mut refused = None;
        for (peer, stream) in peers() {
            match wire::receive_fd(stream, deadline) {
                Ok(fd) => all[(peer - among.start) as usize] = Some(fd),
                Err(b @ Broken::NoRoom) => refused = Some(failure(&b, peer, call, deadline)),
                Err(b) => return Err(failure(&b, peer, call, deadline)),
            }
        }
        Ok(refused.map_or(Ok(all), Err))
    }
}

fn failure(broken: &Broken, peer: u32, call: &str, deadline: Deadline) -> Error {
    let during = call.to_string();
    match broken {
        Broken::Gone => Error::PeerGone { rank: peer, during },
        Broken::Interrupted => Error::Interrupted { during },
        Broken::Late => Error::PeerSilent { ranks: vec![peer], during, waited: deadline.limit() },
        Broken::Bad(what) => Error::PeerFailed { rank: peer, during, what: what.clone() },
        Broken::NoRoom => Error::System { call: "recvmsg", what: wire::NO_ROOM.into() },
    }
}

/// A handle that many may hold.
pub(crate) type SharedGroup = Arc<Group>;

#[cfg(test)]
mod tests;
