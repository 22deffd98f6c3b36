//! Connecting the ends of a world: every rank gives each rank of another node a card of its own.

use crate::error::TransportError;
use crate::transport::Transport;

/// Longest card, far above what any transport makes.
const MAX_CARD: usize = 4096;

/// Ends of ranks, by rank.
pub type Ends = Vec<(u32, Box<dyn Transport>)>;

/// Connects the ends of this process's ranks, whose arenas are registered, to all ranks of other nodes of `local` ranks
/// each. Collective: `gather` gives every process the bytes of all, its own included, in the same order on each.
///
/// # Errors
/// What a transport or `gather` says; [`TransportError::Card`] for bytes that are no such message, or where a card is
/// missing.
pub fn connect<E: From<TransportError>>(
    ends: &mut Ends,
    world: u32,
    local: u32,
    mut gather: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>, E>,
) -> Result<(), E> {
    let local = local.max(1);
    let others = |rank: u32| (0..world).filter(move |p| p / local != rank / local);
    let mut mine = Vec::new();
    for (rank, end) in ends.iter_mut() {
        for peer in others(*rank) {
            let card = end.card(peer)?;
            write(&mut mine, *rank, peer, &card)?;
        }
    }
    let mut cards = Vec::new();
    for bytes in gather(&mine)? {
        read(&bytes, &mut cards)?;
    }
    for (rank, end) in ends.iter_mut() {
        for peer in others(*rank) {
            let mut of = cards.iter().filter(|c| (c.from, c.to) == (peer, *rank));
            let (Some(card), None) = (of.next(), of.next()) else {
                let what = format!("rank {peer} has made none for rank {rank}, or several");
                return Err(TransportError::Card { what }.into());
            };
            end.connect(peer, &card.bytes)?;
        }
    }
    Ok(())
}

/// A card on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressed {
    /// The rank that made it.
    pub from: u32,
    /// The rank that it is for.
    pub to: u32,
    /// See [`crate::transport::card`].
    pub bytes: Vec<u8>,
}

fn write(out: &mut Vec<u8>, from: u32, to: u32, card: &[u8]) -> Result<(), TransportError> {
    if card.len() > MAX_CARD {
        let what = format!("one of {} bytes, and {MAX_CARD} are the most", card.len());
        return Err(TransportError::Card { what });
    }
    for word in [from, to, card.len() as u32] {
        out.extend(word.to_le_bytes());
    }
    out.extend(card);
    Ok(())
}

/// Reads the cards that a process has sent, and adds them to `cards`.
///
/// # Errors
/// [`TransportError::Card`] for anything else.
pub fn read(mut bytes: &[u8], cards: &mut Vec<Addressed>) -> Result<(), TransportError> {
    let cut = || TransportError::Card { what: "the message ends in the middle of one".into() };
    while !bytes.is_empty() {
        let mut word = || -> Result<u32, TransportError> {
            let (word, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
            bytes = rest;
            Ok(u32::from_le_bytes(*word))
        };
        let (from, to, length) = (word()?, word()?, word()? as usize);
        if length > MAX_CARD {
            let what = format!("one of {length} bytes, and {MAX_CARD} are the most");
            return Err(TransportError::Card { what });
        }
        let (card, rest) = bytes.split_at_checked(length).ok_or_else(cut)?;
        cards.push(Addressed { from, to, bytes: card.to_vec() });
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, 1, 2, b"card").unwrap();
        write(&mut bytes, 3, 0, b"").unwrap();
        let mut cards = Vec::new();
        read(&bytes, &mut cards).unwrap();
        let expected = [
            Addressed { from: 1, to: 2, bytes: b"card".to_vec() },
            Addressed { from: 3, to: 0, bytes: Vec::new() },
        ];
        assert_eq!(cards, expected);
        for cut in (1..bytes.len()).filter(|n| *n != 16) {
            assert!(read(&bytes[..cut], &mut Vec::new()).is_err(), "{cut} bytes");
        }
        let long = [[0; 4], [0; 4], (MAX_CARD as u32 + 1).to_le_bytes()].concat();
        assert!(read(&long, &mut Vec::new()).is_err());
        assert!(write(&mut bytes, 0, 1, &[0; MAX_CARD + 1]).is_err());
    }
}
