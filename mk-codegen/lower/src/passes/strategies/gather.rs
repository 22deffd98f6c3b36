//! A gather of rows: who pushes them, and the copy of what arrives, where it is a result.

use super::{
    factors::OwnFactors,
    gathered::{Gathered, Slices},
    push_copy_engine,
    push_sms::{self, Push},
};
use crate::passes::{
    draft::{Draft, read, write},
    shape::{ranks::block_rows, rows::Rows, tensor::Tensor},
};
use crate::settings::{Config, Gather};
use mk_plan::{BufId, CopyVia, Expr, Leaf, Operand, RoleKind, Var};

/// Adds the push of `x`, which the caller gives in `shard`, by the agents that the settings name.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    (slices, factors): (Option<Slices>, Option<OwnFactors>),
    config: &Config,
) -> Gathered {
    match config.gather {
        Gather::Sms => {
            let how = Push { slices, factors, whole: false };
            push_sms::push(draft, x, shard, rows, how, config)
        }
        Gather::CopyEngine { parts } => push_copy_engine::push(draft, x, shard, rows, parts),
    }
}

/// The push of `x`, of which every rank has `rows`, for tiles that hold rows of several ranks.
pub(in crate::passes) fn push_whole(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    factors: Option<OwnFactors>,
    config: &Config,
) -> Gathered {
    let one = rows.in_blocks(rows.capacity.max(1));
    push_sms::push(draft, x, shard, &one, Push { slices: None, factors, whole: true }, config)
}

/// A copy of whole rows.
pub(in crate::passes) fn copy_leaf(bulk: bool, config: &Config) -> Leaf {
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    via.leaf(config.copy_stages)
}

/// Copies all rows of `x` to `out`: the own ones from the caller's shard, the peers' as they arrive.
pub(in crate::passes) fn collect(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    gathered: Option<&Gathered>,
    out: BufId,
    rows: &Rows,
    leaf: &Leaf,
) {
    let block = rows.height;
    let k = draft.own(x, 1);
    let width = (Expr::Const(0), k);
    let own = rows.own();
    let i = Expr::from(Var::domain(0));
    let r = own.block(&mut draft.extents);
    let from = if rows.shards > 1 { r.at.clone() } else { rows.global(&r) };
    let src = read(Operand::Src, shard, vec![(from, r.len.clone()), width.clone()]);
    let dst = write(Operand::Dst, out, vec![(own.global(&r), r.len), width.clone()]);
    let domain = vec![("i", rows.blocks.into())];
    draft.family("copy.own", RoleKind::Compute, leaf.clone(), domain, vec![], vec![src, dst]);
    let Some(g) = gathered else { return };
    // Blocks arrive from all peers at once: walk them in that order.
    let q = rows.group.place_after(Expr::from(Var::domain(1)) + 1);
    let theirs = draft.local(x, 0, q.clone());
    let len = block_rows(theirs, i.clone(), block);
    let at = i.clone() * block;
    let from = vec![(q.clone(), 1.into()), (at.clone(), len.clone()), width.clone()];
    let src = read(Operand::Src, g.all, from);
    let row = q.clone() * rows.per_shard.clone() + at;
    let dst = write(Operand::Dst, out, vec![(row, len), width]);
    let domain = vec![("i", rows.blocks.into()), ("s", (rows.group.size - 1).into())];
    let touched = vec![g.source(src, q, i, None), dst.into()];
    draft.family("copy.peers", RoleKind::Compute, leaf.clone(), domain, vec![], touched);
}
