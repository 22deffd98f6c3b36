//! Sums rows that have owners, in two shots: every rank writes its contributions of a block of rows into the owner's
//! slot, and the owner adds the slots in the order of ranks. That is a `reduce_scatter`; in an `all_reduce` owners push
//! their sums to every rank, too.
//!
//! Assumes rows cut by owner. Leaves: `slots`, a symmetric buffer `[world, rows, n]` of one slot per source rank, a
//! flow per tile, the ordered sum; for an all-reduce also `sums`, a symmetric buffer `[world, rows, n]` into which
//! owners push finished rows, and the copy from there to the caller's tensor.
//!
//! Deterministic: the sum is in f32, in rank order, rounded once. Contributions are rounded to the slot's dtype on the
//! way.

use super::deliver;
use super::sum::{
    Contributions, Place, ReductionTiles, Share, Summed, place, reduction_tiles, tiles_across,
};
use crate::passes::{
    draft::{Arrival, Draft, Flow, Source, TileRows, Writer, read, write},
    shape::{ids::Reduce, ranks::block_rows, rows::Rows, tensor::Tensor},
};
use crate::settings::Config;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, FamId, Operand, RoleKind, Space, Var};

/// The slots of a result's rows, one for each rank.
pub(in crate::passes) fn slots(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let (n, rows) = (draft.own(out, 1), rows.by_others());
    let shape = vec![rows.group.size.into(), rows.capacity.into(), n];
    draft.buffer("slots", Space::Workspace, out.dtype, shape, out.padded_pitch())
}

/// Adds up `slots`. Tasks of `from` write them; their last loop variable is the column block.
pub(in crate::passes) fn sum(
    draft: &mut Draft,
    config: &Config,
    how: Reduce,
    of: &Summed<'_>,
    slots: BufId,
    from: Contributions,
) {
    let out = of.out;
    let Contributions { rows, block, together, by, operand } = from;
    let rows = rows.by_others();
    let group = rows.group;
    let world = group.size;
    let n = draft.own(out, 1);
    let across = tiles_across(out, block[1]);
    let share = if how == Reduce::All { Share::One } else { Share::Four };
    let reduction_tiles =
        reduction_tiles(draft, config.reduction, share, across, &rows.own(), block, together);
    let ReductionTiles { kind, tile, per_block, .. } = reduction_tiles;
    let own = rows.in_blocks(tile[0]).own();
    let Place { r, j, columns } = place(draft, out, &own, tile[1]);
    let here = (r.at.clone(), r.len.clone());
    let each = Each { var: "s".into(), extent: world.into() };
    let src = Access {
        each: Some(each),
        ..read(
            Operand::Src,
            slots,
            vec![(Var::EACH.into(), 1.into()), here.clone(), columns.clone()],
        )
    };
    let first =
        if how == Reduce::All { group.place() * rows.per_shard.clone() } else { Expr::Const(0) };
    let region = vec![(first + r.at.clone(), r.len.clone()), columns.clone()];
    let post = |c: TileRows| {
        let column = draft.plan.families[c.family].domain.len() - 1;
        Writer::new(c.family, operand, vec![group.place(), c.block, Var::domain(column).into()])
            .on(group.rank_of(c.shard))
            .when(c.when)
    };
    let from = by.into_iter().map(post).collect();
    let shape = vec![world.into(), rows.blocks.into(), across.into()];
    let partial = draft.flow(Flow::new("partial", shape, 1.into(), from));
    let word = vec![Var::EACH.into(), r.block.clone() / per_block, j];
    let (_, when) = own.owned(&r);
    let mut touched = vec![Source {
        access: src,
        arrivals: vec![Arrival { when, ..Arrival::new(partial, word) }],
    }];
    touched.extend(of.makes(region).into_iter().map(Source::from));
    let all = how == Reduce::All && world > 1;
    let sums = all.then(|| {
        let shape = vec![world.into(), rows.capacity.into(), n.clone()];
        draft.buffer("sums", Space::Workspace, out.dtype, shape, out.padded_pitch())
    });
    if let Some(sums) = sums {
        let theirs = vec![(group.place(), 1.into()), here, columns];
        touched.push(deliver::to_peers(write(Operand::Dst, sums, theirs), group).into());
    }
    let (domain, order) = (own.domain(across), reduction_tiles.order(&own, across));
    let family = draft.family("reduce", kind, of.leaf(), domain, order, touched);
    if let Some(sums) = sums {
        collect(draft, sums, of.result, family, out, &rows, reduction_tiles);
    }
}

/// Bytes of a row that are copied at once, at most: shorter pieces would not keep the lane that copies them ahead,
/// longer ones would leave more to be copied behind the last sum.
const COPIED_ROW_BYTES: i32 = 8 * 1024;

/// Rows that are copied at once beside the GEMMs, at most: several CTAs share those of a sum.
pub(in crate::passes) const COPIED_ROWS: i32 = 32;

/// Every rank copies what its peers have pushed to where the caller wants it, in the order in which it is summed:
/// beside the GEMMs some tiles' columns at once in bulk, after them tile by tile.
fn collect(
    draft: &mut Draft,
    sums: BufId,
    result: BufId,
    reduce: FamId,
    out: &Tensor,
    rows: &Rows,
    reduction_tiles: ReductionTiles,
) {
    let n = draft.own(out, 1);
    let ReductionTiles { kind, tile, across, together, .. } = reduction_tiles;
    let by_tile = kind == RoleKind::Compute;
    // Rows without gaps, or through registers.
    let bulk = !by_tile && out.padded_pitch().is_none();
    // Tiles of a row of tiles that are copied at once.
    let tile_bytes = tile[1] * out.dtype.size_bytes() as i32;
    let tiles = match (by_tile, bulk) {
        (true, _) => 1,
        (false, true) => (COPIED_ROW_BYTES / tile_bytes).clamp(1, across),
        (false, false) => across,
    };
    let copies = (across + tiles - 1) / tiles;
    let height = if by_tile { tile[0] } else { tile[0].min(COPIED_ROWS) };
    let per_sum = tile[0] / height;
    let blocks = rows.in_blocks(tile[0]).blocks;
    let theirs = rows.in_blocks(height).peers();
    let r = theirs.block(&mut draft.extents);
    let c = theirs.column();
    let width = tiles * tile[1];
    let cols = match copies {
        1 => (Expr::Const(0), n),
        _ => (c.clone() * width, block_rows(n, c.clone(), width)),
    };
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), cols.clone()];
    let src = read(Operand::Src, sums, here);
    let to = (theirs.global(&r), r.len.clone());
    let dst = write(Operand::Dst, result, vec![to, cols]);
    let order =
        ReductionTiles { together: together * per_sum, ..reduction_tiles }.order(&theirs, copies);
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    let leaf = via.leaf(draft.copy_stages);
    // A word for each thing that is copied, or some blocks of rows of it.
    let (i, j) = (Var::domain(0).into(), Expr::from(Var::domain(1)));
    let word = vec![rows.group.place(), i, j / tiles];
    let added = Writer::new(reduce, Operand::Dst, word).on_each(rows.group.every_peer());
    let shape = vec![rows.group.size.into(), blocks.into(), copies.into()];
    let count = Expr::Const(tiles).min(Expr::Const(across) - c.clone() * tiles);
    let summed = draft.flow(Flow::new("summed", shape, count, vec![added]));
    let touched =
        vec![Source::behind(src, summed, vec![r.shard, r.block / per_sum, c]), dst.into()];
    draft.family("collect", kind, leaf, theirs.domain(copies), order, touched);
}
