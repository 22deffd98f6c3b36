//! Cards: what a rank needs to know of another to write into its arena. Bytes from a peer, so that reading them trusts
//! nothing.
//!
//! ```text
//! "mkcd" | version u8 | transport u8 | 0 u16 | rank u32 | bytes u64 | base u64 | key u64 | address length u16 | address
//! ```

use super::TransportError;
use std::fmt;

const MAGIC: [u8; 4] = *b"mkcd";
const VERSION: u8 = 1;
/// Longest address: libfabric's `ofi_rxm` has 16 bytes, `shm` a name of up to 256, `efa` 32.
pub const MAX_ADDRESS: usize = 512;
const HEAD: usize = 4 + 1 + 1 + 2 + 4 + 8 + 8 + 8 + 2;
/// Longest card.
pub const MAX_CARD: usize = HEAD + MAX_ADDRESS;

/// The kind of transport that a card is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`loopback`](super::loopback).
    Loopback = 1,
    /// [`ofi`](super::ofi).
    Ofi = 2,
    /// InfiniBand verbs.
    Verbs = 3,
}

/// The key of an arena. Only peers have it: it is in cards, and in no message or log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub u64);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// A card, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCard {
    /// Of which transport.
    pub kind: Kind,
    /// The rank that made it.
    pub rank: u32,
    /// Length of its arena.
    pub bytes: u64,
    /// What byte 0 of the arena is called in writes: 0, or its address.
    pub base: u64,
    /// The key that writes must have.
    pub key: Key,
    /// Where the rank is, as the network says it.
    pub address: Vec<u8>,
}

impl ConnectionCard {
    /// The bytes of a card.
    ///
    /// # Errors
    /// For an address that is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TransportError> {
        let Some(length) =
            u16::try_from(self.address.len()).ok().filter(|n| *n as usize <= MAX_ADDRESS)
        else {
            return Err(bad(format!("an address of {} bytes", self.address.len())));
        };
        let mut out = Vec::with_capacity(HEAD + self.address.len());
        out.extend(MAGIC);
        out.extend([VERSION, self.kind as u8, 0, 0]);
        out.extend(self.rank.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.base.to_le_bytes());
        out.extend(self.key.0.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(&self.address);
        Ok(out)
    }

    /// The first of contiguous cards, and the others.
    ///
    /// # Errors
    /// [`TransportError::Card`] where it ends early.
    pub fn split(cards: &[u8]) -> Result<(&[u8], &[u8]), TransportError> {
        let mut rest = cards.get(HEAD - 2..).unwrap_or(&[]);
        let length = HEAD + usize::from(u16::from_le_bytes(take(&mut rest)?));
        cards.split_at_checked(length).ok_or_else(|| bad("one of several ends early".into()))
    }

    /// Reads a card of this transport.
    ///
    /// # Errors
    /// [`TransportError::Card`] for everything that [`ConnectionCard::to_bytes`] does not write.
    pub fn read(kind: Kind, bytes: &[u8]) -> Result<ConnectionCard, TransportError> {
        let mut rest = bytes;
        if take::<4>(&mut rest)? != MAGIC {
            return Err(bad("it does not begin as one".into()));
        }
        let [version, of, zero, zero2] = take::<4>(&mut rest)?;
        if version != VERSION {
            return Err(bad(format!(
                "version {version}, and this is version {VERSION} of mk's cards"
            )));
        }
        if of != kind as u8 || zero != 0 || zero2 != 0 {
            return Err(bad(format!("it is of transport {of}, and this end is {kind:?}")));
        }
        let rank = u32::from_le_bytes(take(&mut rest)?);
        let [bytes, base, key] =
            [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?].map(u64::from_le_bytes);
        let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
        if length > MAX_ADDRESS || length != rest.len() {
            return Err(bad(format!("an address of {length} bytes in {} bytes", rest.len())));
        }
        if base.checked_add(bytes).is_none() {
            return Err(bad(format!("{bytes} bytes at {base:#x}")));
        }
        Ok(ConnectionCard { kind, rank, bytes, base, key: Key(key), address: rest.to_vec() })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], TransportError> {
    let Some((first, behind)) = rest.split_first_chunk::<N>() else {
        return Err(bad(format!("it ends {} bytes early", N - rest.len())));
    };
    *rest = behind;
    Ok(*first)
}

fn bad(what: String) -> TransportError {
    TransportError::Card { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> ConnectionCard {
        ConnectionCard {
            kind: Kind::Ofi,
            rank: 3,
            bytes: 4096,
            base: 0x7f00_0000_0000,
            key: Key(9),
            address: vec![1, 2, 3],
        }
    }

    #[test]
    fn a_card_reads_back() {
        let bytes = card().to_bytes().unwrap();
        assert_eq!(ConnectionCard::read(Kind::Ofi, &bytes).unwrap(), card());
        let none = ConnectionCard { address: vec![], ..card() };
        assert_eq!(ConnectionCard::read(Kind::Ofi, &none.to_bytes().unwrap()).unwrap(), none);
        assert!(ConnectionCard { address: vec![0; MAX_ADDRESS + 1], ..card() }.to_bytes().is_err());
    }

    #[test]
    fn keys_are_not_shown() {
        let key = 0xfeed_0123_4567_89ab_u64;
        let card = ConnectionCard { key: Key(key), ..card() };
        let hidden = |text: String| {
            assert!(
                ![format!("{key}"), format!("{key:x}")].iter().any(|k| text.contains(k)),
                "{text}"
            );
        };
        hidden(format!("{card:?} {card:#?}"));
        // Nor by the error of a card that is changed on its way.
        let bytes = card.to_bytes().unwrap();
        for i in 0..bytes.len() {
            let mut other = bytes.clone();
            other[i] ^= 0x81;
            if let Err(error) = ConnectionCard::read(Kind::Ofi, &other) {
                hidden(format!("{error} {error:?}"));
            }
        }
    }

    #[test]
    fn what_is_no_card_is_refused() {
        let good = card().to_bytes().unwrap();
        for n in 0..good.len() {
            assert!(ConnectionCard::read(Kind::Ofi, &good[..n]).is_err(), "{n} bytes");
        }
        let longer = [&good[..], &[0]].concat();
        assert!(ConnectionCard::read(Kind::Ofi, &longer).is_err());
        assert!(
            ConnectionCard::read(Kind::Loopback, &good)
                .unwrap_err()
                .to_string()
                .contains("transport 2")
        );
        // The end of an arena has an address.
        let mut wraps = good.clone();
        wraps[12..20].fill(0xff);
        assert!(ConnectionCard::read(Kind::Ofi, &wraps).is_err());
        for i in 0..8 {
            let mut other = good.clone();
            other[i] ^= 0x80;
            assert!(ConnectionCard::read(Kind::Ofi, &other).is_err(), "byte {i}");
        }
    }
}
