//! Notices that a process of the world has died, and tells kernels that wait for it.
//!
//! A socket closes when its process ends, however it ends. A process that leaves of its own will says so in shared
//! memory first: its part is done, and a kernel of ours that is still at work on what it sent must not be disturbed.

use crate::Error;
use crate::mem::SharedPages;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between a death and the abort of what is running. A process that ends without a farewell may have done its part of
/// the launches that are in flight, and those end by themselves.
const GRACE: Duration = Duration::from_secs(1);

/// Something that is running and can be told to give up.
pub(crate) trait Abort: Send + Sync {
    /// Tells it, on behalf of rank `by`.
    fn raise(&self, by: u32);
}

struct Shared {
    /// Bit r: the process of rank r has died.
    dead: AtomicU64,
    aborts: Mutex<Vec<Weak<dyn Abort>>>,
}

impl Shared {
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
        let shared = Arc::new(Shared { dead: AtomicU64::new(0), aborts: Mutex::default() });
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
        word(&self.farewell).store(1, Ordering::Release);
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
            if word(&peers[i].page).load(Ordering::Acquire) != 0 {
                peers.remove(i);
                continue;
            }
            peers[i].died = Some(Instant::now());
            shared.dead.fetch_or(1 << peers[i].rank, Ordering::AcqRel);
            tracing::warn!(rank = peers[i].rank, "a process of this world is gone");
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

/// The first word of a page.
fn word(page: &SharedPages) -> &AtomicU32 {
    // SAFETY: mapped for as long as the page lives, aligned, and used as an atomic by every process.
    unsafe { AtomicU32::from_ptr(page.start().cast()) }
}
