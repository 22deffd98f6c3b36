//! Notices that a process of the world has died, or makes other launches than this one, and tells kernels that wait for it.
//!
//! A socket closes when its process ends, however it ends. A process that leaves of its own will says so in shared
//! memory first, and how many launches it has made: its part of those is done, and a kernel of ours that is still at work on
//! what it sent must not be disturbed. Of a launch behind them it will be no part, so that for those it is as good as dead.
//!
//! Ranks meet in the kernels that they launch, one after the other. Where the n-th is another one on another rank, each waits for what
//! stands behind the other, and whoever comes second sees it.

use super::page::Page;
use crate::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between a death and the abort of what is running. A process that ends without a farewell may have done its part of
/// the launches that are in flight, and those end by themselves.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// An instance, as the other processes are concerned with it.
pub(crate) trait Member: Send + Sync {
    /// Tells its kernels to give up, on behalf of rank `by`.
    fn raise(&self, by: u32);
    /// What a rank launches with it, in words.
    fn text(&self, rank: u32) -> String;
}

/// A launch that another rank did not make, or another in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Astray {
    /// Which, from 1.
    pub(super) launch: u64,
    pub(super) peer: u32,
    /// The instance that the peer launched.
    pub(super) theirs: u32,
}

struct Shared {
    /// Bit r: the process of rank r has died, or has left and is missed.
    dead: AtomicU64,
    count: Mutex<Count>,
    /// Instances, by the number that all ranks give them.
    members: Mutex<Vec<(u32, Weak<dyn Member>)>>,
}

/// Launches in which ranks meet, of all kernels. Captured ones do not count: nobody knows of their replays.
#[derive(Default)]
struct Count {
    /// Of this process.
    made: u64,
    /// Those of them that all ranks make in the same order.
    ordered: u64,
    /// Of the process that made the fewest of those that have left, and its rank.
    last: Option<(u64, u32)>,
}

impl Shared {
    fn count(&self) -> MutexGuard<'_, Count> {
        // Two numbers, each true after any panic.
        self.count.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that a rank has left after so many launches. Whether this process has made more.
    fn left(&self, rank: u32, made: u64) -> bool {
        let mut count = self.count();
        if count.last.is_none_or(|(fewest, _)| made < fewest) {
            count.last = Some((made, rank));
        }
        count.made > made
    }

    fn members(&self) -> MutexGuard<'_, Vec<(u32, Weak<dyn Member>)>> {
        // A list of weak pointers is true after any panic.
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The watching thread. Dropping it says farewell to the other processes; not in a fork of the process, which has neither.
pub(super) struct Watch {
    /// The process that is watched for.
    process: u32,
    shared: Arc<Shared>,
    mine: Page,
    /// By rank; none for this one.
    theirs: Vec<Option<Arc<Page>>>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("dead", &self.dead()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the other ends of `streams`; `theirs` are the pages of their processes.
    pub(super) fn start(
        streams: &[Option<UnixStream>],
        mine: Page,
        theirs: Vec<Option<Page>>,
    ) -> Result<Watch, Error> {
        let pages: Vec<_> = theirs.into_iter().map(|p| p.map(Arc::new)).collect();
        let system = |call| move |e: std::io::Error| Error::System { call, what: e.to_string() };
        let mut peers = Vec::new();
        for ((rank, stream), page) in (0..).zip(streams).zip(&pages) {
            if let (Some(stream), Some(page)) = (stream, page) {
                let stream = stream.try_clone().map_err(system("dup"))?;
                peers.push(Peer { rank, stream, page: page.clone(), died: None });
            }
        }
        let (stop, stopped) = UnixStream::pair().map_err(system("socketpair"))?;
        let shared = Arc::new(Shared {
            dead: AtomicU64::new(0),
            count: Mutex::default(),
            members: Mutex::default(),
        });
        let known = shared.clone();
        let thread = std::thread::Builder::new()
            .name("mk-watch".into())
            .spawn(move || watch(&known, peers, &stopped))
            .map_err(system("the start of a thread"))?;
        let process = std::process::id();
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Watch { process, shared, mine, theirs: pages, stop, thread })
    }

    pub(super) fn dead(&self) -> Option<u32> {
        match self.shared.dead.load(Ordering::Acquire) {
            0 => None,
            mask => Some(mask.trailing_zeros()),
        }
    }

    /// Whether this one has, or left so.
    pub(super) fn is_dead(&self, rank: u32) -> bool {
        self.shared.dead.load(Ordering::Acquire) >> rank & 1 == 1
    }

    /// A process that has left of its own will.
    #[cfg(test)]
    pub(super) fn left(&self) -> Option<u32> {
        self.shared.count().last.map(|(_, rank)| rank)
    }

    /// Counts a launch that is about to be made, and says what others have launched in its place, if it is of an `instance` that all
    /// ranks launch in the same order.
    ///
    /// # Errors
    /// [`Error::PeerGone`] with a rank that has left before it: it is not counted then.
    pub(super) fn launching(&self, instance: Option<u32>) -> Result<Option<Astray>, Error> {
        let mut count = self.shared.count();
        if let Some((made, rank)) = count.last
            && count.made >= made
        {
            return Err(Error::PeerGone { rank, during: "launching".into() });
        }
        count.made += 1;
        let Some(instance) = instance else { return Ok(None) };
        count.ordered += 1;
        self.mine.note(count.ordered, instance);
        let astray = self.astray(count.ordered, instance);
        // It is not made then, and a farewell must not say so; its place stays taken.
        count.made -= u64::from(astray.is_some());
        Ok(astray)
    }

    /// The instance that `peer` launched in the place of a launch of `instance` by `rank`, if it has.
    pub(super) fn other_launch(&self, instance: u32, rank: u32, peer: u32) -> Option<u32> {
        let (page, other) = (self.page(rank)?, self.page(peer)?);
        page.launches_of(instance).find_map(|n| differing(n, instance, page, other))
    }

    fn astray(&self, launch: u64, instance: u32) -> Option<Astray> {
        let peers = (0..).zip(&self.theirs).filter_map(|(r, p)| Some((r, p.as_deref()?)));
        peers.into_iter().find_map(|(peer, page)| {
            let theirs = differing(launch, instance, &self.mine, page)?;
            Some(Astray { launch, peer, theirs })
        })
    }

    fn page(&self, rank: u32) -> Option<&Page> {
        Some(self.theirs.get(rank as usize)?.as_deref().unwrap_or(&self.mine))
    }

    /// This process's further launches need not be those of others.
    pub(super) fn lose_count(&self) {
        self.mine.lose_count(self.shared.count().ordered);
    }

    pub(super) fn join(&self, instance: u32, member: Weak<dyn Member>) {
        let mut members = self.shared.members();
        members.retain(|(_, m)| m.strong_count() > 0);
        members.push((instance, member));
    }

    pub(super) fn member(&self, instance: u32) -> Option<Arc<dyn Member>> {
        let members = self.shared.members();
        members.iter().find(|(i, _)| *i == instance).and_then(|(_, m)| m.upgrade())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A handle that is dropped would be that of a thread which is not here.
            std::mem::forget(self.thread.take());
            return;
        }
        self.mine.leave(self.shared.count().made);
        // The thread holds copies of the sockets: they close, and the peers see it, when it has ended.
        self.stop = None;
        // It may be the one that drops this: instances that it was telling of a death were the last to know the group.
        if self.thread.as_ref().is_some_and(|t| t.thread().id() == std::thread::current().id()) {
            self.thread = None;
        }
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::warn!("the thread that watches for dead processes has panicked");
        }
    }
}

/// What another process launched in the place of launch `n`, of `instance`, if it has.
fn differing(n: u64, instance: u32, page: &Page, other: &Page) -> Option<u32> {
    let counted = page.counts(n) && other.counts(n);
    other.noted(n).filter(|theirs| counted && *theirs != instance)
}

struct Peer {
    rank: u32,
    stream: UnixStream,
    page: Arc<Page>,
    died: Option<Instant>,
}

fn watch(shared: &Shared, mut peers: Vec<Peer>, stopped: &UnixStream) {
    let closed = PollFlags::POLLHUP | PollFlags::POLLERR;
    loop {
        let waiting: Vec<usize> = (0..peers.len()).filter(|i| peers[*i].died.is_none()).collect();
        let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN | closed)];
        // Only the closing is asked for: what comes through belongs to collective calls.
        fds.extend(waiting.iter().map(|i| PollFd::new(peers[*i].stream.as_fd(), closed)));
        let next = peers.iter().filter_map(|p| p.died).map(|at| GRACE.saturating_sub(at.elapsed()));
        let timeout = next.min().map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                // Kernels still bound their own waits.
                tracing::warn!(%error, "dead processes are not noticed any more");
                return;
            }
        }
        let hung = |fd: &PollFd<'_>| fd.revents().is_some_and(|r| !r.is_empty());
        if hung(&fds[0]) {
            return;
        }
        let gone: Vec<usize> =
            waiting.iter().zip(&fds[1..]).filter(|(_, fd)| hung(fd)).map(|(i, _)| *i).collect();
        for i in gone.into_iter().rev() {
            let rank = peers[i].rank;
            match peers[i].page.left() {
                Some(made) if !shared.left(rank, made) => {
                    peers.remove(i);
                    continue;
                }
                Some(made) => tracing::warn!(rank, made, "a process left before others' launches"),
                None => tracing::warn!(rank, "a process of this world is gone"),
            }
            peers[i].died = Some(Instant::now());
            shared.dead.fetch_or(1 << rank, Ordering::AcqRel);
        }
        peers.retain(|peer| {
            let raise = peer.died.is_some_and(|at| at.elapsed() >= GRACE);
            if raise {
                let members: Vec<_> =
                    shared.members().iter().filter_map(|(_, m)| m.upgrade()).collect();
                members.iter().for_each(|m| m.raise(peer.rank));
            }
            !raise
        });
    }
}
