//! CTAs push gathered rows: a chunk is read once and written to every peer.
//!
//! Assumes a matrix `[M, K] @ shard(0)`. Leaves: `all`, a symmetric buffer `[world, rows, K]` on every rank, written by
//! the ranks that own the rows, with a word per block of rows.
//!
//! With `whole`, `all` is `[world * rows, K]` and holds local rows, too, so that tiles may hold rows of several
//! ranks; all of a shard has one word. Assumes that every rank has as many.
//!
//! Rows may travel in slices of K: `all` is then `[slices, world, rows, K / slices]`, so that what a task writes is
//! contiguous, with a word for each slice of a block. The first slices of as many rows as the SMs work on at a time
//! leave before the second ones do.
//!
//! Factors of rows leave first, and raise the words of their rows, too: who waits for rows has their factors. To other
//! nodes those of a rank go in one message, because factors of some of its rows are several pieces of memory.

use super::{
    deliver::{Delivery, Pieces},
    factors::OwnFactors,
    gathered::{Factors, Gathered, Slices},
};
use crate::passes::{
    draft::{Draft, Writer, read, write},
    shape::{
        rows::Rows,
        tensor::{Tensor, aligned},
    },
};
use crate::settings::Config;
use mk_abi::DType;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, Operand, RoleKind, Space, Var};

/// How rows are pushed.
pub(in crate::passes) struct Push {
    pub slices: Option<Slices>,
    /// The factors of the own rows, which go with them.
    pub factors: Option<OwnFactors>,
    /// Whether tiles hold rows of several ranks.
    pub whole: bool,
}

/// Adds the push of `x`, which the caller gives in `shard`, perhaps in slices.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    Push { slices, factors, whole }: Push,
    config: &Config,
) -> Gathered {
    let (group, block, nodes) = (rows.group, rows.height, draft.along(rows.axis));
    let world = group.size;
    let size_bytes = x.dtype.size_bytes();
    let k_value = x.widest(1);
    let padded = aligned(k_value, size_bytes);
    // Rows that bulk copies cannot take go through registers, into rows that they and TMA can.
    let bulk = x.in_bulk();
    let slices = slices.filter(|_| bulk && factors.is_none());
    let blocks = rows.blocks;
    let row_bytes = (slices.map_or(k_value, |s| s.depth) as u64 * size_bytes).max(1);
    let cut = match whole {
        true => Pieces::of_few(block, row_bytes, config.chunk_bytes),
        false => Pieces::new(block, blocks, row_bytes, config.chunk_bytes),
    };
    let pieces = cut.per_block;
    let k = draft.own(x, 1);
    let pitch = (!bulk).then_some(Expr::Const(padded));
    let shape = match slices {
        None if whole => vec![(world * rows.capacity).into(), k.clone()],
        None => vec![world.into(), rows.capacity.into(), k.clone()],
        Some(s) => vec![s.count.into(), world.into(), rows.capacity.into(), s.depth.into()],
    };
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, pitch);

    let last = if slices.is_some() { 2 } else { 1 };
    let (i, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(last)));
    let mine = draft.own(x, 0);
    let (base, len) = cut.rows(&i, p, mine);
    // The own rows, too, where they are repacked or lie in tiles with others.
    let own_rows = !bulk || whole;
    let (reached, count) = match own_rows {
        true => (group, world),
        false => (nodes.near, nodes.local() - 1),
    };
    let each = Each { var: "s".into(), extent: count.into() };
    let to = reached.rank_after(Expr::from(Var::EACH) + 1);
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    let q = Expr::from(Var::domain(1));
    let columns = match slices {
        None => (0.into(), k.clone()),
        Some(s) => (q.clone() * s.depth, s.depth.into()),
    };
    let src = read(Operand::Src, shard, vec![(base.clone(), len.clone()), columns]);
    let mut region = match whole {
        true => vec![(group.place() * rows.capacity + base, len), (0.into(), k.clone())],
        false => vec![(group.place(), 1.into()), (base, len), (0.into(), k.clone())],
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
    let (mut word, mut words) = (vec![group.place(), i], vec![world.into(), blocks.into()]);
    if let Some(s) = slices {
        word.push(Var::domain(1).into());
        words.push(s.count.into());
    }
    let delivery = Delivery {
        name: &x.name,
        dtype: x.dtype,
        rows,
        n: k,
        pieces: cut,
        to: all,
        kind: RoleKind::IntraComm,
        via: CopyVia::Bulk,
        flow: "arrived",
        words,
        count: (pieces + i32::from(factors.is_some())).into(),
        amount: 1.into(),
    };
    let factors = factors.map(|own| {
        let (steps, all) = (own.steps.clone(), Expr::Const(world * rows.capacity));
        let shape: Vec<Expr> = match whole {
            true => vec![steps.unwrap_or(1.into()), all],
            false => {
                [world.into()].into_iter().chain(steps).chain([rows.capacity.into()]).collect()
            }
        };
        let name = format!("{}_factors", x.name);
        Factors { own, all: draft.buffer(&name, Space::Workspace, DType::F32, shape, None) }
    });
    let first = factors.as_ref().filter(|_| count > 0).map(|factors| {
        let i = Expr::from(Var::domain(0));
        let mine = draft.own(x, 0);
        let (base, len) = Pieces::whole(block, blocks).rows(&i, 0.into(), mine);
        let (own, from) = factors.own((base.clone(), len.clone()));
        let (all, there) = match whole {
            true => factors.of_several((group.place() * rows.capacity + base, len)),
            false => factors.of_shard(group.place(), (base, len)),
        };
        let dst = write(Operand::Dst, all, there);
        let dst = Access { rank: to.clone(), each: Some(each.clone()), ..dst };
        let leaf = CopyVia::Ldst.leaf(1);
        let (kind, domain) = (RoleKind::IntraComm, vec![("i", blocks.into())]);
        let touched = vec![read(Operand::Src, own, from), dst];
        let push = draft.family("factors", kind, leaf, domain, vec![], touched);
        Writer::new(push, Operand::Dst, vec![group.place(), i]).on_each((to.clone(), each.clone()))
    });
    let near = |draft: &mut Draft| {
        let kind = RoleKind::IntraComm;
        let leaf = via.leaf(config.copy_stages);
        let push = draft.family("gather", kind, leaf, domain, order, vec![src, dst]);
        Writer::new(push, Operand::Dst, word).on_each((to, each))
    };
    let mut theirs = None;
    let arrived = delivery.bring(draft, near, |draft| {
        theirs = factors.as_ref().map(|own| own.over_rail(draft, &x.name, rows));
        delivery.stage(draft, shard)
    });
    draft.flows[arrived].from.extend(first.into_iter().chain(theirs));
    let whole = whole.then_some(rows.capacity);
    Gathered {
        shard,
        all,
        whole,
        slices,
        factors,
        own_rows,
        by_shard: false,
        arrived,
        height: block,
        blocks,
        per_word: 1,
    }
}
