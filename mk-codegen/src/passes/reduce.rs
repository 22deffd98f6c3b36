//! Sums partial results: every rank writes its part of a block of rows into the owner's slot, and the owner adds the slots
//! in the order of ranks; or, for an all-reduce in one shot, every rank reads the parts of all and adds them itself.
//!
//! Assumes rows cut by owner. Leaves: `slots`, a symmetric buffer `[world, rows, n]` of one slot per source rank, a flow
//! per tile, the ordered sum; for an all-reduce also `sums`, from which peers pull finished rows.
//!
//! Deterministic: the sum is in f32, in rank order, rounded once. Parts are rounded to the slot's dtype on the way.

use super::{
    Config,
    draft::{Covers, Draft, Flow, Reader, Writer, read, write},
    gather::{aligned, block_rows, peer_at},
    rows::Rows,
    select::{Kernel, Reduce, Tensor},
};
use crate::ir::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Space, Var};

/// The slots of a result's rows.
pub(super) fn slots(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let shape = vec![world.into(), rows.capacity.into(), n];
    draft.buffer("slots", Space::Workspace, out.dtype, shape, pitch(out))
}

fn pitch(out: &Tensor) -> Option<Expr> {
    let n = out.shape[1].value;
    let padded = aligned(n, out.dtype.size_bytes());
    (padded != n).then_some(Expr::Const(padded))
}

/// Adds the sum of `slots` to `result`, in tiles of `block` rows and columns. Tasks of `from` write the slots through
/// `operand`; their last loop variable is the column block.
#[expect(clippy::too_many_arguments, reason = "each is one independent fact")]
pub(super) fn sum(
    draft: &mut Draft,
    slots: BufId,
    result: BufId,
    how: Reduce,
    out: &Tensor,
    rows: &Rows,
    block: [i32; 2],
    operand: Operand,
    from: Vec<Covers>,
) {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let col_blocks = (out.shape[1].value + block[1] - 1) / block[1];
    let own = rows.own();
    let r = own.block(draft, block[0]);
    let j = own.column();
    let columns = (j.clone() * block[1], block_rows(n.clone(), j.clone(), block[1]));
    let here = (r.at.clone(), r.len.clone());
    let each = Each { var: "s".into(), extent: world.into() };
    let src = Access {
        each: Some(each.clone()),
        ..read(
            Operand::Src,
            slots,
            vec![(Var::EACH.into(), 1.into()), here.clone(), columns.clone()],
        )
    };
    let first = if how == Reduce::All {
        Expr::from(Var::RANK) * rows.per_shard.clone()
    } else {
        Expr::Const(0)
    };
    let region = vec![(first + r.at.clone(), r.len.clone()), columns.clone()];
    let mut accesses = vec![src, write(Operand::Dst, result, region)];
    let all = how == Reduce::All && world > 1;
    let sums = all.then(|| {
        let shape = vec![rows.capacity.into(), n.clone()];
        draft.buffer("sums", Space::Workspace, out.dtype, shape, pitch(out))
    });
    if let Some(sums) = sums {
        accesses.push(write(Operand::Dst, sums, vec![here, columns]));
    }
    let domain = own.domain(col_blocks);
    let family =
        draft.family("reduce", RoleKind::IntraComm, Leaf::ReduceTile, domain, vec![], accesses);
    let post = |c: Covers| {
        let last = draft.plan.families[c.family].domain.len() - 1;
        Writer {
            family: c.family,
            operand,
            word: vec![Var::RANK.into(), c.block, Var::domain(last).into()],
            rank: if world > 1 { c.shard } else { Var::RANK.into() },
            each: None,
        }
    };
    let from = from.into_iter().map(post).collect();
    draft.flows.push(Flow {
        name: "partial",
        shape: vec![world.into(), rows.blocks.into(), col_blocks.into()],
        from,
        count: 1.into(),
        to: vec![Reader {
            family,
            operand: Operand::Src,
            word: vec![Var::EACH.into(), r.block, j],
            each: Some(each),
        }],
    });
    if let Some(sums) = sums {
        spread(draft, sums, result, family, out, rows, [block[0], col_blocks]);
    }
}

/// The own summands of a result, where every rank can read them.
pub(super) fn parts(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let n = draft.dim(&out.shape[1]);
    let shape = vec![rows.shards.into(), rows.capacity.into(), n];
    draft.buffer("parts", Space::Workspace, out.dtype, shape, pitch(out))
}

/// Adds the sums that every rank makes for itself, from the `parts` of all ranks. Tasks of `from` write those; their last
/// loop variable is the column block.
pub(super) fn pull(
    draft: &mut Draft,
    parts: BufId,
    result: BufId,
    out: &Tensor,
    rows: &Rows,
    block: [i32; 2],
    from: Vec<Covers>,
) {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let col_blocks = (out.shape[1].value + block[1] - 1) / block[1];
    let r = rows.block(draft, block[0]);
    let j = rows.column();
    let columns = (j.clone() * block[1], block_rows(n, j.clone(), block[1]));
    let each = Each { var: "q".into(), extent: world.into() };
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), columns.clone()];
    let src = Access {
        rank: Var::EACH.into(),
        each: Some(each.clone()),
        ..read(Operand::Src, parts, here)
    };
    let dst = write(Operand::Dst, result, vec![(rows.global(&r), r.len.clone()), columns]);
    let domain = rows.domain(col_blocks);
    let leaf = Leaf::ReduceTile;
    let family = draft.family("pull", RoleKind::IntraComm, leaf, domain, vec![], vec![src, dst]);
    let post = |c: Covers| {
        let last = draft.plan.families[c.family].domain.len() - 1;
        Writer {
            family: c.family,
            operand: Operand::C,
            word: vec![Var::RANK.into(), c.shard, c.block, Var::domain(last).into()],
            rank: Var::EACH.into(),
            each: Some(Each { var: "p".into(), extent: world.into() }),
        }
    };
    let from = from.into_iter().map(post).collect();
    draft.hand_over(Flow {
        name: "part",
        shape: vec![world.into(), rows.shards.into(), rows.blocks.into(), col_blocks.into()],
        from,
        count: 1.into(),
        to: vec![Reader {
            family,
            operand: Operand::Src,
            word: vec![Var::EACH.into(), r.shard, r.block, j],
            each: Some(each),
        }],
    });
}

/// Every rank pulls the peers' finished rows.
fn spread(
    draft: &mut Draft,
    sums: BufId,
    result: BufId,
    reduce: FamId,
    out: &Tensor,
    rows: &Rows,
    [height, col_blocks]: [i32; 2],
) {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let theirs = rows.peers();
    let r = theirs.block(draft, height);
    let cols = (Expr::Const(0), n);
    let src = Access {
        rank: r.shard.clone(),
        ..read(Operand::Src, sums, vec![(r.at.clone(), r.len.clone()), cols.clone()])
    };
    let to = (theirs.global(&r), r.len.clone());
    let dst = write(Operand::Dst, result, vec![to, cols]);
    let mut domain = theirs.domain(1);
    domain.pop();
    // Whole rows without gaps, or through registers.
    let via = if pitch(out).is_none() { CopyVia::Bulk } else { CopyVia::Ldst };
    let leaf = Leaf::CopyTile { via, stages: draft.copy_stages };
    let pull = draft.family("spread", RoleKind::IntraComm, leaf, domain, vec![], vec![src, dst]);
    let peers = Each { var: "p".into(), extent: (world - 1).into() };
    draft.flows.push(Flow {
        name: "summed",
        shape: vec![world.into(), rows.blocks.into()],
        from: vec![Writer {
            family: reduce,
            operand: Operand::Dst,
            word: vec![Var::RANK.into(), Var::domain(0).into()],
            rank: peer_at(Expr::from(Var::EACH) + 1, world),
            each: Some(peers),
        }],
        count: col_blocks.into(),
        to: vec![Reader {
            family: pull,
            operand: Operand::Src,
            word: vec![r.shard, r.block],
            each: None,
        }],
    });
}

/// A reduction that is the whole pipeline: each rank copies its summands to their owners.
pub(super) fn alone(kernel: &Kernel, how: Reduce, config: &Config) -> Draft {
    const BLOCK: [i32; 2] = [128, 256];
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config);
    let world = draft.world();
    let (x, out) = (&kernel.params[kernel.sources[0].param], &kernel.results[0].out);
    let from = draft.tensor(x, Space::In);
    let result = draft.tensor(out, Space::Out);
    let rows = Rows::new(&mut draft, x, true, BLOCK[0]).peers_first();
    let col_blocks = (x.shape[1].value + BLOCK[1] - 1) / BLOCK[1];
    let to = slots(&mut draft, out, &rows);
    let n = draft.dim(&x.shape[1]);
    let r = rows.block(&mut draft, BLOCK[0]);
    let j = rows.column();
    let columns = (j.clone() * BLOCK[1], block_rows(n, j, BLOCK[1]));
    let src = read(Operand::Src, from, vec![(rows.global(&r), r.len.clone()), columns.clone()]);
    let dst = Access {
        rank: if world > 1 { r.shard.clone() } else { Var::RANK.into() },
        ..write(
            Operand::Dst,
            to,
            vec![(Var::RANK.into(), 1.into()), (r.at.clone(), r.len.clone()), columns],
        )
    };
    let leaf = Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 };
    let domain = rows.domain(col_blocks);
    let push = draft.family("scatter", RoleKind::Compute, leaf, domain, vec![], vec![src, dst]);
    let from = vec![Covers { family: push, shard: r.shard, block: r.block }];
    sum(&mut draft, to, result, how, out, &rows, BLOCK, Operand::Dst, from);
    draft
}
