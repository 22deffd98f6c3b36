//! Steps and heads of attention's tiles, forward and backward.

use crate::passes::{
    draft::{Draft, Flow, Writer},
    shape::{attention::Attention, ids::Param, tensor::Tensor},
};
use mk_plan::{BufId, Expr, FamId, Operand};

/// Stages of the ring of key blocks, and of value blocks, in shared memory.
pub(super) const STAGES: u32 = 2;

/// Forward, queries of a tile and keys of a block: the fastest measured (docs/decisions/attention.md). Heads of 64
/// leave registers for a third consumer warpgroup, except where tiles wait for keys, which needs some. A causal mask
/// wastes half a block on the diagonal, and documents at their ends; a cap takes registers, and so do bounds.
pub(super) fn block(a: &Attention, waits: bool) -> [i32; 2] {
    let (capped, packed) = (a.scores.cap.is_some(), a.documents.is_some());
    let depth = match a.heads() {
        [192, 128] => return [128, if capped || packed { 96 } else { 128 }],
        [depth, _] => depth,
    };
    match (depth, a.causal() || capped || packed) {
        // What shared memory has room for, of two stages, and registers beside the results.
        (192, _) => [128, if capped { 64 } else { 96 }],
        (256, _) if capped && packed => [128, 48],
        (256, _) => [128, if capped || packed { 64 } else { 80 }],
        (64, _) if !waits && !capped && !packed => [192, 128],
        (_, false) => [128, 176],
        (128, true) if capped && packed => [128, 96],
        (_, true) => [128, 128],
    }
}

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

/// What tiles make for an exchange behind them is there when the word of their batch, head and block of rows says so.
/// `outputs` are their results, `of` is the side of the tiles, `tile` the batch, the head and the block of one.
pub(super) fn pass_on(
    draft: &mut Draft,
    attend: FamId,
    of: &Tensor,
    a: &Attention,
    (inputs, outputs): (&[BufId], &[(Operand, BufId)]),
    (height, blocks): (i32, i32),
    tile: [Expr; 3],
) {
    let made = |(operand, _): &&(Operand, Param)| outputs.iter().any(|(o, _)| o == operand);
    let passed: Vec<_> = a.passed.iter().filter(made).collect();
    let Some((operand, _)) = passed.first() else { return };
    let shape = vec![draft.own(of, 0), draft.own(of, 2), blocks.into()];
    let made = Writer::new(attend, *operand, tile.to_vec());
    let made = draft.flow(Flow::new("made", shape, 1.into(), vec![made]));
    for (_, param) in passed {
        draft.made_by(inputs[*param], (1, &[0, 2]), made, height, blocks);
    }
}
