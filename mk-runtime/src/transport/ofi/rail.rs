//! A rail: an endpoint on one device, the writes that it has under way, and where it is in a card.
//!
//! In a card the first rail has the card's own base and key. Its address field is
//!
//! ```text
//! rails u8 | length u16, address of the first | of each other: base u64, key u64, length u16, address
//! ```

use super::objects::Objects;
use super::provider::Found;
use super::sys;
use crate::error::TransportError;
use crate::transport::card::{ConnectionCard, Key, Kind};
use crate::transport::{NetMemory, Notify, Write, random_key};
use std::ffi::c_void;

/// Most completions of one call, and calls of one poll.
const BATCH: usize = 64;
const BATCHES: usize = 16;

pub(super) struct Rail {
    pub objects: Objects,
    /// What operations point to; the last ones are those of receives. Never moved.
    contexts: Box<[Context]>,
    /// By context: the write that has it.
    writes: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// What byte 0 of the arena is called, and its key.
    region: Option<(u64, Key)>,
}

#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub token: u64,
    pub peer: u32,
    /// Reported as failed; the provider may still use its context.
    pub given_up: bool,
}

/// Where a peer's rail is, and its arena there.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As the rail's endpoint counts addresses.
    pub number: u64,
    pub base: u64,
    pub key: Key,
}

/// What a completion says.
pub(super) enum Seen {
    Arrived(u32),
    Ended(Pending),
    Failed(Pending, String),
    /// An operation of a peer that this end refused.
    Refused(String),
}

/// Memory that some providers use while an operation runs (`fi_context2`).
#[repr(C)]
#[derive(Clone)]
struct Context([*mut c_void; 8]);

// SAFETY: memory of providers, which are used by one thread at a time.
unsafe impl Send for Context {}

impl Rail {
    pub fn open(found: Found, depth: usize) -> Result<Rail, TransportError> {
        let answer = &found.answer;
        let depth = depth.clamp(1, answer.tx_size);
        let receives = match answer.mode & sys::FI_RX_CQ_DATA {
            0 => 0,
            _ => answer.rx_size,
        };
        let objects = Objects::open(found, 4 * (depth + receives).next_power_of_two())?;
        let mut rail = Rail {
            objects,
            contexts: vec![Context([std::ptr::null_mut(); 8]); depth + receives].into(),
            writes: vec![None; depth],
            free: (0..depth).collect(),
            region: None,
        };
        for i in depth..depth + receives {
            rail.receive(i)?;
        }
        Ok(rail)
    }

    /// Most writes under way.
    pub fn depth(&self) -> usize {
        self.writes.len()
    }

    /// Writes under way.
    pub fn under_way(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.writes.iter_mut().flatten()
    }

    /// Forgets all writes, once the endpoint is closed.
    pub fn take_all(&mut self) -> impl Iterator<Item = Pending> {
        self.writes.iter_mut().filter_map(Option::take)
    }

    pub fn register(&mut self, memory: &dyn NetMemory) -> Result<(), TransportError> {
        // Where the provider does not choose keys. Some have short ones.
        let key = random_key()? & self.objects.key_mask();
        let (base, key) = self.objects.register(memory, key)?;
        self.region = Some((base, Key(key)));
        Ok(())
    }

    /// For cards: the address, and the arena.
    pub fn target(&mut self) -> Result<(Vec<u8>, Target), TransportError> {
        let (base, key) = self.region.ok_or_else(|| TransportError::State {
            transport: self.objects.name().into(),
            what: "a rail without an arena".into(),
        })?;
        Ok((self.objects.address()?, Target { number: 0, base, key }))
    }

    fn context(&mut self, i: usize) -> *mut c_void {
        (&raw mut self.contexts[i]).cast()
    }

    /// The context that an operation had.
    fn index(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let i = offset / size_of::<Context>();
        (offset.is_multiple_of(size_of::<Context>()) && i < self.contexts.len()).then_some(i)
    }

    fn receive(&mut self, i: usize) -> Result<(), TransportError> {
        let context = self.context(i);
        // SAFETY: the context is that of this receive alone, and lives as long as the endpoint.
        let code = unsafe { self.objects.receive(context) };
        self.objects.check("fi_recv", code as i32)
    }

    /// Starts a write: 0 or an error number, or nothing where it has as many as it may.
    ///
    /// # Safety
    /// The write's bytes from `from` on are in the arena.
    pub unsafe fn post(&mut self, write: &Write, from: *const u8, to: &Target) -> Option<isize> {
        let i = self.free.pop()?;
        let immediate = match write.notify {
            Notify::Immediate(data) => Some(data),
            Notify::Nothing | Notify::Word { .. } => None,
        };
        let context = self.context(i);
        let remote = (to.number, to.base + write.to, to.key.0);
        // SAFETY: as the caller says; the context is free.
        let code =
            unsafe { self.objects.write((from, write.bytes as usize), immediate, remote, context) };
        match code {
            0 => {
                let new = Pending { token: write.token, peer: write.peer, given_up: false };
                self.writes[i] = Some(new);
            }
            _ => self.free.push(i),
        }
        Some(-code)
    }

    /// Makes progress, and adds what has happened.
    pub fn poll(&mut self, seen: &mut Vec<Seen>) -> Result<(), TransportError> {
        // SAFETY: plain numbers and pointers.
        let mut entries: [sys::CqEntry; BATCH] = unsafe { std::mem::zeroed() };
        for _ in 0..BATCHES {
            match self.objects.completions(&mut entries) {
                n if n > 0 => {
                    for entry in &entries[..n as usize] {
                        self.completed(entry, seen)?;
                    }
                }
                0 => break,
                code if -code == sys::EAGAIN => break,
                code if -code == sys::EAVAIL => self.failed(seen)?,
                code => self.objects.check("fi_cq_read", code as i32)?,
            }
        }
        Ok(())
    }

    fn completed(
        &mut self,
        entry: &sys::CqEntry,
        seen: &mut Vec<Seen>,
    ) -> Result<(), TransportError> {
        let arrived = entry.flags & sys::FI_REMOTE_CQ_DATA != 0;
        if arrived {
            // Immediates have 32 bits; providers carry up to 64.
            seen.push(Seen::Arrived(entry.data as u32));
        }
        match self.index(entry.context) {
            Some(i) if i >= self.writes.len() => self.receive(i)?,
            Some(i) if !arrived => seen.extend(self.ended(i).map(Seen::Ended)),
            _ => {}
        }
        Ok(())
    }

    /// The write that had a context, once.
    fn ended(&mut self, i: usize) -> Option<Pending> {
        let write = self.writes[i].take()?;
        self.free.push(i);
        Some(write)
    }

    /// The failed operation at the head of the queue. One that is not of this rank is a peer's that this end refused.
    fn failed(&mut self, seen: &mut Vec<Seen>) -> Result<(), TransportError> {
        let Some(error) = self.objects.failure() else { return Ok(()) };
        let what = self.objects.found.library.text(error.err.saturating_abs());
        match self.index(error.context) {
            Some(i) if i < self.writes.len() => {
                seen.extend(self.ended(i).map(|write| Seen::Failed(write, what)));
            }
            Some(i) if error.err != sys::ECANCELED => return self.receive(i),
            _ => seen.push(Seen::Refused(what)),
        }
        Ok(())
    }
}

/// The card of an end with these rails.
pub(super) fn card(
    rank: u32,
    bytes: u64,
    rails: &[(Vec<u8>, Target)],
) -> Result<ConnectionCard, TransportError> {
    let mut address = vec![rails.len() as u8];
    for (i, (of, target)) in rails.iter().enumerate() {
        if i > 0 {
            address.extend(target.base.to_le_bytes());
            address.extend(target.key.0.to_le_bytes());
        }
        address.extend((of.len() as u16).to_le_bytes());
        address.extend(of);
    }
    let (base, key) = rails.first().map_or((0, Key(0)), |(_, t)| (t.base, t.key));
    Ok(ConnectionCard { kind: Kind::Ofi, rank, bytes, base, key, address })
}

/// The rails of a peer's card, which are as many as the own ones.
///
/// # Errors
/// [`TransportError::Card`] for everything that [`card`] does not write.
pub(super) fn read(
    card: &ConnectionCard,
    rails: usize,
) -> Result<Vec<(Vec<u8>, Target)>, TransportError> {
    let bad = |what: String| TransportError::Card { what };
    let early = || bad("the address of a rail ends early".into());
    let Some((n, mut rest)) = card.address.split_first() else { return Err(early()) };
    if usize::from(*n) != rails {
        return Err(bad(format!("{n} rails, and this end has {rails}")));
    }
    let mut out = Vec::new();
    for i in 0..rails {
        let (mut base, mut key) = (card.base, card.key);
        if i > 0 {
            let (b, behind) = rest.split_first_chunk().ok_or_else(early)?;
            let (k, behind) = behind.split_first_chunk().ok_or_else(early)?;
            (base, key, rest) = (u64::from_le_bytes(*b), Key(u64::from_le_bytes(*k)), behind);
        }
        let (length, behind) = rest.split_first_chunk().ok_or_else(early)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (address, behind) = behind.split_at_checked(length).ok_or_else(early)?;
        if base.checked_add(card.bytes).is_none() {
            return Err(bad(format!("{} bytes at {base:#x}", card.bytes)));
        }
        out.push((address.to_vec(), Target { number: 0, base, key }));
        rest = behind;
    }
    match rest {
        [] => Ok(out),
        more => Err(bad(format!("{} bytes behind its rails", more.len()))),
    }
}
