//! Notices that a process of the world has died, and tells kernels that wait for it.
//!
//! A socket closes when its process ends, however it ends. A process that leaves of its own will says so in shared
//! memory first, and how many launches it has made: its part of those is done, and a kernel of ours that is still at work on
//! what it sent must not be disturbed. Of a launch behind them it will be no part, so that for those it is as good as dead.

use crate::Error;
use crate::mem::SharedPages;
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

/// Something that is running and can be told to give up.
pub(crate) trait Abort: Send + Sync {
    /// Tells it, on behalf of rank `by`.
    fn raise(&self, by: u32);
}

struct Shared {
    /// Bit r: the process of rank r has died, or has left and is missed.
    dead: AtomicU64,
    count: Mutex<Count>,
    aborts: Mutex<Vec<Weak<dyn Abort>>>,
}

/// Launches in which ranks meet, of all kernels. Captured ones do not count: nobody knows of their replays.
#[derive(Default)]
struct Count {
    /// Of this process.
    made: u64,
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

    fn aborts(&self) -> MutexGuard<'_, Vec<Weak<dyn Abort>>> {
        // A list of weak pointers is true after any panic.
        self.aborts.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The watching thread. Dropping it says farewell to the other processes; not in a fork of the process, which has neither.
pub(super) struct Watch {
    /// The process that is watched for.
    process: u32,
    shared: Arc<Shared>,
    farewell: SharedPages,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("dead", &self.dead()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the other ends of `streams`; `farewells` are the pages of their processes.
    pub(super) fn start(
        streams: &[Option<UnixStream>],
        farewell: SharedPages,
        farewells: Vec<Option<SharedPages>>,
    ) -> Result<Watch, Error> {
        let system = |call| move |e: std::io::Error| Error::System { call, what: e.to_string() };
        let mut peers = Vec::new();
        for ((rank, stream), page) in (0..).zip(streams).zip(farewells) {
            if let (Some(stream), Some(page)) = (stream, page) {
                let stream = stream.try_clone().map_err(system("dup"))?;
                peers.push(Peer { rank, stream, page, died: None });
            }
        }
        let (stop, stopped) = UnixStream::pair().map_err(system("socketpair"))?;
        let shared = Arc::new(Shared {
            dead: AtomicU64::new(0),
            count: Mutex::default(),
            aborts: Mutex::default(),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("mk-watch".into())
            .spawn(move || watch(&theirs, peers, &stopped))
            .map_err(system("the start of a thread"))?;
        let process = std::process::id();
        Ok(Watch { process, shared, farewell, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn dead(&self) -> Option<u32> {
        match self.shared.dead.load(Ordering::Acquire) {
            0 => None,
            mask => Some(mask.trailing_zeros()),
        }
    }

    /// A process that has left of its own will.
    #[cfg(test)]
    pub(super) fn left(&self) -> Option<u32> {
        self.shared.count().last.map(|(_, rank)| rank)
    }

    /// Counts a launch that is about to be made.
    ///
    /// # Errors
    /// [`Error::PeerGone`] with a rank that has left before it: it is not counted then.
    pub(super) fn launching(&self) -> Result<(), Error> {
        let mut count = self.shared.count();
        match count.last {
            Some((made, rank)) if count.made >= made => {
                Err(Error::PeerGone { rank, during: "launching".into() })
            }
            _ => {
                count.made += 1;
                Ok(())
            }
        }
    }

    pub(super) fn on_death(&self, what: Weak<dyn Abort>) {
        let mut aborts = self.shared.aborts();
        aborts.retain(|a| a.strong_count() > 0);
        aborts.push(what);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A handle that is dropped would be that of a thread which is not here.
            std::mem::forget(self.thread.take());
            return;
        }
        word(&self.farewell).store(1 + self.shared.count().made, Ordering::Release);
        // The thread holds copies of the sockets: they close, and the peers see it, when it has ended.
        self.stop = None;
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::warn!("the thread that watches for dead processes has panicked");
        }
    }
}

struct Peer {
    rank: u32,
    stream: UnixStream,
    page: SharedPages,
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
            match word(&peers[i].page).load(Ordering::Acquire).checked_sub(1) {
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
                let aborts: Vec<_> = shared.aborts().iter().filter_map(Weak::upgrade).collect();
                aborts.iter().for_each(|a| a.raise(peer.rank));
            }
            !raise
        });
    }
}

/// The first word of a page: 0, or 1 and the launches that its process made before it left.
fn word(page: &SharedPages) -> &AtomicU64 {
    // SAFETY: mapped for as long as the page lives, aligned, and used as an atomic by every process.
    unsafe { AtomicU64::from_ptr(page.start().cast()) }
}
