//! Tiles a matrix product, with its left operand gathered or local.
//!
//! Assumes fused epilogues. Leaves: tiles of C in an L2-friendly order, own rows first, then the peers' in the order in
//! which they arrive; operands whose rows TMA cannot take (pitch not a multiple of 16 bytes) repacked first.

use super::{
    Config, LowerError,
    draft::{Draft, Flow, read, write},
    gather::{self, Gathered, aligned, block_rows, peer},
    select::{Gemm, Kernel, Tensor},
};
use crate::ir::{
    Access, BLayout, BufId, CopyVia, EpilogueOp, Expr, FamId, Leaf, Operand, RoleKind, Space,
    Store, Var,
};
use mk_syntax::Placement;

/// Rows that one repacking task copies.
const PACK_ROWS: i32 = 64;
const EXTRAS: [Operand; 4] = [Operand::E0, Operand::E1, Operand::E2, Operand::E3];

/// A repacked operand: where it is, who writes it, in how many tasks.
struct Packed {
    buffer: BufId,
    by: FamId,
    tasks: i32,
}

/// Pieces that all tiles share.
struct Tiles<'a> {
    g: &'a Gemm,
    leaf: Leaf,
    block: [i32; 2],
    group_rows: i32,
    k: Expr,
    n: Expr,
    col_blocks: i32,
    b: BufId,
    extras: Vec<BufId>,
    out: BufId,
}

/// Runs the pass.
///
/// # Errors
/// If the tile shape is not one that the leaf has.
pub(super) fn tile(kernel: &Kernel, g: &Gemm, config: &Config) -> Result<Draft, LowerError> {
    let [bm, bn, bk] = config.block;
    if ![128, 256].contains(&bm) || bn % 32 != 0 || !(32..=256).contains(&bn) || bk != 64 {
        return Err(LowerError::Config {
            what: format!("no matrix product has tiles of {bm} x {bn} x {bk}"),
            help: "use 128 or 256 rows, 32 to 256 columns in steps of 32, a depth of 64".into(),
        });
    }
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config);
    let world = draft.world();
    let gathered =
        (g.gathered && world > 1).then(|| gather::push(&mut draft, &g.a, bm as i32, config));
    let a = match &gathered {
        Some(x) => x.shard,
        None => draft.tensor(&g.a, Space::In),
    };
    let b = draft.tensor(&g.b, Space::In);
    let extras: Vec<_> = g.extras.iter().map(|x| draft.tensor(x, Space::In)).collect();
    let out = draft.tensor(&g.out, Space::Out);

    let own_a = match &gathered {
        Some(_) => None,
        None => pack(&mut draft, &g.a, a),
    };
    let own_b = pack(&mut draft, &g.b, b);
    let n_local = widest(&g.out, 1, world);
    let store = if aligned(n_local, 2) == n_local && even(&g.out, 1, world) {
        Store::Tma
    } else {
        Store::Direct
    };
    let k = draft.local(&g.a, 1, Var::RANK);
    let n = draft.local(&g.out, 1, Var::RANK);
    let tiles = Tiles {
        g,
        leaf: Leaf::MmaTile {
            block: config.block,
            stages: config.gemm_stages,
            b_layout: BLayout::Kn,
            store,
            epilogue: g.epilogue.clone(),
        },
        block: [bm as i32, bn as i32],
        group_rows: config.group_rows.max(1) as i32,
        k,
        n,
        col_blocks: (n_local + bn as i32 - 1) / bn as i32,
        b: own_b.as_ref().map_or(b, |p| p.buffer),
        extras,
        out,
    };
    let mut readers = Vec::new();
    match &gathered {
        Some(x) => with_gather(&mut draft, &tiles, x, &mut readers),
        None => {
            let from = own_a.as_ref().map_or(a, |p| p.buffer);
            let rows = draft.local(&g.a, 0, Var::RANK);
            let blocks = (widest(&g.a, 0, world) + tiles.block[0] - 1) / tiles.block[0];
            readers.push(tiles.local(&mut draft, "gemm", from, rows, blocks, Expr::Const(0)));
        }
    }
    for (packed, operand) in [(own_a, Operand::A), (own_b, Operand::B)] {
        let Some(p) = packed else { continue };
        draft.flows.push(Flow {
            name: if operand == Operand::A { "packed_a" } else { "packed_b" },
            shape: vec![1.into()],
            from: p.by,
            through: Operand::Dst,
            post: (vec![0.into()], Var::RANK.into(), None),
            count: p.tasks.into(),
            to: readers.iter().map(|f| (*f, operand, vec![0.into()])).collect(),
        });
    }
    Ok(draft)
}

/// The most elements of a dimension that any rank has.
fn widest(t: &Tensor, dim: usize, world: i32) -> i32 {
    let e = &t.shape[dim];
    if t.placement == Placement::Shard(dim) {
        super::draft::shard_extent(e, world)
    } else {
        e.value
    }
}

/// Whether all ranks have equally many elements of a dimension.
fn even(t: &Tensor, dim: usize, world: i32) -> bool {
    t.placement != Placement::Shard(dim) || t.shape[dim].value % world == 0
}

/// Copies a matrix into rows that TMA can take, if its own cannot be taken on every rank.
fn pack(draft: &mut Draft, t: &Tensor, from: BufId) -> Option<Packed> {
    let world = draft.world();
    let cols = widest(t, 1, world);
    let padded = aligned(cols, t.dtype.size_bytes());
    if padded == cols && even(t, 1, world) {
        return None;
    }
    let shape: Vec<_> = (0..2).map(|d| draft.local(t, d, Var::RANK)).collect();
    let name = format!("{}_packed", t.name);
    let pitch = Some(Expr::Const(padded));
    let buffer = draft.buffer(&name, Space::Scratch, t.dtype, shape.clone(), pitch);
    let tasks = (widest(t, 0, world) + PACK_ROWS - 1) / PACK_ROWS;
    let i = Expr::from(Var::domain(0));
    let len = block_rows(shape[0].clone(), i.clone(), PACK_ROWS);
    let region = vec![(i * PACK_ROWS, len), (0.into(), shape[1].clone())];
    let by = draft.family(
        &format!("pack.{}", t.name),
        RoleKind::Compute,
        Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 },
        vec![("i", tasks.into())],
        vec![],
        vec![read(Operand::Src, from, region.clone()), write(Operand::Dst, buffer, region)],
    );
    Some(Packed { buffer, by, tasks })
}

fn with_gather(draft: &mut Draft, tiles: &Tiles<'_>, x: &Gathered, readers: &mut Vec<FamId>) {
    let world = draft.world();
    let a = &tiles.g.a;
    if !x.own_rows {
        let rows = draft.local(a, 0, Var::RANK);
        let base = Expr::from(Var::RANK) * x.rows;
        readers.push(tiles.local(draft, "gemm.own", x.shard, rows, x.blocks, base));
    }
    // Blocks arrive from all peers at once: a group of row blocks takes the same block of every peer first.
    let peers = if x.own_rows { world } else { world - 1 };
    let (i, s, j) = (Var::domain(0), Var::domain(1), Var::domain(2));
    let q = peer(s.into(), world);
    let (row, order_j) = tiles.grouped(x.blocks * peers);
    let order = vec![row.clone() / peers, row % peers, order_j];
    let domain = vec![("i", x.blocks.into()), ("s", peers.into()), ("j", tiles.col_blocks.into())];
    let rows = draft.local(a, 0, q.clone());
    let i = Expr::from(i);
    let len = block_rows(rows, i.clone(), tiles.block[0]);
    let at = i.clone() * tiles.block[0];
    let region =
        vec![(q.clone(), 1.into()), (at.clone(), len.clone()), (0.into(), tiles.k.clone())];
    let mut accesses = vec![read(Operand::A, x.all, region)];
    tiles.rest(q.clone() * x.rows + at, len, j.into(), &mut accesses);
    let name = if x.own_rows { "gemm" } else { "gemm.peers" };
    let family = draft.family(name, RoleKind::Compute, tiles.leaf.clone(), domain, order, accesses);
    readers.push(family);
    gather::flow(draft, x, vec![(family, Operand::A, q, i)]);
}

impl Tiles<'_> {
    /// Row block and column block of tile `t` among `rows` row blocks, walked in groups of [`Config::group_rows`].
    fn grouped(&self, rows: i32) -> (Expr, Expr) {
        let t = Expr::from(Var::LINEAR);
        let in_group = self.group_rows * self.col_blocks;
        let first = t.clone() / in_group * self.group_rows;
        let height = Expr::Const(self.group_rows).min(Expr::Const(rows) - first.clone());
        let within = t % in_group;
        (first + within.clone() % height.clone(), within / height)
    }

    /// All tiles of a local left operand with `rows` rows; C's rows begin at `base`.
    fn local(
        &self,
        draft: &mut Draft,
        name: &str,
        a: BufId,
        rows: Expr,
        blocks: i32,
        base: Expr,
    ) -> FamId {
        let (i, j) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
        let (row, order_j) = self.grouped(blocks);
        let len = block_rows(rows, i.clone(), self.block[0]);
        let at = i * self.block[0];
        let mut accesses =
            vec![read(Operand::A, a, vec![(at.clone(), len.clone()), (0.into(), self.k.clone())])];
        self.rest(base + at, len, j, &mut accesses);
        let domain = vec![("i", blocks.into()), ("j", self.col_blocks.into())];
        draft.family(
            name,
            RoleKind::Compute,
            self.leaf.clone(),
            domain,
            vec![row, order_j],
            accesses,
        )
    }

    /// B, the epilogue's operands and C, for the tile at row `row` of the result and column block `j`.
    fn rest(&self, row: Expr, rows: Expr, j: Expr, accesses: &mut Vec<Access>) {
        let col = j.clone() * self.block[1];
        let cols = block_rows(self.n.clone(), j, self.block[1]);
        accesses.push(read(
            Operand::B,
            self.b,
            vec![(0.into(), self.k.clone()), (col.clone(), cols.clone())],
        ));
        let reading = self.g.epilogue.iter().filter(|e| e.has_operand());
        for ((op, buffer), operand) in reading.zip(&self.extras).zip(EXTRAS) {
            let mut region = vec![(col.clone(), cols.clone())];
            if *op != EpilogueOp::Bias {
                region.insert(0, (row.clone(), rows.clone()));
            }
            // Read by the consumers once the tile is computed.
            accesses.push(Access { at: crate::ir::Point::End, ..read(operand, *buffer, region) });
        }
        accesses.push(write(Operand::C, self.out, vec![(row, rows), (col, cols)]));
    }
}
