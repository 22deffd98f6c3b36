//! CTAs push gathered rows: a chunk is read once and written to every peer.
//!
//! Assumes a matrix `[M, K] @ shard(0)`. Leaves: `all`, a symmetric buffer `[world, rows, K]` on every rank, written by
//! the ranks that own the rows, with a word per block of rows.
//!
//! With `whole`, `all` is `[world * rows, K]` and holds the own rows, too, so that tiles may hold rows of several ranks; all of a shard has one
//! word. Assumes that every rank has as many.
//!
//! Rows may travel in slices of K: `all` is then `[slices, world, rows, K / slices]`, so that what a task writes is contiguous,
//! with a word for each slice of a block. The first slices of as many rows as the SMs work on at a time leave before the second
//! ones do.

use super::{
    gathered::{Gathered, Slices},
    push_rail,
    rail::Pieces,
};
use crate::passes::{
    draft::{Draft, Flow, Writer, read, write},
    shape::{
        ranks::peer,
        rows::Rows,
        tensor::{Tensor, aligned},
    },
};
use crate::settings::Config;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, Operand, RoleKind, Space, Var};

/// Adds the push of `x`, which the caller gives in `shard`, perhaps in slices.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    slices: Option<Slices>,
    whole: bool,
    config: &Config,
) -> Gathered {
    let (world, block, nodes) = (draft.world(), rows.height, draft.nodes());
    let size_bytes = x.dtype.size_bytes();
    let k_value = x.shape[1].value;
    let padded = aligned(k_value, size_bytes);
    // Rows that bulk copies cannot take go through registers, into rows that they and TMA can.
    let bulk = padded == k_value;
    let slices = slices.filter(|_| bulk);
    let blocks = rows.blocks;
    let row_bytes = (slices.map_or(k_value, |s| s.depth) as u64 * size_bytes).max(1);
    let cut = Pieces::new(block, blocks, row_bytes, config.chunk_bytes);
    let pieces = cut.per_block;
    let k = draft.dim(&x.shape[1]);
    let pitch = (!bulk).then_some(Expr::Const(padded));
    let shape = match slices {
        None if whole => vec![(world * rows.capacity).into(), k.clone()],
        None => vec![world.into(), rows.capacity.into(), k.clone()],
        Some(s) => vec![s.count.into(), world.into(), rows.capacity.into(), s.depth.into()],
    };
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, pitch);

    let last = if slices.is_some() { 2 } else { 1 };
    let (i, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(last)));
    let mine = draft.local(x, 0, Var::RANK);
    let (base, len) = cut.rows(&i, p, mine);
    // The own rows, too, where they are repacked or lie in tiles with others.
    let own_rows = !bulk || whole;
    let each =
        Each { var: "s".into(), extent: (if own_rows { world } else { nodes.local - 1 }).into() };
    let to = match own_rows {
        true => peer(Var::EACH.into(), world),
        false => nodes.neighbour(Var::EACH.into()),
    };
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    let q = Expr::from(Var::domain(1));
    let columns = match slices {
        None => (0.into(), k.clone()),
        Some(s) => (q.clone() * s.depth, s.depth.into()),
    };
    let src = read(Operand::Src, shard, vec![(base.clone(), len.clone()), columns]);
    let mut region = match whole {
        true => vec![(Expr::from(Var::RANK) * rows.capacity + base, len), (0.into(), k)],
        false => vec![(Var::RANK.into(), 1.into()), (base, len), (0.into(), k)],
    };
    if let Some(s) = slices {
        region[2].1 = s.depth.into();
        region.insert(0, (q, 1.into()));
    }
    let dst =
        Access { rank: to.clone(), each: Some(each.clone()), ..write(Operand::Dst, all, region) };
    let mut domain = vec![("i", blocks.into()), ("p", pieces.into())];
    let mut order = Vec::new();
    if let Some(s) = slices {
        domain.insert(1, ("q", s.count.into()));
        order = rows.own().order(s.together, s.count, pieces);
        order.push(Expr::from(Var::LINEAR) % pieces);
    }
    let mut from = Vec::new();
    if nodes.local > 1 {
        let kind = RoleKind::IntraComm;
        let leaf = via.leaf(config.copy_stages);
        let push = draft.family("gather", kind, leaf, domain, order, vec![src, dst]);
        from.push((push, to, each));
    }
    let mut raised = vec![Var::RANK.into(), Var::domain(0).into()];
    let mut shape = vec![world.into(), blocks.into()];
    if let Some(s) = slices {
        raised.push(Var::domain(1).into());
        shape.push(s.count.into());
    }
    let pushed =
        |(push, to, each)| Writer::new(push, Operand::Dst, raised.clone()).on_each(to, each);
    let mut from: Vec<Writer> = from.into_iter().map(pushed).collect();
    if nodes.count() > 1 {
        from.push(push_rail::push(draft, x, (shard, all), rows, cut, config));
    }
    let arrived = draft.flow(Flow::new("arrived", shape, pieces.into(), from));
    let whole = whole.then_some(rows.capacity);
    Gathered { shard, all, whole, slices, own_rows, by_shard: false, arrived, per_word: 1 }
}
