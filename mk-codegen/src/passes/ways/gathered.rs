//! Gathered rows on their way: where they arrive, and the words that announce them.

use crate::ir::{BufId, COPY_STAGE_BYTES, Each, Expr, FamId, Operand};
use crate::passes::draft::{Draft, Flow, Reader, TileRows, Writer};

/// A gather, for the families that read it.
pub(in crate::passes) struct Gathered {
    /// The caller's shard.
    pub shard: BufId,
    /// `[world, rows, K]`, or `[slices, world, rows, K / slices]`. Holds the own rows, too, if `own_rows` is set.
    pub all: BufId,
    pub slices: Option<Slices>,
    /// Whether the own rows are in `all`; else they are read from `shard`.
    pub own_rows: bool,
    /// Whether shards arrive one after the other.
    pub by_shard: bool,
    /// Words of the flow for each shard, and the blocks of rows that one covers.
    pub words: i32,
    pub per_word: i32,
    /// The family that pushes, and the word that one of its tasks raises.
    pub push: FamId,
    pub raised: Vec<Expr>,
    pub to: Expr,
    pub each: Option<Each>,
    /// Tasks that raise one.
    pub pieces: i32,
}

/// More slices would only add signals.
const MAX_SLICES: u32 = 256;

/// How rows are cut along K on their way.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Slices {
    pub count: i32,
    /// Elements of a row in one.
    pub depth: i32,
    /// Blocks of a shard whose slices leave side by side, and are multiplied so.
    pub together: i32,
}

impl Slices {
    /// At most so many of `k` elements, all of them equal, whole steps of a product, and of rows that a copy's stage holds.
    pub fn new(k: i32, size_bytes: u64, most: u32, step: i32, together: i32) -> Option<Slices> {
        let steps = if k % step == 0 { k / step } else { return None };
        let most = most.min(MAX_SLICES) as i32;
        let most = most.min(steps);
        let fits = |n: &i32| (k / n) as u64 * size_bytes <= u64::from(COPY_STAGE_BYTES);
        let count = (2..=most).rev().find(|n| steps % n == 0)?;
        let count = Some(count).filter(fits)?;
        Some(Slices { count, depth: k / count, together })
    }
}

/// Adds the flow from the push to a family that reads what arrives; with slices, in each iteration of its inner loop one.
pub(in crate::passes) fn flow(
    draft: &mut Draft,
    g: &Gathered,
    operand: Operand,
    to: TileRows,
    slice: Option<Expr>,
) {
    let mut shape = vec![draft.world().into(), g.words.into()];
    let mut read = vec![to.shard, to.block / g.per_word];
    if let Some(s) = g.slices {
        shape.push(s.count.into());
        read.extend(slice);
    }
    draft.hand_over(Flow {
        name: "arrived",
        shape,
        from: vec![Writer {
            rank: g.to.clone(),
            each: g.each.clone(),
            ..Writer::new(g.push, Operand::Dst, g.raised.clone())
        }],
        count: g.pieces.into(),
        to: vec![Reader::new(to.family, operand, read)],
    });
}
