//! What processes of different hosts say to each other.

use super::super::wire;

/// Most bytes of a message: a part of a collective call, and what it is.
pub(super) const MAX_MESSAGE: usize = wire::MAX_FRAME + 1;
/// Most launches in a message.
const MAX_LAUNCHES: usize = 256;
/// Most bytes of a text.
const MAX_TEXT: usize = 2048;

/// A message between two processes of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Nothing but a sign of life.
    Alive,
    /// A part of a collective call.
    Call(Vec<u8>),
    /// Launches that the sender has made, by the number that all ranks give their instances.
    Launched {
        /// Which launch the first one is, counted from 1.
        first: u64,
        /// Their instances, at least one.
        instances: Vec<u32>,
    },
    /// Launches of the sender behind this one need not be those of others.
    Uncounted(u64),
    /// Kernels of an instance are to give up.
    GiveUp {
        /// The instance.
        instance: u32,
        /// The rank for whose sake.
        by: u32,
        /// What happened to it.
        why: String,
    },
    /// The sender leaves of its own will, after so many launches.
    Leaves(u64),
}

impl Message {
    /// Its bytes. Longer lists and texts than a message may have are cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind()];
        match self {
            Message::Alive => {}
            Message::Call(part) => out.extend(part),
            Message::Launched { first, instances } => {
                out.extend(first.to_le_bytes());
                out.extend(instances.iter().take(MAX_LAUNCHES).flat_map(|i| i.to_le_bytes()));
            }
            Message::Uncounted(launch) | Message::Leaves(launch) => {
                out.extend(launch.to_le_bytes());
            }
            Message::GiveUp { instance, by, why } => {
                out.extend(instance.to_le_bytes());
                out.extend(by.to_le_bytes());
                let end = (0..=MAX_TEXT.min(why.len())).rev().find(|n| why.is_char_boundary(*n));
                out.extend(&why.as_bytes()[..end.unwrap_or(0)]);
            }
        }
        out
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Alive => 0,
            Message::Call(_) => 1,
            Message::Launched { .. } => 2,
            Message::Uncounted(_) => 3,
            Message::GiveUp { .. } => 4,
            Message::Leaves(_) => 5,
        }
    }

    /// Reads a message. None for everything that [`Message::to_bytes`] does not write.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let (kind, rest) = bytes.split_first()?;
        if bytes.len() > MAX_MESSAGE {
            return None;
        }
        Some(match kind {
            0 if rest.is_empty() => Message::Alive,
            1 => Message::Call(rest.to_vec()),
            2 => {
                let (first, rest) = number(rest)?;
                let words = rest.chunks_exact(4);
                let whole = words.remainder().is_empty() && !rest.is_empty();
                (whole && rest.len() <= 4 * MAX_LAUNCHES).then_some(())?;
                Message::Launched { first, instances: words.filter_map(word).collect() }
            }
            3 | 5 => {
                let (launch, rest) = number(rest)?;
                rest.is_empty().then_some(())?;
                if *kind == 3 { Message::Uncounted(launch) } else { Message::Leaves(launch) }
            }
            4 => {
                let (words, text) = rest.split_at_checked(8)?;
                let (instance, by) = (word(words)?, word(&words[4..])?);
                (text.len() <= MAX_TEXT).then_some(())?;
                let why = std::str::from_utf8(text).ok()?.to_string();
                Message::GiveUp { instance, by, why }
            }
            _ => return None,
        })
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk::<8>().map(|(n, rest)| (u64::from_le_bytes(*n), rest))
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<4>().map(|n| u32::from_le_bytes(*n))
}
