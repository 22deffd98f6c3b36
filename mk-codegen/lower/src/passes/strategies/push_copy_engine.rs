//! The copy engine pushes a shard, in a few parts, to one peer after the other, with a word for each part. It is not in
//! the kernel: it waits for every rank's entry, the own one too, and a launch is not over before it is through.
//!
//! Assumes a matrix `[M, K] @ shard(0)` of rows without gaps, as many in every launch. Leaves: `all`, a symmetric
//! buffer `[world, rows, K]`.

use super::gathered::Gathered;
use crate::passes::{
    draft::{Draft, Flow, Reader, Writer, read, write},
    shape::{ranks::block_rows, rows::Rows, tensor::Tensor},
};
use mk_plan::{Access, BufId, Expr, Leaf, Operand, RoleKind, Space, Var};

/// More parts of a shard would only add operations of the host.
const MAX_PARTS: u32 = 32;

/// Adds the push of `x`, which the caller gives in `shard`, in so many parts at most.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    parts: u32,
) -> Gathered {
    let (group, world) = (rows.group, rows.group.size);
    let blocks = rows.blocks.max(1);
    let parts = (parts.min(MAX_PARTS) as i32).clamp(1, blocks);
    let per_word = (blocks + parts - 1) / parts;
    let (words, height) = ((blocks + per_word - 1) / per_word, per_word * rows.height);
    let k = draft.own(x, 1);
    let shape = vec![world.into(), rows.capacity.into(), k.clone()];
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, None);
    let (s, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
    // The first to come is that of the rank after one's own, as GEMMs take them.
    let to = group.rank_after(Expr::Const(world - 1) - s.clone());
    let mine = draft.own(x, 0);
    let part = (p.clone() * height, block_rows(mine, p.clone(), height));
    let src = read(Operand::Src, shard, vec![part.clone(), (0.into(), k.clone())]);
    let region = vec![(group.place(), 1.into()), part, (0.into(), k)];
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, all, region) };
    let domain = || vec![("s", (world - 1).into()), ("c", words.into())];
    let accesses = vec![src, dst];
    let kind = RoleKind::CopyEngine;
    let push = draft.family("gather", kind, Leaf::HostCopy, domain(), vec![], accesses);
    // Until then the caller's tensor is read.
    let nothing = [] as [Access; 0];
    let end = draft.family("sent", RoleKind::Epilogue, Leaf::Signal, domain(), vec![], nothing);
    let shape = vec![(world - 1).into(), words.into()];
    let copied = Writer::new(push, Operand::Dst, vec![s.clone(), p.clone()]);
    let sent = draft.flow(Flow::new("sent", shape, 1.into(), vec![copied]));
    draft.read(sent, Reader::new(end, Operand::Src, vec![s, p.clone()]));
    let shape = vec![world.into(), words.into()];
    let pushed = Writer::new(push, Operand::Dst, vec![group.place(), p]).on(to);
    let arrived = draft.flow(Flow::new("arrived", shape, 1.into(), vec![pushed]));
    Gathered {
        shard,
        all,
        whole: None,
        slices: None,
        factors: None,
        own_rows: false,
        by_shard: true,
        arrived,
        height: rows.height,
        blocks,
        per_word,
    }
}
