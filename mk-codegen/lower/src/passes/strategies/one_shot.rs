//! An all-reduce in one shot: every rank reads the contributions of all ranks and adds them for itself.
//!
//! Leaves: `parts`, a symmetric buffer `[shards, rows, n]` of the local contributions, a flow per tile to every rank,
//! and the ordered sum.

use super::sum::{
    Contributions, Place, ReductionTiles, Share, Summed, place, reduction_tiles, tiles_across,
};
use crate::passes::{
    draft::{Draft, Flow, Source, TileRows, Writer, read},
    shape::{rows::Rows, tensor::Tensor},
};
use crate::settings::Config;
use mk_plan::{Access, BufId, Each, Operand, Space, Var};

/// The local contributions of a result, where every rank can read them.
pub(in crate::passes) fn parts(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let n = draft.own(out, 1);
    let shape = vec![rows.shards.into(), rows.capacity.into(), n];
    draft.buffer("parts", Space::Workspace, out.dtype, shape, out.padded_pitch())
}

/// Adds the sums that every rank makes for itself, from the `parts` of all ranks. Tasks of `from` write those; their
/// last loop variable is the column block.
pub(in crate::passes) fn pull(
    draft: &mut Draft,
    config: &Config,
    of: &Summed<'_>,
    parts: BufId,
    from: Contributions,
) {
    let Contributions { rows, block, by, operand, .. } = from;
    let group = draft.along(of.axis).group;
    let across = tiles_across(of.out, block[1]);
    let ReductionTiles { kind, tile, per_block, .. } =
        reduction_tiles(draft, config.reduction, Share::One, across, &rows, block, 1);
    let (blocks, rows) = (rows.blocks, rows.in_blocks(tile[0]));
    let Place { r, j, columns } = place(draft, of.out, &rows, tile[1]);
    let (rank, everyone) = group.everyone();
    let each = Each { var: "q".into(), ..everyone.clone() };
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), columns.clone()];
    let src = Access { rank: rank.clone(), each: Some(each), ..read(Operand::Src, parts, here) };
    let post = |c: TileRows| {
        let last = draft.plan.families[c.family].domain.len() - 1;
        Writer::new(
            c.family,
            operand,
            vec![group.place(), c.shard, c.block, Var::domain(last).into()],
        )
        .on_each((rank.clone(), everyone.clone()))
    };
    let from = by.into_iter().map(post).collect();
    let shape = vec![group.size.into(), rows.shards.into(), blocks.into(), across.into()];
    let part = draft.flow(Flow::new("part", shape, 1.into(), from));
    let region = vec![(rows.global(&r), r.len.clone()), columns];
    let word = vec![Var::EACH.into(), r.shard, r.block / per_block, j];
    let mut touched = vec![Source::behind(src, part, word)];
    touched.extend(of.makes(region).into_iter().map(Source::from));
    let domain = rows.domain(across);
    draft.family("pull", kind, of.leaf(), domain, vec![], touched);
}
