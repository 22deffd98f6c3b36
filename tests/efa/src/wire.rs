//! Datagrams of Unix sockets between processes: each has one, named by its number.

use crate::fake::{Message, Op, Others, Sent};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Most bytes of a write: with its header less than a socket sends by default.
pub const MAX_BYTES: usize = 128 << 10;
/// Words of a header: kind, number, from, to, at, key, whether there is data, data, context, success.
const HEADER: usize = 10;

pub struct Sockets {
    own: UnixDatagram,
    buffer: Vec<u8>,
}

fn address(process: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("mk-efa-{process}"))
}

impl Sockets {
    /// Nothing where the system has no sockets: then there are no other processes.
    pub fn open() -> Option<Sockets> {
        let own = UnixDatagram::bind_addr(&address(std::process::id()).ok()?).ok()?;
        own.set_nonblocking(true).ok()?;
        Some(Sockets { own, buffer: vec![0; MAX_BYTES + 8 * HEADER] })
    }
}

impl Others for Sockets {
    fn send(&mut self, process: u32, message: &Message) -> Sent {
        let Ok(to) = address(process) else { return Sent::Gone };
        match self.own.send_to_addr(&bytes(message), &to) {
            Ok(_) => Sent::Taken,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Sent::Later,
            Err(_) => Sent::Gone,
        }
    }

    fn receive(&mut self) -> Option<Message> {
        let n = self.own.recv(&mut self.buffer).ok()?;
        message(&self.buffer[..n])
    }
}

fn bytes(message: &Message) -> Vec<u8> {
    let (words, rest): ([u64; HEADER], &[u8]) = match message {
        Message::Write(op) => {
            let (has, data) = (u64::from(op.data.is_some()), op.data.unwrap_or(0));
            let context = op.context as u64;
            let words = [0, op.number, op.from, op.to, op.at, op.key, has, data, context, 0];
            (words, &op.sent)
        }
        Message::Ended { from, context, fine } => {
            ([1, 0, *from, 0, 0, 0, 0, 0, *context as u64, u64::from(*fine)], &[])
        }
    };
    let mut out: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    out.extend(rest);
    out
}

fn message(bytes: &[u8]) -> Option<Message> {
    let (header, rest) = bytes.split_at_checked(8 * HEADER)?;
    let mut words = [0; HEADER];
    for (word, bytes) in words.iter_mut().zip(header.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    }
    let [kind, number, from, to, at, key, has, data, context, fine] = words;
    let (data, context) = ((has == 1).then_some(data), context as usize);
    Some(match kind {
        0 => {
            let (sent, bytes, source, due) = (rest.to_vec(), rest.len(), 0, 0);
            Message::Write(Op {
                number,
                from,
                to,
                source,
                sent,
                bytes,
                at,
                key,
                data,
                context,
                due,
            })
        }
        _ => Message::Ended { from, context, fine: fine == 1 },
    })
}
