//! Ranks relative to this one, and blocks of rows.

use mk_plan::{Each, Expr, Var};

/// The rank `places` after this one.
pub(in crate::passes) fn peer_at(places: Expr, world: i32) -> Expr {
    (Expr::from(Var::RANK) + places) % world
}

/// The rank `s + 1` places after this one.
pub(in crate::passes) fn peer(s: Expr, world: i32) -> Expr {
    peer_at(s + 1, world)
}

/// Every rank but this one: which, and how many.
pub(in crate::passes) fn every_peer(world: i32) -> (Expr, Each) {
    (peer(Var::EACH.into(), world), Each { var: "p".into(), extent: (world - 1).into() })
}

/// Rows of block `i` of height `block` among `rows`; 0 or less past the end.
pub(in crate::passes) fn block_rows(rows: Expr, i: Expr, block: i32) -> Expr {
    Expr::Const(block).min(rows - i * block)
}

/// How the ranks of a world lie in nodes: rank `r` is number `r % local` of node `r / local`.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Nodes {
    pub world: i32,
    /// Ranks of a node.
    pub local: i32,
}

impl Nodes {
    pub fn count(self) -> i32 {
        self.world / self.local
    }

    /// The first rank of the own node.
    fn first(self) -> Expr {
        Expr::from(Var::RANK) / self.local * self.local
    }

    /// The rank `s + 1` places after this one in its node.
    pub fn neighbour(self, s: Expr) -> Expr {
        match self.local == self.world {
            true => peer(s, self.world),
            false => self.first() + peer(s, self.local),
        }
    }

    /// The rank of the same place `m + 1` nodes after this one.
    pub fn rail(self, m: Expr) -> Expr {
        peer_at((m + 1) * self.local, self.world)
    }

    /// The rank of the own node that has the place of `rank` in its node.
    pub fn same_place(self, rank: Expr) -> Expr {
        match self.local {
            1 => Var::RANK.into(),
            local => self.first() + rank % local,
        }
    }

    /// Every rank of the node but this one: which, and how many.
    pub fn every_peer(self) -> (Expr, Each) {
        let each = Each { var: "p".into(), extent: (self.local - 1).into() };
        (self.neighbour(Var::EACH.into()), each)
    }

    /// Every rank of the node, in order: which, and how many.
    pub fn everyone(self) -> (Expr, Each) {
        let each = Each { var: "p".into(), extent: self.local.into() };
        let rank = match self.local == self.world {
            true => Var::EACH.into(),
            false => self.first() + Var::EACH,
        };
        (rank, each)
    }
}
