//! Tiles a gather of rows: every rank pushes its rows to its peers, chunk by chunk.
//!
//! Assumes a matrix `[M, K] @ shard(0)`. Leaves: `all`, a symmetric buffer `[world, rows, K]` on every rank, written by
//! the ranks that own the rows, with a flow per block of rows. A chunk is read once and written to every peer.

use super::{
    Config, LowerError,
    draft::{Covers, Draft, Flow, Reader, Writer, read, shard_extent, write},
    select::{Kernel, Tensor},
};
use crate::ir::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Space, Var};

/// What a gather leaves for its readers.
pub(super) struct Gathered {
    /// The caller's shard.
    pub shard: BufId,
    /// Rows of a full shard.
    pub rows: i32,
    /// `[world, rows, K]`. Holds the own rows, too, if `own_rows` is set.
    pub all: BufId,
    /// Whether the own rows are in `all`; else they are read from `shard`.
    pub own_rows: bool,
    /// Blocks of rows in a shard: one word of the flow each.
    pub blocks: i32,
    /// The family that pushes.
    pub push: FamId,
    /// Chunks of a block.
    pub pieces: i32,
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

/// The rank `places` after this one.
pub(super) fn peer_at(places: Expr, world: i32) -> Expr {
    (Expr::from(Var::RANK) + places) % world
}

/// Rows of block `i` of height `block` among `rows`; 0 or less past the end.
pub(super) fn block_rows(rows: Expr, i: Expr, block: i32) -> Expr {
    Expr::Const(block).min(rows - i * block)
}

/// Adds the push of `x` in blocks of `block` rows.
pub(super) fn push(draft: &mut Draft, x: &Tensor, block: i32, config: &Config) -> Gathered {
    let world = draft.world();
    let size_bytes = x.dtype.size_bytes();
    let k_value = x.shape[1].value;
    let padded = aligned(k_value, size_bytes);
    // Rows that bulk copies cannot take go through registers, into rows that they and TMA can.
    let bulk = padded == k_value;
    let rows = shard_extent(&x.shape[0], world);
    let blocks = (rows + block - 1) / block;
    let row_bytes = (k_value as u64 * size_bytes).max(1);
    let mut piece = block;
    while piece > 8 && piece % 2 == 0 && piece as u64 * row_bytes > u64::from(config.chunk_bytes) {
        piece /= 2;
    }
    let pieces = (block + piece - 1) / piece;
    let k = draft.dim(&x.shape[1]);
    let shard = draft.tensor(x, Space::In);
    let pitch = (!bulk).then_some(Expr::Const(padded));
    let shape = vec![world.into(), rows.into(), k.clone()];
    let all = draft.buffer(&format!("{}_all", x.name), Space::Workspace, x.dtype, shape, pitch);

    let (i, p) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
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
    let src = read(Operand::Src, shard, vec![(base.clone(), len.clone()), (0.into(), k.clone())]);
    let dst = Access {
        rank: to,
        each: Some(each),
        ..write(Operand::Dst, all, vec![(Var::RANK.into(), 1.into()), (base, len), (0.into(), k)])
    };
    let domain = vec![("i", blocks.into()), ("p", pieces.into())];
    let push = draft.family("gather", RoleKind::IntraComm, leaf, domain, vec![], vec![src, dst]);
    Gathered { shard, rows, all, own_rows: !bulk, blocks, push, pieces }
}

/// Adds the flow from the push to a family that reads what arrives.
pub(super) fn flow(draft: &mut Draft, g: &Gathered, operand: Operand, to: Covers) {
    let world = draft.world();
    let extent = if g.own_rows { world } else { world - 1 };
    draft.flows.push(Flow {
        name: "arrived",
        shape: vec![world.into(), g.blocks.into()],
        from: vec![Writer {
            family: g.push,
            operand: Operand::Dst,
            word: vec![Var::RANK.into(), Var::domain(0).into()],
            rank: peer(Var::EACH.into(), world),
            each: Some(Each { var: "s".into(), extent: extent.into() }),
        }],
        count: g.pieces.into(),
        to: vec![Reader { family: to.family, operand, word: vec![to.shard, to.block], each: None }],
    });
}

/// A gather that is the whole pipeline: what arrives is copied on to the caller's tensor.
///
/// # Errors
/// None so far.
pub(super) fn alone(kernel: &Kernel, config: &Config) -> Result<Draft, LowerError> {
    const BLOCK: i32 = 128;
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config);
    let x = &kernel.x;
    let world = draft.world();
    let k = draft.dim(&x.shape[1]);
    let m = draft.dim(&x.shape[0]);
    let bulk = |own: bool| {
        let fits = aligned(x.shape[1].value, x.dtype.size_bytes()) == x.shape[1].value;
        let via = if fits { CopyVia::Bulk } else { CopyVia::Ldst };
        (
            Leaf::CopyTile { via, stages: config.copy_stages },
            if own { "copy.own" } else { "copy.peers" },
        )
    };
    let (i, rank) = (Expr::from(Var::domain(0)), Expr::from(Var::RANK));
    let rows_at = |q: Expr, rows: i32, i: Expr| q * rows + i * BLOCK;
    let g = (world > 1).then(|| push(&mut draft, x, BLOCK, config));
    let (shard, rows, blocks) = match &g {
        Some(g) => (g.shard, g.rows, g.blocks),
        None => {
            let rows = x.shape[0].value;
            (draft.tensor(x, Space::In), rows, (rows + BLOCK - 1) / BLOCK)
        }
    };
    let out = draft.buffer("out", Space::Out, x.dtype, vec![m, k.clone()], None);

    let mine = draft.local(x, 0, Var::RANK);
    let len = block_rows(mine, i.clone(), BLOCK);
    let (leaf, name) = bulk(true);
    let src =
        read(Operand::Src, shard, vec![(i.clone() * BLOCK, len.clone()), (0.into(), k.clone())]);
    let dst = write(Operand::Dst, out, vec![(rows_at(rank, rows, i), len), (0.into(), k.clone())]);
    draft.family(name, RoleKind::Compute, leaf, vec![("i", blocks.into())], vec![], vec![src, dst]);

    if let Some(g) = &g {
        // Blocks arrive from all peers at once: walk them in that order.
        let (i, s) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
        let q = peer(s, world);
        let theirs = draft.local(x, 0, q.clone());
        let len = block_rows(theirs, i.clone(), BLOCK);
        let (leaf, name) = bulk(false);
        let from =
            vec![(q.clone(), 1.into()), (i.clone() * BLOCK, len.clone()), (0.into(), k.clone())];
        let src = read(Operand::Src, g.all, from);
        let dst = write(
            Operand::Dst,
            out,
            vec![(rows_at(q.clone(), rows, i.clone()), len), (0.into(), k)],
        );
        let domain = vec![("i", blocks.into()), ("s", (world - 1).into())];
        let copy = draft.family(name, RoleKind::Compute, leaf, domain, vec![], vec![src, dst]);
        flow(&mut draft, g, Operand::Src, Covers { family: copy, shard: q, block: i });
    }
    Ok(draft)
}
