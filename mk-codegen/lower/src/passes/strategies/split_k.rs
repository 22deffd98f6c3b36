//! Reduces split-K partial results, on the rank that computed them.
//!
//! Precondition: tiles of each part in `splits`, a scratch buffer `[parts, rows of all shards, n]` in f32.
//! Postcondition: the sums, added in order of K and rounded once, are at the GEMM's destination, as tiles of the GEMM
//! for its readers.

use super::{
    destination::Destination,
    sum::{Contributions, Place, ReductionTiles, Share, place, reduction_tiles, tiles_across},
};
use crate::passes::{
    draft::{Draft, Flow, Source, TileRows, Writer, read},
    shape::{
        rows::Rows,
        tensor::{Tensor, aligned},
    },
};
use crate::settings::Reduction;
use mk_abi::DType;
use mk_plan::{Access, BufId, Each, Expr, Leaf, Operand, ReduceTile, Space, Var};

/// The f32 partial results of a split-K GEMM: `[parts, rows of all shards, n]`.
pub(in crate::passes) fn splits(draft: &mut Draft, out: &Tensor, rows: &Rows, split: i32) -> BufId {
    let n = draft.own(out, 1);
    let width = out.widest(1);
    let padded = aligned(width, 4);
    let pitch = (padded != width || !out.even(1)).then_some(Expr::Const(padded));
    let shape = vec![split.into(), (rows.shards * rows.covered()).into(), n];
    draft.buffer("splits", Space::Scratch, DType::F32, shape, pitch)
}

/// Adds the parts of each tile in order of K, and writes the rounded sums to the GEMM's destination. The last loop
/// variable of the families that write parts is the part, the one before it the column block.
pub(in crate::passes) fn fold(
    draft: &mut Draft,
    reduction: Reduction,
    out: &Tensor,
    (parts, splits): (i32, BufId),
    target: Destination,
    from: Contributions,
) -> Contributions {
    let Contributions { rows, block, by, operand, .. } = from;
    let split = Expr::from(parts);
    let across = tiles_across(out, block[1]);
    let ReductionTiles { kind, tile, per_block, .. } =
        reduction_tiles(draft, reduction, Share::One, across, &rows, block, 1);
    let (blocks, rows) = (rows.blocks, rows.in_blocks(tile[0]));
    let Place { r, j, columns } = place(draft, out, &rows, tile[1]);
    let row = (rows.in_covered(&r), r.len.clone());
    let each = Each { var: "k".into(), extent: split.clone() };
    let src = Access {
        each: Some(each),
        ..read(Operand::Src, splits, vec![(Var::EACH.into(), 1.into()), row, columns.clone()])
    };
    let post = |c: TileRows| {
        let column = draft.plan.families[c.family].domain.len() - 2;
        Writer::new(c.family, operand, vec![c.shard, c.block, Var::domain(column).into()])
    };
    let from = by.into_iter().map(post).collect();
    let shape = vec![rows.shards.into(), blocks.into(), across.into()];
    let splits = draft.flow(Flow::new("split", shape, split, from));
    let word = vec![r.shard.clone(), r.block.clone() / per_block, j];
    let mut touched = vec![Source::behind(src, splits, word)];
    let sums = target.writes(Operand::Dst, &rows, &r, columns);
    touched.extend(sums.into_iter().map(Source::from));
    let domain = rows.domain(across);
    let leaf = Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() });
    let family = draft.family("fold", kind, leaf, domain, vec![], touched);
    let by = vec![target.made(family, &rows, &r)];
    Contributions { rows, block: tile, together: 1, by, operand: Operand::Dst }
}
