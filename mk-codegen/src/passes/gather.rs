//! Tiles a gather of rows: every rank pushes its rows to its peers, chunk by chunk.
//!
//! Assumes a matrix `[M, K] @ shard(0)`. Leaves: `all`, a symmetric buffer `[world, rows, K]` on every rank, written by
//! the ranks that own the rows, with a flow per block of rows. A chunk is read once and written to every peer.
//!
//! Rows may travel in slices of K: `all` is then `[slices, world, rows, K / slices]`, so that what a task writes is contiguous,
//! with a word for each slice of a block. The first slices of as many rows as the SMs work on at a time leave before the second
//! ones do.
//!
//! Or the copy engine pushes a shard, in a few parts, to one peer after the other, with a word for each part. It is not in the
//! kernel: it waits for every rank's entry, the own one too, and a launch is not over before it is through.

use super::{
    draft::{Covers, Draft, Flow, Reader, Writer, read, write},
    rows::Rows,
    select::{Kernel, Tensor},
};
use crate::ir::{
    Access, BufId, COPY_STAGE_BYTES, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Space,
    Var,
};
use crate::settings::{Config, Gather};
use crate::target::Target;

/// What a gather leaves for its readers.
pub(super) struct Gathered {
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
    words: i32,
    per_word: i32,
    /// The family that pushes, and the word that one of its tasks raises.
    push: FamId,
    raised: Vec<Expr>,
    to: Expr,
    each: Option<Each>,
    /// Tasks that raise one.
    pieces: i32,
}

/// More slices would only add signals.
const MAX_SLICES: u32 = 256;

/// More parts of a shard would only add operations of the host.
const MAX_PARTS: u32 = 32;

/// How rows are cut along K on their way.
#[derive(Clone, Copy)]
pub(super) struct Slices {
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

/// Elements of a row that keep its pitch a multiple of 16 bytes.
pub(super) fn aligned(elements: i32, size_bytes: u64) -> i32 {
    let unit = (16 / size_bytes) as i32;
    (elements + unit - 1) / unit * unit
}

/// The rank `s + 1` places after this one.
pub(super) fn peer(s: Expr, world: i32) -> Expr {
    peer_at(s + 1, world)
}

/// Every rank but this one: which, and how many.
pub(super) fn every_peer(world: i32) -> (Expr, Each) {
    (peer(Var::EACH.into(), world), Each { var: "p".into(), extent: (world - 1).into() })
}

/// The rank `places` after this one.
pub(super) fn peer_at(places: Expr, world: i32) -> Expr {
    (Expr::from(Var::RANK) + places) % world
}

/// Rows of block `i` of height `block` among `rows`; 0 or less past the end.
pub(super) fn block_rows(rows: Expr, i: Expr, block: i32) -> Expr {
    Expr::Const(block).min(rows - i * block)
}

/// Adds the push of `x`, which the caller gives in `shard`, by whom the settings say.
pub(super) fn push(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    slices: Option<Slices>,
    config: &Config,
) -> Gathered {
    match config.gather {
        Gather::Sms => by_sms(draft, x, shard, rows, slices, config),
        Gather::CopyEngine { parts } => by_engine(draft, x, shard, rows, parts),
    }
}

/// Whether bulk copies take rows: they have no gaps.
pub(super) fn in_bulk(x: &Tensor) -> bool {
    let k = x.shape[1].value;
    aligned(k, x.dtype.size_bytes()) == k
}

fn by_engine(draft: &mut Draft, x: &Tensor, shard: BufId, rows: &Rows, parts: u32) -> Gathered {
    let world = draft.world();
    let blocks = rows.blocks.max(1);
    let parts = (parts.min(MAX_PARTS) as i32).clamp(1, blocks);
    let per_word = (blocks + parts - 1) / parts;
    let (words, height) = ((blocks + per_word - 1) / per_word, per_word * rows.height);
    let k = draft.dim(&x.shape[1]);
    let shape = vec![world.into(), rows.capacity.into(), k.clone()];
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, None);
    let (s, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
    // The first to come is that of the rank after one's own, as products take them.
    let to = peer_at(Expr::Const(world - 1) - s.clone(), world);
    let mine = draft.local(x, 0, Var::RANK);
    let part = (p.clone() * height, block_rows(mine, p.clone(), height));
    let src = read(Operand::Src, shard, vec![part.clone(), (0.into(), k.clone())]);
    let region = vec![(Var::RANK.into(), 1.into()), part, (0.into(), k)];
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, all, region) };
    let domain = || vec![("s", (world - 1).into()), ("c", words.into())];
    let accesses = vec![src, dst];
    let kind = RoleKind::CopyEngine;
    let push = draft.family("gather", kind, Leaf::HostCopy, domain(), vec![], accesses);
    // Until then the caller's tensor is read.
    let sent = draft.family("sent", RoleKind::Epilogue, Leaf::Signal, domain(), vec![], Vec::new());
    draft.hand_over(Flow {
        name: "sent",
        shape: vec![(world - 1).into(), words.into()],
        from: vec![Writer {
            family: push,
            operand: Operand::Dst,
            word: vec![s.clone(), p.clone()],
            rank: Var::RANK.into(),
            each: None,
            when: None,
        }],
        count: 1.into(),
        to: vec![Reader {
            family: sent,
            operand: Operand::Src,
            word: vec![s, p.clone()],
            each: None,
            when: None,
        }],
    });
    Gathered {
        shard,
        all,
        slices: None,
        own_rows: false,
        by_shard: true,
        words,
        per_word,
        push,
        raised: vec![Var::RANK.into(), p],
        to,
        each: None,
        pieces: 1,
    }
}

fn by_sms(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    rows: &Rows,
    slices: Option<Slices>,
    config: &Config,
) -> Gathered {
    let (world, block) = (draft.world(), rows.height);
    let size_bytes = x.dtype.size_bytes();
    let k_value = x.shape[1].value;
    let padded = aligned(k_value, size_bytes);
    // Rows that bulk copies cannot take go through registers, into rows that they and TMA can.
    let bulk = padded == k_value;
    let slices = slices.filter(|_| bulk);
    let blocks = rows.blocks;
    let row_bytes = (slices.map_or(k_value, |s| s.depth) as u64 * size_bytes).max(1);
    let mut piece = block;
    while piece > 8 && piece % 2 == 0 && piece as u64 * row_bytes > u64::from(config.chunk_bytes) {
        piece /= 2;
    }
    let pieces = (block + piece - 1) / piece;
    let k = draft.dim(&x.shape[1]);
    let pitch = (!bulk).then_some(Expr::Const(padded));
    let shape = match slices {
        None => vec![world.into(), rows.capacity.into(), k.clone()],
        Some(s) => vec![s.count.into(), world.into(), rows.capacity.into(), s.depth.into()],
    };
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, pitch);

    let last = if slices.is_some() { 2 } else { 1 };
    let (i, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(last)));
    let mine = draft.local(x, 0, Var::RANK);
    let base = i.clone() * block + p * piece;
    // Neither past the end of the shard, nor into the next block.
    let in_block = if block % piece == 0 {
        Expr::Const(piece)
    } else {
        Expr::Const(piece).min(i.clone() * block + block - base.clone())
    };
    let len = in_block.min(mine - base.clone());
    let each = Each { var: "s".into(), extent: (if bulk { world - 1 } else { world }).into() };
    let to = peer(Var::EACH.into(), world);
    let leaf = Leaf::CopyTile {
        via: if bulk { CopyVia::Bulk } else { CopyVia::Ldst },
        stages: config.copy_stages,
    };
    let q = Expr::from(Var::domain(1));
    let columns = match slices {
        None => (0.into(), k.clone()),
        Some(s) => (q.clone() * s.depth, s.depth.into()),
    };
    let src = read(Operand::Src, shard, vec![(base.clone(), len.clone()), columns]);
    let mut region = vec![(Var::RANK.into(), 1.into()), (base, len), (0.into(), k)];
    if let Some(s) = slices {
        region[2].1 = s.depth.into();
        region.insert(0, (q, 1.into()));
    }
    let each = Some(each);
    let dst = Access { rank: to.clone(), each: each.clone(), ..write(Operand::Dst, all, region) };
    let mut domain = vec![("i", blocks.into()), ("p", pieces.into())];
    let mut order = Vec::new();
    if let Some(s) = slices {
        domain.insert(1, ("q", s.count.into()));
        order = rows.own().order(s.together, s.count, pieces);
        order.push(Expr::from(Var::LINEAR) % pieces);
    }
    let push = draft.family("gather", RoleKind::IntraComm, leaf, domain, order, vec![src, dst]);
    let mut raised = vec![Var::RANK.into(), Var::domain(0).into()];
    if slices.is_some() {
        raised.push(Var::domain(1).into());
    }
    Gathered {
        shard,
        all,
        slices,
        own_rows: !bulk,
        by_shard: false,
        words: blocks,
        per_word: 1,
        push,
        raised,
        to,
        each,
        pieces,
    }
}

/// Adds the flow from the push to a family that reads what arrives; with slices, in each iteration of its inner loop one.
pub(super) fn flow(
    draft: &mut Draft,
    g: &Gathered,
    operand: Operand,
    to: Covers,
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
            family: g.push,
            operand: Operand::Dst,
            word: g.raised.clone(),
            rank: g.to.clone(),
            each: g.each.clone(),
            when: None,
        }],
        count: g.pieces.into(),
        to: vec![Reader { family: to.family, operand, word: read, each: None, when: None }],
    });
}

/// A copy of whole rows.
fn leaf(bulk: bool, config: &Config) -> Leaf {
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    Leaf::CopyTile { via, stages: config.copy_stages }
}

/// Copies all rows of `x` to `out`: the own ones from the caller's shard, the peers' as they arrive.
pub(super) fn collect(
    draft: &mut Draft,
    x: &Tensor,
    shard: BufId,
    gathered: Option<&Gathered>,
    out: BufId,
    rows: &Rows,
    leaf: &Leaf,
) {
    let block = rows.height;
    let k = draft.dim(&x.shape[1]);
    let width = (Expr::Const(0), k);
    let own = rows.own();
    let i = Expr::from(Var::domain(0));
    let r = own.block(draft);
    let from = if rows.shards > 1 { r.at.clone() } else { rows.global(&r) };
    let src = read(Operand::Src, shard, vec![(from, r.len.clone()), width.clone()]);
    let dst = write(Operand::Dst, out, vec![(own.global(&r), r.len), width.clone()]);
    let domain = vec![("i", rows.blocks.into())];
    draft.family("copy.own", RoleKind::Compute, leaf.clone(), domain, vec![], vec![src, dst]);
    let Some(g) = gathered else { return };
    // Blocks arrive from all peers at once: walk them in that order.
    let world = draft.world();
    let q = peer(Expr::from(Var::domain(1)), world);
    let theirs = draft.local(x, 0, q.clone());
    let len = block_rows(theirs, i.clone(), block);
    let at = i.clone() * block;
    let from = vec![(q.clone(), 1.into()), (at.clone(), len.clone()), width.clone()];
    let src = read(Operand::Src, g.all, from);
    let row = q.clone() * rows.per_shard.clone() + at;
    let dst = write(Operand::Dst, out, vec![(row, len), width]);
    let domain = vec![("i", rows.blocks.into()), ("s", (world - 1).into())];
    let copy =
        draft.family("copy.peers", RoleKind::Compute, leaf.clone(), domain, vec![], vec![src, dst]);
    flow(draft, g, Operand::Src, Covers { family: copy, shard: q, block: i }, None);
}

/// A gather that is the whole pipeline: what arrives is copied on to the caller's tensor.
pub(super) fn alone(kernel: &Kernel, config: &Config, target: &'static Target) -> Draft {
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config, target);
    let x = &kernel.params[kernel.sources[0].param];
    let world = draft.world();
    let shard = draft.tensor(x, Space::In);
    let out = draft.tensor(&kernel.results[0].out, Space::Out);
    let rows = Rows::new(&mut draft, x, world > 1, 128);
    let g = (world > 1).then(|| push(&mut draft, x, shard, &rows, None, config));
    let bulk = aligned(x.shape[1].value, x.dtype.size_bytes()) == x.shape[1].value;
    collect(&mut draft, x, shard, g.as_ref(), out, &rows, &leaf(bulk, config));
    draft
}
