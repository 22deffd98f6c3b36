//! The address in a card of transport `verbs`: the port, and a queue pair for each lane. Bytes from a peer, so that
//! reading them trusts nothing.
//!
//! ```text
//! ordering u8 | lanes u8 | mtu u8 | ethernet u8 | lid u16 | window u16 | gid [u8; 16] | lanes x (queue pair u32, psn u32)
//! ```

use super::MAX_LANES;
use crate::error::TransportError;
use crate::transport::Ordering;

const HEAD: usize = 8 + 16;
/// Queue pairs and packet numbers have 24 bits.
pub(super) const MASK: u32 = (1 << 24) - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub ordering: Ordering,
    /// As verbs number them: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub ethernet: bool,
    pub lid: u16,
    /// Immediates on a queue pair that may be unanswered.
    pub window: u16,
    pub gid: [u8; 16],
    pub lanes: Vec<Lane>,
}

/// A queue pair, and the number of its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub queue_pair: u32,
    pub psn: u32,
}

impl Address {
    pub fn to_bytes(&self) -> Vec<u8> {
        let ordering = match self.ordering {
            Ordering::InOrder => 0,
            Ordering::Unordered => 1,
        };
        let mut out = vec![ordering, self.lanes.len() as u8, self.mtu, self.ethernet.into()];
        out.extend(self.lid.to_le_bytes());
        out.extend(self.window.to_le_bytes());
        out.extend(self.gid);
        for lane in &self.lanes {
            out.extend(lane.queue_pair.to_le_bytes());
            out.extend(lane.psn.to_le_bytes());
        }
        out
    }

    /// # Errors
    /// [`TransportError::Card`] for everything that [`Address::to_bytes`] does not write.
    pub fn read(bytes: &[u8]) -> Result<Address, TransportError> {
        let bad = |what: String| TransportError::Card { what };
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(bad(format!("an address of {} bytes", bytes.len())));
        };
        let [ordering, n_lanes, mtu, ethernet, l0, l1, w0, w1, gid @ ..] = *head;
        let ordering = match ordering {
            0 => Ordering::InOrder,
            1 => Ordering::Unordered,
            n => return Err(bad(format!("an ordering {n}"))),
        };
        if ethernet > 1 || !(1..=5).contains(&mtu) {
            return Err(bad(format!("a link layer {ethernet} with an MTU {mtu}")));
        }
        let n = u32::from(n_lanes);
        if n == 0 || n > MAX_LANES || rest.len() != 8 * n as usize {
            return Err(bad(format!("{n} queue pairs in {} bytes", rest.len())));
        }
        let word = |b: &[u8]| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let lane = |b: &[u8]| Lane { queue_pair: word(&b[..4]), psn: word(&b[4..]) };
        let lanes: Vec<Lane> = rest.chunks_exact(8).map(lane).collect();
        if lanes.iter().any(|l| l.queue_pair > MASK || l.psn > MASK) {
            return Err(bad("a queue pair or packet number of more than 24 bits".into()));
        }
        let window = u16::from_le_bytes([w0, w1]);
        if window < 2 {
            return Err(bad(format!("a window of {window}")));
        }
        let lid = u16::from_le_bytes([l0, l1]);
        Ok(Address { ordering, mtu, ethernet: ethernet == 1, lid, window, gid, lanes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        let lane = |i| Lane { queue_pair: 0x12_3456 + i, psn: MASK - i };
        Address {
            ordering: Ordering::Unordered,
            mtu: 3,
            ethernet: true,
            lid: 0x1234,
            window: 256,
            gid: std::array::from_fn(|i| i as u8),
            lanes: (0..4).map(lane).collect(),
        }
    }

    #[test]
    fn an_address_reads_back() {
        let one = Address { lanes: address().lanes[..1].to_vec(), ..address() };
        for a in [address(), one, Address { ordering: Ordering::InOrder, ..address() }] {
            assert_eq!(Address::read(&a.to_bytes()).unwrap(), a);
        }
        let most = Address { lanes: vec![address().lanes[0]; MAX_LANES as usize], ..address() };
        assert!(most.to_bytes().len() <= crate::transport::card::MAX_ADDRESS);
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = address().to_bytes();
        for n in 0..good.len() {
            assert!(Address::read(&good[..n]).is_err(), "{n} bytes");
        }
        assert!(Address::read(&[&good[..], &[0]].concat()).is_err());
        // Ordering, lanes, MTU, link layer, window, and the high bytes of a queue pair and a packet number.
        for (at, value) in [(0, 2), (1, 0), (1, 5), (2, 0), (2, 6), (3, 2), (27, 1), (31, 1)] {
            let mut other = good.clone();
            other[at] = value;
            assert!(Address::read(&other).is_err(), "byte {at}");
        }
        let mut other = good.clone();
        other[6..8].copy_from_slice(&1u16.to_le_bytes());
        assert!(Address::read(&other).is_err());
    }
}
