//! Which rank lives on which node, and whose memory each rank maps.

use crate::{Error, Result};
use std::ops::Range;

/// The nodes of a world: rank `r` is the `r % per_node`-th of node `r / per_node`. Ranks of one node map each other's
/// memory; between nodes nothing is mapped, and only a network carries bytes ([`crate::net::Net`]).
///
/// This is the one place that says which ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    ranks: u32,
    per_node: u32,
}

impl Topology {
    /// All ranks on one node.
    pub fn one_node(ranks: u32) -> Topology {
        Topology { ranks, per_node: ranks }
    }

    /// Nodes of `per_node` ranks each.
    ///
    /// # Errors
    /// [`Error::Shape`] where such nodes do not make up `ranks`.
    pub fn nodes_of(ranks: u32, per_node: u32) -> Result<Topology> {
        if ranks == 0 || per_node == 0 || !ranks.is_multiple_of(per_node) {
            let what =
                format!("{ranks} ranks are not whole nodes of {}", mk_abi::count(per_node, "rank"));
            return Err(Error::Shape { what });
        }
        Ok(Topology { ranks, per_node })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.ranks.checked_div(self.per_node).unwrap_or(0)
    }

    /// The node of a rank; none for a rank that there is not.
    pub fn node(&self, rank: u32) -> Option<u32> {
        (rank < self.ranks).then(|| rank / self.per_node)
    }

    /// The ranks whose memory a rank maps, its own included: those of its node. Empty for a rank that there is not.
    pub fn reach(&self, rank: u32) -> Range<u32> {
        match self.node(rank) {
            Some(node) => node * self.per_node..(node + 1) * self.per_node,
            None => 0..0,
        }
    }

    /// The ranks of the same place on other nodes.
    pub fn alike(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let (all, per_node) = (0..self.ranks, self.per_node.max(1));
        all.filter(move |peer| *peer != rank && peer % per_node == rank % per_node)
    }

    /// Whether rank `from` maps the memory of rank `to`.
    pub fn reaches(&self, from: u32, to: u32) -> bool {
        self.reach(from).contains(&to)
    }

    /// Refuses an access from one rank to another's memory that is not mapped.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub(crate) fn check(&self, from: u32, to: u32) -> Result<()> {
        if self.reaches(from, to) { Ok(()) } else { Err(Error::Unreachable { from, to }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_node_reach_each_other() {
        let two = Topology::nodes_of(4, 2).unwrap();
        assert_eq!((two.ranks(), two.nodes()), (4, 2));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|r| two.node(r)),
            [Some(0), Some(0), Some(1), Some(1), None]
        );
        assert_eq!([0, 1, 2, 3, 4].map(|r| two.reach(r)), [0..2, 0..2, 2..4, 2..4, 0..0]);
        let pairs = (0..4).flat_map(|from| (0..4).map(move |to| (from, to)));
        let reached: Vec<_> = pairs.filter(|(from, to)| two.reaches(*from, *to)).collect();
        assert_eq!(reached, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3), (3, 2), (3, 3)]);
        assert_eq!([0, 3].map(|r| two.alike(r).collect::<Vec<_>>()), [[2], [1]]);
        let error = two.check(1, 2).unwrap_err().to_string();
        assert!(error.starts_with("rank 1 cannot map the memory of rank 2"), "{error}");
    }

    #[test]
    fn one_node_reaches_all() {
        let one = Topology::one_node(3);
        assert_eq!((one.nodes(), one.reach(2)), (1, 0..3));
        assert!(!one.reaches(0, 3) && !one.reaches(3, 3));
    }

    #[test]
    fn nodes_are_whole() {
        for (ranks, per_node) in [(0, 1), (4, 0), (4, 3), (2, 4)] {
            assert!(Topology::nodes_of(ranks, per_node).is_err(), "{ranks} by {per_node}");
        }
    }
}
