//! A connection of which both ends have shown that they know a secret: the hand-shake, and frames with a length within
//! bounds and a tag of the connection's own key.

use super::super::wire::{Broken, Deadline, fill, put};
use super::auth::{Key, TAG, Token, nonce};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// What one newcomer may take to say who it is.
pub(in crate::world) const HELLO: Duration = Duration::from_secs(2);
/// How a newcomer begins. Changes with what follows.
pub(super) const MAGIC: &[u8; 8] = b"mk-tcp 2";
/// What a newcomer says first: magic, its rank, ranks of the run, nonce.
pub(super) const GREETING: usize = 8 + 4 + 4 + 32;
/// Bytes before a frame's content: its length, and its tag.
pub(in crate::world) const HEAD: usize = 4 + TAG;

/// Who an end is, and what it has to show.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct End<'a> {
    pub rank: u32,
    pub ranks: u32,
    pub token: &'a Token,
}

/// Hears who a newcomer is, and shows that this is the rank that it wants.
pub(in crate::world) fn welcome(stream: TcpStream, me: End<'_>) -> Result<(u32, Link), Broken> {
    let deadline = Deadline::within(HELLO);
    let _ = stream.set_nodelay(true);
    stream.set_nonblocking(false).map_err(|e| Broken::io(&e))?;
    let mut greeting = [0; GREETING];
    fill(&stream, &mut greeting, deadline)?;
    let (rank, ranks) = (word(&greeting[8..]), word(&greeting[12..]));
    if greeting[..8] != *MAGIC || ranks != me.ranks || rank == me.rank || rank >= ranks {
        return Err(Broken::Bad("it is no rank of this run".into()));
    }
    let mine = nonce().map_err(|e| Broken::io(&e))?;
    let session = me.token.session(&greeting, &mine);
    put(&stream, &mine, deadline)?;
    put(&stream, &session.shows(me.rank), deadline)?;
    let mut shown = [0; TAG];
    fill(&stream, &mut shown, deadline)?;
    if !session.is_shown(rank, &shown) {
        return Err(Broken::Bad("it does not know the token".into()));
    }
    Ok((rank, Link { stream, key: session.key(), sent: 0, received: 0, first: 0, second: 1 }))
}

/// Says who this is to rank `to`, which listens, and does not believe it before it has shown that it knows the secret.
pub(in crate::world) fn introduce(
    stream: TcpStream,
    me: End<'_>,
    to: u32,
    deadline: Deadline,
) -> Result<Link, Broken> {
    let _ = stream.set_nodelay(true);
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(MAGIC);
    greeting[8..12].copy_from_slice(&me.rank.to_le_bytes());
    greeting[12..16].copy_from_slice(&me.ranks.to_le_bytes());
    greeting[16..].copy_from_slice(&nonce().map_err(|e| Broken::io(&e))?);
    put(&stream, &greeting, deadline)?;
    let (mut theirs, mut shown) = ([0; 32], [0; TAG]);
    fill(&stream, &mut theirs, deadline)?;
    fill(&stream, &mut shown, deadline)?;
    let session = me.token.session(&greeting, &theirs);
    if !session.is_shown(to, &shown) {
        return Err(Broken::Bad("who listens there does not know the token".into()));
    }
    put(&stream, &session.shows(me.rank), deadline)?;
    Ok(Link { stream, key: session.key(), sent: 0, received: 0, first: 1, second: 0 })
}

/// Connects, at the latest when the time is over.
pub(in crate::world) fn reach(to: SocketAddr, deadline: Deadline) -> Result<TcpStream, Broken> {
    TcpStream::connect_timeout(&to, deadline.left()).map_err(|e| Broken::io(&e))
}

/// A listener on a port of its own, at an address of this host.
pub(in crate::world) fn listen(at: IpAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((at, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b))
}

/// A connection whose both ends have shown that they know the token.
#[derive(Debug)]
pub(in crate::world) struct Link {
    pub stream: TcpStream,
    pub(super) key: Key,
    pub(super) sent: u64,
    received: u64,
    /// Directions of what is sent and received, so that neither end takes its own frames for the other's.
    pub(super) first: u8,
    second: u8,
}

impl Link {
    /// The next frame that this end sends.
    pub fn frame(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend(self.key.tag(self.first, self.sent, bytes));
        frame.extend(bytes);
        self.sent += 1;
        frame
    }

    /// Whether this is the other end's next frame, by its head.
    pub fn is_next(&mut self, head: &[u8], bytes: &[u8]) -> Result<(), Broken> {
        let tag = head.get(4..HEAD).unwrap_or_default();
        if !self.key.is_tag(self.second, self.received, bytes, tag) {
            return Err(Broken::Bad("a frame that the other end did not send".into()));
        }
        self.received += 1;
        Ok(())
    }

    pub fn send(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
        let frame = self.frame(bytes);
        put(&self.stream, &frame, deadline)
    }

    pub fn receive(&mut self, most: usize, deadline: Deadline) -> Result<Vec<u8>, Broken> {
        let mut head = [0; HEAD];
        fill(&self.stream, &mut head, deadline)?;
        let mut bytes = vec![0; length(&head, most)?];
        fill(&self.stream, &mut bytes, deadline)?;
        self.is_next(&head, &bytes)?;
        Ok(bytes)
    }
}

/// The length that a frame's head says.
pub(in crate::world) fn length(head: &[u8], most: usize) -> Result<usize, Broken> {
    match word(head) as usize {
        n if n <= most => Ok(n),
        n => Err(Broken::Bad(format!("a frame of {n} bytes is longer than {most}"))),
    }
}
