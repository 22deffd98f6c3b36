//! Where the ranks' parts of symmetric memory are.

use crate::world::Topology;
use crate::{Error, Result};
use std::ops::Range;

/// Addresses of symmetric memory as one rank's process maps it: rank `p`'s part is at `base + p * stride_bytes`, for
/// the ranks that it reaches. Addresses are reserved for the parts of all ranks of the world, so that rank numbers need
/// no translation on the device, and an access to a rank of another node faults instead of finding other memory there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Of rank 0's part, whether it is mapped or not; 0 before addresses are reserved.
    pub(crate) base: u64,
    /// What lies unused before each part, so that what several instances share begins at a multiple of the driver's
    /// granularity.
    pub(crate) lead_bytes: u64,
    /// From one rank's part to the next: the size rounded up to the driver's granularity.
    pub(crate) stride_bytes: u64,
    /// Of each rank's part.
    pub(crate) size_bytes: u64,
    topology: Topology,
    /// The rank whose view this is.
    rank: u32,
}

impl Layout {
    /// Parts of `size_bytes`, in units of `granularity` bytes. No address is chosen yet.
    ///
    /// # Errors
    /// [`Error::Shape`] for 0 bytes or more than can be addressed.
    pub(crate) fn new(
        topology: Topology,
        rank: u32,
        size_bytes: u64,
        granularity: u64,
    ) -> Result<Layout> {
        let stride = size_bytes.checked_next_multiple_of(granularity);
        let total = stride.and_then(|s| s.checked_mul(topology.ranks().into()));
        let (Some(stride_bytes), Some(1..)) = (stride, total) else {
            let what = format!("symmetric memory of {size_bytes} bytes cannot be made");
            return Err(Error::Shape { what });
        };
        Ok(Layout { base: 0, lead_bytes: 0, stride_bytes, size_bytes, topology, rank })
    }

    /// Parts of `own_bytes` and, behind them, of `shared_bytes`, a multiple of `granularity`, of which the first
    /// `size_bytes` in all count.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub(crate) fn shared(
        topology: Topology,
        rank: u32,
        own_bytes: u64,
        shared_bytes: u64,
        size_bytes: u64,
        granularity: u64,
    ) -> Result<Layout> {
        let own = Layout::new(topology, rank, own_bytes, granularity)?;
        let all = own.stride_bytes.saturating_add(shared_bytes);
        let lead_bytes = own.stride_bytes - own_bytes;
        Ok(Layout { lead_bytes, size_bytes, ..Layout::new(topology, rank, all, granularity)? })
    }

    /// Bytes to reserve: for all ranks.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.stride_bytes * u64::from(self.topology.ranks())
    }

    /// The ranks whose parts are mapped.
    pub(crate) fn mapped(&self) -> Range<u32> {
        self.topology.reach(self.rank)
    }

    /// First address and bytes of what is mapped; parts of one node have no gaps.
    pub(crate) fn mapped_span(&self) -> (u64, u64) {
        let ranks = self.mapped();
        let bytes = |ranks: u32| u64::from(ranks) * self.stride_bytes;
        (self.base - self.lead_bytes + bytes(ranks.start), bytes(ranks.end - ranks.start))
    }

    /// Address of a rank's part.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for a rank whose part is not mapped.
    pub(crate) fn address(&self, rank: u32) -> Result<u64> {
        self.topology.check(self.rank, rank)?;
        Ok(self.base + u64::from(rank) * self.stride_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout(topology: Topology, rank: u32) -> Layout {
        let mut layout = Layout::new(topology, rank, 3 * MIB, 2 * MIB).unwrap();
        layout.base = 0x7000_0000_0000;
        layout
    }

    #[test]
    fn strides_are_multiples_of_the_granularity() {
        let one = Topology::one_node(1);
        let stride = |size| Layout::new(one, 0, size, 2 * MIB).map(|l| l.stride_bytes).ok();
        assert_eq!(stride(1), Some(2 * MIB));
        assert_eq!(stride(2 * MIB), Some(2 * MIB));
        assert_eq!(stride(2 * MIB + 1), Some(4 * MIB));
        assert_eq!((stride(0), stride(u64::MAX)), (None, None));
        let many = Topology::one_node(64);
        assert!(Layout::new(many, 0, 1 << 59, 2 * MIB).is_err(), "64 parts of 2^59 bytes");
    }

    /// Of 100 bytes of its own the end is at a boundary, where what is shared begins.
    #[test]
    fn what_is_shared_begins_at_a_multiple() {
        let one = Topology::one_node(2);
        let mut of = Layout::shared(one, 0, 100, 6 * MIB, 100 + 5 * MIB, 2 * MIB).unwrap();
        of.base = 0x7000_0000_0000 + of.lead_bytes;
        assert_eq!((of.stride_bytes, of.size_bytes), (8 * MIB, 100 + 5 * MIB));
        assert_eq!(of.mapped_span(), (0x7000_0000_0000, 16 * MIB));
        for rank in 0..2 {
            assert!((of.address(rank).unwrap() + 100).is_multiple_of(2 * MIB));
        }
        let exact = Layout::shared(one, 0, 2 * MIB, 2 * MIB, 4 * MIB, 2 * MIB).unwrap();
        assert_eq!((exact.lead_bytes, exact.stride_bytes), (0, 4 * MIB));
    }

    #[test]
    fn one_node_maps_everything() {
        let of = layout(Topology::one_node(3), 1);
        assert_eq!((of.mapped(), of.reserved_bytes()), (0..3, 12 * MIB));
        assert_eq!(of.mapped_span(), (of.base, 12 * MIB));
        assert!(matches!(of.address(3), Err(Error::Unreachable { from: 1, to: 3 })));
    }

    /// Two nodes of two ranks: rank numbers stay, and the other node's addresses are reserved and nothing more.
    #[test]
    fn a_node_maps_its_own_ranks() {
        let two = Topology::nodes_of(4, 2).unwrap();
        for rank in 0..4 {
            let of = layout(two, rank);
            let first = rank / 2 * 2;
            let at = |rank: u32| of.base + u64::from(rank) * 4 * MIB;
            assert_eq!((of.mapped(), of.reserved_bytes()), (first..first + 2, 16 * MIB));
            assert_eq!(of.mapped_span(), (at(first), 8 * MIB));
            for peer in 0..4 {
                match of.address(peer) {
                    Ok(address) => assert!(address == at(peer) && of.mapped().contains(&peer)),
                    Err(error) => {
                        assert!(
                            matches!(error, Error::Unreachable { from, to } if (from, to) == (rank, peer))
                        );
                        assert!(!of.mapped().contains(&peer));
                    }
                }
            }
        }
    }
}
