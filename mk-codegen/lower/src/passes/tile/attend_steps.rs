//! Steps and heads of attention's tiles, forward and backward.

use crate::passes::draft::Draft;
use mk_plan::Expr;

/// Heads whose tiles are dealt out together, at most: more of them, and their keys leave the cache.
pub(super) const HEADS: i32 = 16;

/// Heads of keys that one wave of tiles meets, of so many tiles for each: a divisor of all.
pub(super) fn together(draft: &Draft, tiles: i32, heads: i32) -> i32 {
    let together = (draft.sms() as i32 + tiles - 1) / tiles.max(1);
    (together.clamp(1, heads)..=heads).find(|n| heads % n == 0).unwrap_or(heads)
}

/// The chunk of the other side at a step of the inner loop.
pub(super) struct Step {
    /// How many there are.
    pub steps: Expr,
    pub chunk: Expr,
    /// The own chunk that it is, and whether it is.
    pub half: Expr,
    pub own: Option<Expr>,
}
