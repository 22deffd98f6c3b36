//! The thread that watches, and has the connections to other hosts.

use super::super::mesh::{Bell, Message, Stream};
use super::super::page::Page;
use super::super::wire::Broken;
use super::shared::{GRACE, Shared, differing};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a farewell to other hosts may take: what was said before it, and their closing.
const LINGER: Duration = Duration::from_millis(500);

const CLOSED: PollFlags = PollFlags::POLLHUP.union(PollFlags::POLLERR);

pub(super) struct Peer {
    rank: u32,
    line: Line,
    page: Arc<Page>,
    died: Option<Instant>,
}

enum Line {
    Near(UnixStream),
    Far {
        stream: Box<Stream>,
        /// The last launch that it was told of, if launches are compared with it.
        told: Option<u64>,
    },
    /// Of a process that has gone.
    Closed,
}

impl Peer {
    pub(super) fn near(rank: u32, stream: UnixStream, page: Arc<Page>) -> Peer {
        Peer { rank, line: Line::Near(stream), page, died: None }
    }

    pub(super) fn far(rank: u32, stream: Stream, page: Arc<Page>, alike: bool) -> Peer {
        let (stream, told) = (Box::new(stream), alike.then_some(0));
        Peer { rank, line: Line::Far { stream, told }, page, died: None }
    }

    /// What is waited for.
    fn poll(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.line {
            // Only the closing is asked for: what comes through belongs to collective calls.
            Line::Near(stream) => Some((stream.as_fd(), CLOSED)),
            Line::Far { stream, .. } => Some((stream.fd(), stream.interest())),
            Line::Closed => None,
        }
    }

    /// When it is to be looked at, whether or not something comes.
    fn due(&self) -> Option<Instant> {
        match (&self.line, self.died) {
            (_, Some(died)) => Some(died + GRACE),
            (Line::Far { stream, .. }, None) => Some(stream.due()),
            _ => None,
        }
    }
}

pub(super) struct Watching {
    pub(super) shared: Arc<Shared>,
    pub(super) mine: Arc<Page>,
    pub(super) bell: Arc<Bell>,
    pub(super) ears: UnixStream,
    pub(super) peers: Vec<Peer>,
}

impl Watching {
    pub(super) fn run(mut self) {
        if let Err(error) = self.ears.set_nonblocking(true) {
            tracing::warn!(%error, "dead processes are not noticed");
            return;
        }
        let mut came = vec![false; self.peers.len()];
        loop {
            for (i, came) in came.iter().enumerate() {
                let ended = self.write(i).and_then(|()| if *came { self.read(i) } else { Ok(()) });
                if let Err(broken) = ended {
                    self.gone(i, broken);
                }
            }
            self.raise();
            match self.wait() {
                Some(seen) => came = seen,
                None => return self.leave(),
            }
        }
    }

    /// Waits until something is to be done. Whether that is so for each peer; none when the world ends.
    fn wait(&self) -> Option<Vec<bool>> {
        let mut fds = vec![PollFd::new(self.ears.as_fd(), PollFlags::POLLIN)];
        let polled: Vec<_> = self.peers.iter().map(Peer::poll).collect();
        fds.extend(polled.iter().flatten().map(|(fd, flags)| PollFd::new(*fd, *flags)));
        let now = Instant::now();
        let next = self.peers.iter().filter_map(Peer::due).min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                // Kernels still bound their own waits.
                tracing::warn!(%error, "dead processes are not noticed any more");
                return None;
            }
        }
        let seen: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut of = seen.iter().skip(1);
        let now = Instant::now();
        let due = |peer: &Peer| peer.died.is_none() && peer.due().is_some_and(|at| at <= now);
        let came = self.peers.iter().zip(&polled);
        let came: Vec<bool> = came
            .map(|(p, polled)| polled.is_some() && *of.next().unwrap_or(&true) || due(p))
            .collect();
        drop(fds);
        if seen[0] && !self.hear() {
            return None;
        }
        Some(came)
    }

    /// Hears the bell. Whether the world goes on.
    fn hear(&self) -> bool {
        self.bell.answered();
        loop {
            match (&self.ears).read(&mut [0; 64]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Says what is to be said to a peer of another host.
    fn write(&mut self, i: usize) -> Result<(), Broken> {
        let Line::Far { stream, told } = &mut self.peers[i].line else { return Ok(()) };
        if let Some(told) = told {
            let ordered = self.shared.count().ordered;
            while *told < ordered {
                // Those that nobody remembers were made long ago, and compared by others.
                let first = (*told + 1).max(ordered.saturating_sub(Page::MOST - 1));
                let launches = first..=ordered;
                let instances: Vec<u32> = launches.map_while(|n| self.mine.noted(n)).collect();
                *told = ordered;
                if !instances.is_empty() {
                    stream.far.say(&Message::Launched { first, instances });
                }
            }
        }
        stream.write()
    }

    /// Hears what a peer has said, or finds out that it has gone.
    fn read(&mut self, i: usize) -> Result<(), Broken> {
        let mut messages = Vec::new();
        let read = match &mut self.peers[i].line {
            Line::Near(_) => Err(Broken::Gone),
            Line::Far { stream, .. } => stream.read(&mut messages),
            Line::Closed => Ok(()),
        };
        let Peer { rank, page, .. } = &self.peers[i];
        for message in messages {
            self.message(*rank, page, message);
        }
        read
    }

    fn message(&self, rank: u32, page: &Page, message: Message) {
        match message {
            Message::Alive | Message::Call(_) => {}
            Message::Launched { first, instances } => {
                for (n, instance) in (first..=u64::MAX).zip(instances) {
                    page.note(n, instance);
                    self.compare(rank, page, n);
                }
            }
            Message::Uncounted(launch) => {
                page.lose_count(launch);
            }
            Message::GiveUp { instance, by, why } => self.shared.give_up(instance, by, why),
            Message::Leaves(made) => page.leave(made),
        }
    }

    /// Kernels of a launch in whose place a peer of another host has launched something else would wait for it.
    fn compare(&self, rank: u32, page: &Page, n: u64) {
        let count = self.shared.count();
        if count.refused == Some(n) {
            return;
        }
        let Some(ours) = self.mine.noted(n) else { return };
        drop(count);
        if differing(n, ours, &self.mine, page).is_some()
            && let Some(member) = self.shared.member(ours)
        {
            member.raise(rank);
        }
    }

    /// A peer has gone, of its own will or otherwise.
    fn gone(&mut self, i: usize, broken: Broken) {
        let peer = &mut self.peers[i];
        let rank = peer.rank;
        if let Line::Far { stream, .. } = &peer.line {
            // Silence for too long is an end as any other.
            let bad = matches!(broken, Broken::Bad(_)) && peer.page.left().is_none();
            stream.far.end(if bad { broken.clone() } else { Broken::Gone });
        }
        peer.line = Line::Closed;
        match peer.page.left() {
            Some(made) if !self.shared.left(rank, made) => return,
            Some(made) => tracing::warn!(rank, made, "a process left before others' launches"),
            None => tracing::warn!(rank, ?broken, "a process of this world is gone"),
        }
        peer.died = Some(Instant::now());
        self.shared.dead.fetch_or(1 << rank, std::sync::atomic::Ordering::AcqRel);
    }

    /// Tells kernels of those that died long enough ago.
    fn raise(&mut self) {
        for peer in &mut self.peers {
            if peer.died.is_none_or(|at| at.elapsed() < GRACE) {
                continue;
            }
            peer.died = None;
            let members: Vec<_> =
                self.shared.members().here.iter().filter_map(|(_, m)| m.upgrade()).collect();
            members.iter().for_each(|m| m.raise(peer.rank));
        }
    }

    /// Says farewell to other hosts, behind all that was said before.
    fn leave(mut self) {
        let begin = Instant::now();
        // Launches since the last round, which others compare; where a peer has gone, nobody does.
        (0..self.peers.len()).for_each(|i| drop(self.write(i)));
        let made = self.mine.left().unwrap_or(0);
        let mut streams: Vec<Box<Stream>> = Vec::new();
        for peer in self.peers.drain(..) {
            if let Line::Far { stream, .. } = peer.line {
                stream.far.say(&Message::Leaves(made));
                streams.push(stream);
            }
        }
        let mut finished = vec![false; streams.len()];
        let mut closed = finished.clone();
        // Closing with something unread would take back what the peer has not read yet.
        while closed.contains(&false) && begin.elapsed() < LINGER {
            for (i, stream) in streams.iter_mut().enumerate() {
                if closed[i] {
                    continue;
                }
                closed[i] = stream.write().is_err() || stream.read(&mut Vec::new()).is_err();
                if !finished[i] && stream.is_quiet() {
                    stream.finish();
                    finished[i] = true;
                }
            }
            if closed.contains(&false) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
