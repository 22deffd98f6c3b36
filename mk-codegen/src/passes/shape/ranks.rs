//! Ranks relative to this one, and blocks of rows.

use crate::ir::{Each, Expr, Var};

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
