//! Messages between processes: length-prefixed frames over Unix-domain sockets, and what sockets of all kinds have in
//! common, each within a deadline.

use crate::Error;
use nix::errno::Errno;
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags, sockopt};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest time between two looks at whether a wait is to end.
pub(super) const LOOK: Duration = Duration::from_millis(100);

static INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

/// Has waits for other processes ask `interrupted` ten times a second, and end where it says so. The first one counts.
pub fn ask_while_waiting(interrupted: fn() -> bool) {
    let _ = INTERRUPTED.set(interrupted);
}

/// Most bytes of a frame. Collectives send before they receive, so that a frame must fit a socket's buffer.
pub(super) const MAX_FRAME: usize = 64 << 10;

/// A moment after which nothing is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub(crate) fn within(limit: Duration) -> Deadline {
        Deadline { begin: Instant::now(), limit }
    }

    /// Time left. At least a millisecond even when it is over, so that what has come already is still read.
    pub(super) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed()).max(Duration::from_millis(1))
    }

    pub(super) fn over(&self) -> bool {
        self.begin.elapsed() >= self.limit
    }

    /// Time since its begin.
    pub(super) fn waited(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }
}

/// What is said of [`Broken::NoRoom`].
pub(super) const NO_ROOM: &str = "this process may not open another file (`ulimit -n`)";

/// Why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::world) enum Broken {
    /// The other process has closed its end, or is dead.
    Gone,
    /// Nothing within the deadline.
    Late,
    /// This process does not want to wait any longer.
    Interrupted,
    /// It came and makes no sense, or the system refused.
    Bad(String),
    /// It came, and the system did not let this process have its descriptor; what follows can be read.
    NoRoom,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Broken::Gone => "the connection was closed",
            Broken::Late => "nothing answers",
            Broken::Interrupted => "interrupted",
            Broken::Bad(what) => what,
            Broken::NoRoom => NO_ROOM,
        })
    }
}

impl Broken {
    pub(super) fn of(errno: Errno) -> Broken {
        match errno {
            Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => Broken::Gone,
            // What a socket with a time limit says, of either direction.
            Errno::EAGAIN | Errno::ETIMEDOUT => Broken::Late,
            other => Broken::Bad(other.to_string()),
        }
    }

    pub(super) fn io(error: &io::Error) -> Broken {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Broken::Late,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
                Broken::Gone
            }
            _ => Broken::Bad(error.to_string()),
        }
    }
}

/// What a call with a process has failed of.
pub(super) fn failed(broken: &Broken, peer: u32, call: &str, deadline: Deadline) -> Error {
    let during = call.to_string();
    match broken {
        Broken::Gone => Error::PeerGone { rank: peer, during },
        Broken::Interrupted => Error::Interrupted { during },
        Broken::Late => Error::PeerSilent { ranks: vec![peer], during, waited: deadline.limit() },
        Broken::Bad(what) => Error::PeerFailed { rank: peer, during, what: what.clone() },
        Broken::NoRoom => Error::System { call: "recvmsg", what: NO_ROOM.into() },
    }
}

/// A stream socket that waits for as long as it is told.
pub(super) trait Socket: AsRawFd {
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;
    fn limit_writes(&self, limit: Duration) -> io::Result<()>;
}

macro_rules! sockets {
    ($($stream:ty),*) => {$(
        impl Socket for $stream {
            fn limit_reads(&self, limit: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(limit))
            }

            fn limit_writes(&self, limit: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(limit))
            }
        }
    )*};
}

sockets!(UnixStream, TcpStream);

/// Sends one frame.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
    let Some(length) = u32::try_from(bytes.len()).ok().filter(|n| *n as usize <= MAX_FRAME) else {
        return Err(Broken::Bad(format!("a message of {} bytes is too long", bytes.len())));
    };
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    put(stream, &frame, deadline)
}

/// Receives one frame.
pub(super) fn receive(stream: &UnixStream, deadline: Deadline) -> Result<Vec<u8>, Broken> {
    let mut length = [0u8; 4];
    fill(stream, &mut length, deadline)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(Broken::Bad(format!("a message of {length} bytes is too long")));
    }
    let mut bytes = vec![0u8; length];
    fill(stream, &mut bytes, deadline)?;
    Ok(bytes)
}

/// Sends bytes.
pub(super) fn put(stream: &impl Socket, mut data: &[u8], deadline: Deadline) -> Result<(), Broken> {
    while !data.is_empty() {
        stream.limit_writes(deadline.left()).map_err(|e| Broken::io(&e))?;
        // Not `write`: a peer that is gone must be an error, and not a signal to a process that does not ignore it.
        match socket::send(stream.as_raw_fd(), data, MsgFlags::MSG_NOSIGNAL) {
            Ok(n) => data = &data[n.min(data.len())..],
            Err(Errno::EINTR) if !deadline.over() => {}
            Err(errno) => return Err(Broken::of(errno)),
        }
    }
    Ok(())
}

/// Receives as many bytes.
pub(super) fn fill(stream: &impl Socket, out: &mut [u8], deadline: Deadline) -> Result<(), Broken> {
    let (mut at, begin) = (0, Instant::now());
    while at < out.len() {
        // What has come is still read; a peer that sends a byte now and then is not waited for.
        if deadline.over() && begin.elapsed() > LOOK {
            return Err(Broken::Late);
        }
        stream.limit_reads(deadline.left().min(LOOK)).map_err(|e| Broken::io(&e))?;
        match socket::recv(stream.as_raw_fd(), &mut out[at..], MsgFlags::empty()) {
            Ok(0) => return Err(Broken::Gone),
            Ok(n) => at += n,
            Err(Errno::EINTR) if !deadline.over() => {}
            Err(errno) if Broken::of(errno) == Broken::Late && !deadline.over() => {
                check_interrupt()?;
            }
            Err(errno) => return Err(Broken::of(errno)),
        }
    }
    Ok(())
}

/// Whether this process does not want to wait any longer.
pub(super) fn check_interrupt() -> Result<(), Broken> {
    match INTERRUPTED.get().is_some_and(|interrupted| interrupted()) {
        true => Err(Broken::Interrupted),
        false => Ok(()),
    }
}

/// Gives the other process a file descriptor (`SCM_RIGHTS`, unix(7)); both own one then.
pub(super) fn send_fd(
    stream: &UnixStream,
    fd: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<(), Broken> {
    let fds = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    loop {
        stream.set_write_timeout(Some(deadline.left())).map_err(|e| Broken::io(&e))?;
        // A byte goes with it: rights alone are no message.
        let byte = [IoSlice::new(&[0])];
        match socket::sendmsg::<()>(
            stream.as_raw_fd(),
            &byte,
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) if !deadline.over() => {}
            Err(errno) => return Err(Broken::of(errno)),
        }
    }
}

/// Takes what [`send_fd`] gave.
pub(super) fn receive_fd(stream: &UnixStream, deadline: Deadline) -> Result<OwnedFd, Broken> {
    loop {
        stream.set_read_timeout(Some(deadline.left())).map_err(|e| Broken::io(&e))?;
        let mut byte = [0u8; 1];
        let mut iov = [IoSliceMut::new(&mut byte)];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            match socket::recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut space), flags) {
                Ok(message) if message.bytes == 0 => return Err(Broken::Gone),
                Ok(message) => message,
                Err(Errno::EINTR) if !deadline.over() => continue,
                Err(errno) => return Err(Broken::of(errno)),
            };
        // With one descriptor there is nothing that the kernel could have let in and cut the rest.
        if message.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(Broken::NoRoom);
        }
        let mut fds = Vec::new();
        for control in message.cmsgs().map_err(Broken::of)? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just made these descriptors for this process, and nobody else knows them.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        return match (fds.pop(), fds.is_empty()) {
            (Some(fd), true) => Ok(fd),
            _ => {
                Err(Broken::Bad("a message that should carry one file descriptor does not".into()))
            }
        };
    }
}

/// Whether the other end of a socket is closed, and nothing that it has sent is left. Without waiting.
pub(super) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match socket::recv(socket.as_raw_fd(), &mut [0], look) {
        Ok(n) => n == 0,
        Err(errno) => !matches!(errno, Errno::EAGAIN | Errno::EINTR),
    }
}

/// Whether the process at the other end belongs to the user of this one.
pub(super) fn same_user(stream: &UnixStream) -> bool {
    let theirs = socket::getsockopt(stream, sockopt::PeerCredentials);
    theirs.is_ok_and(|c| c.uid() == nix::sys::socket::UnixCredentials::new().uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn soon() -> Deadline {
        Deadline::within(Duration::from_secs(5))
    }

    #[test]
    fn waits_end_where_somebody_says_so() {
        static ASKED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        // Other tests of this process wait for less than that, or for what comes.
        ask_while_waiting(|| {
            let here = std::thread::current().name().is_some_and(|n| n.ends_with("says_so"));
            here && ASKED.swap(true, std::sync::atomic::Ordering::Relaxed)
        });
        let (a, _b) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        assert_eq!(
            receive(&a, Deadline::within(Duration::from_secs(60))),
            Err(Broken::Interrupted)
        );
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, b"one", soon()).unwrap();
        send(&a, b"", soon()).unwrap();
        let large: Vec<u8> = (0..MAX_FRAME).map(|i| i as u8).collect();
        send(&a, &large, soon()).unwrap();
        assert_eq!(receive(&b, soon()).unwrap(), b"one");
        assert_eq!(receive(&b, soon()).unwrap(), b"");
        assert_eq!(receive(&b, soon()).unwrap(), large);
    }

    #[test]
    fn silence_death_and_nonsense_are_told_apart() {
        let (a, b) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        let limit = Deadline::within(Duration::from_millis(50));
        assert_eq!(receive(&b, limit), Err(Broken::Late));
        assert!(begin.elapsed() < Duration::from_secs(2));
        (&a).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(receive(&b, soon()), Err(Broken::Bad(_))));
        drop(a);
        assert_eq!(receive(&b, soon()), Err(Broken::Gone));
        assert_eq!(send(&b, b"x", soon()), Err(Broken::Gone));
        assert!(matches!(send(&b, &vec![0; MAX_FRAME + 1], soon()), Err(Broken::Bad(_))));
    }

    #[test]
    fn a_descriptor_is_the_same_file_on_the_other_side() {
        let (a, b) = UnixStream::pair().unwrap();
        let fd =
            nix::sys::memfd::memfd_create("t", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(b"shared").unwrap();
        send_fd(&a, file.as_fd(), soon()).unwrap();
        send(&a, b"after", soon()).unwrap();
        let theirs = std::fs::File::from(receive_fd(&b, soon()).unwrap());
        let mut text = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&theirs, &mut text, 0).unwrap();
        assert_eq!(&text, b"shared");
        // The byte that carried it is not part of what follows.
        assert_eq!(receive(&b, soon()).unwrap(), b"after");
        send(&a, b"", soon()).unwrap();
        assert!(matches!(receive_fd(&b, soon()), Err(Broken::Bad(_))));
        assert!(same_user(&a));
    }
}
