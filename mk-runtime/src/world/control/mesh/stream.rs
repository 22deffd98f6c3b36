//! A connection to a process of another host, as the thread has it that reads and writes it.

use super::super::tcp::{HEAD, Link, length};
use super::super::wire::Broken;
use super::far::Far;
use super::message::{MAX_MESSAGE, Message};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{self, MsgFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at once, and messages that are written.
const PIECE: usize = 64 << 10;
const BATCH: usize = 64;

/// How connections between hosts are kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Keeping {
    /// A sign of life is sent after so much silence of this end.
    pub ping: Duration,
    /// A peer that has said nothing for so long is gone.
    pub silence: Duration,
}

impl Default for Keeping {
    /// 1 s, and 10 s.
    fn default() -> Keeping {
        Keeping { ping: Duration::from_secs(1), silence: Duration::from_secs(10) }
    }
}

/// Cuts a stream of bytes into frames: a length of 4 bytes, a tag of 32, and as many bytes. Nothing is kept beyond one
/// frame of the most bytes and what has come behind it.
#[derive(Debug)]
pub struct Frames {
    most: usize,
    bytes: Vec<u8>,
    /// Of `bytes`, those that were handed out.
    read: usize,
}

impl Frames {
    /// With at most so many bytes of content.
    pub fn new(most: usize) -> Frames {
        Frames { most, bytes: Vec::new(), read: 0 }
    }

    /// Takes bytes as they come.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Head and content of the next frame, when all of it is here.
    ///
    /// # Errors
    /// What is wrong with its length.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, String> {
        let rest = &self.bytes[self.read..];
        let Some((head, behind)) = rest.split_at_checked(HEAD) else { return Ok(None) };
        let length = length(head, self.most).map_err(|broken| match broken {
            Broken::Bad(what) => what,
            other => format!("{other:?}"),
        })?;
        let Some(content) = behind.get(..length) else { return Ok(None) };
        self.read += HEAD + length;
        Ok(Some(Frame { head, content }))
    }
}

/// A frame of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Length and tag.
    pub head: &'a [u8],
    /// What it carries.
    pub content: &'a [u8],
}

/// See the module.
pub(in crate::world) struct Stream {
    pub far: Arc<Far>,
    link: Link,
    keeping: Keeping,
    frames: Frames,
    /// Bytes that the socket did not take yet.
    unsent: Vec<u8>,
    /// When this end said something last, and the other one.
    said: Instant,
    heard: Instant,
}

impl Stream {
    /// Of a peer that may say nothing for so long first: it still waits for others.
    pub fn new(
        link: Link,
        far: Arc<Far>,
        keeping: Keeping,
        patience: Duration,
    ) -> std::io::Result<Stream> {
        link.stream.set_nonblocking(true)?;
        let now = Instant::now();
        let (frames, unsent, heard) = (Frames::new(MAX_MESSAGE), Vec::new(), now + patience);
        Ok(Stream { far, link, keeping, frames, unsent, said: now, heard })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.stream.as_fd()
    }

    /// What is waited for.
    pub fn interest(&self) -> PollFlags {
        if self.is_quiet() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// When it wants to be looked at again, whether or not anything comes.
    pub fn due(&self) -> Instant {
        (self.said + self.keeping.ping).min(self.heard + self.keeping.silence)
    }

    /// Whether everything that was said has been given to the system.
    pub fn is_quiet(&self) -> bool {
        self.unsent.is_empty() && self.far.is_quiet()
    }

    /// Writes what is in the outbox, and a sign of life where it is time for one.
    pub fn write(&mut self) -> Result<(), Broken> {
        for _ in 0..BATCH {
            if !self.flush()? {
                return Ok(());
            }
            let message = match self.far.next() {
                Some(message) => message,
                None if self.said.elapsed() >= self.keeping.ping => Message::Alive.to_bytes(),
                None => return Ok(()),
            };
            self.unsent = self.link.frame(&message);
        }
        self.flush().map(|_| ())
    }

    /// Whether nothing is left over.
    fn flush(&mut self) -> Result<bool, Broken> {
        while !self.unsent.is_empty() {
            let fd = self.link.stream.as_raw_fd();
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            match socket::send(fd, &self.unsent, flags) {
                Ok(n) => {
                    self.unsent.drain(..n.min(self.unsent.len()));
                    self.said = Instant::now();
                }
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Broken::of(errno)),
            }
        }
        Ok(true)
    }

    /// Reads what has come. Parts of calls are handed on here; other messages are the caller's.
    pub fn read(&mut self, messages: &mut Vec<Message>) -> Result<(), Broken> {
        let mut piece = [0; 4096];
        let mut read = 0;
        while read < PIECE {
            let fd = self.link.stream.as_raw_fd();
            match socket::recv(fd, &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Broken::Gone),
                Ok(n) => {
                    read += n;
                    self.heard = Instant::now();
                    self.frames.take(&piece[..n]);
                    self.messages(messages)?;
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Broken::of(errno)),
            }
        }
        if self.heard.elapsed() > self.keeping.silence { Err(Broken::Late) } else { Ok(()) }
    }

    fn messages(&mut self, out: &mut Vec<Message>) -> Result<(), Broken> {
        while let Some(Frame { head, content }) = self.frames.frame().map_err(Broken::Bad)? {
            self.link.is_next(head, content)?;
            match Message::read(content) {
                Some(Message::Call(part)) => {
                    if !self.far.came(part) {
                        let what = "more parts of calls than anybody looks at".into();
                        return Err(Broken::Bad(what));
                    }
                }
                Some(message) => out.push(message),
                None => return Err(Broken::Bad("a message that makes no sense".into())),
            }
        }
        Ok(())
    }

    /// Says that nothing follows.
    pub fn finish(&self) {
        // The peer may have gone before.
        let _ = self.link.stream.shutdown(std::net::Shutdown::Write);
    }
}
