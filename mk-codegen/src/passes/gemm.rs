//! Tiles matrix products, one after the other.
//!
//! Assumes fused epilogues. Leaves: tiles of each product in an L2-friendly order, those with local operands first, then
//! those whose rows arrive from peers; a product that another one reads goes to scratch, with a flow per block of rows; a
//! product that is reduced goes to its owners' slots; operands whose rows TMA cannot take (pitch not a multiple of 16
//! bytes) are repacked first.

use super::{
    Config, LowerError,
    draft::{Covers, Draft, Flow, Reader, Writer, read, shard_extent, write},
    gather::{self, Gathered, aligned, block_rows},
    reduce,
    rows::Rows,
    select::{Gemm, Kernel, Tensor},
};
use crate::ir::{
    Access, BLayout, BufId, CopyVia, EpilogueOp, Expr, FamId, Leaf, Operand, Point, RoleKind,
    Space, Store, Var,
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

/// The left operand of a product.
enum Left {
    /// On the own rank, `[rows, k]`.
    Local(BufId),
    /// Own rows in the caller's shard, peers' rows through the gather.
    Gathered(Gathered),
    /// The product before: `[shards, rows, k]`, with its families and the tiles of a row of blocks.
    Hidden { buffer: BufId, by: Vec<Covers>, tiles: i32 },
}

/// Where a product goes.
#[derive(Clone, Copy)]
enum Target {
    /// `[rows, n]` of the caller.
    Out(BufId),
    /// `[shards, rows, n]` in scratch, for the next product.
    Hidden(BufId),
    /// `[sources, rows, n]` on the owner of the rows.
    Slots(BufId),
}

/// What the tiles of one product share.
struct Product<'a> {
    g: &'a Gemm,
    leaf: Leaf,
    block: [i32; 2],
    group: i32,
    k: Expr,
    n: Expr,
    col_blocks: i32,
    b: BufId,
    extras: Vec<BufId>,
    target: Target,
}

/// Runs the pass.
///
/// # Errors
/// If the tile shape is not one that the leaf has.
pub(super) fn tile(kernel: &Kernel, config: &Config) -> Result<Draft, LowerError> {
    let [bm, bn, bk] = config.block;
    let wide = bm == 256 && bn > 160;
    let known = [32, 64, 96, 128, 160, 192, 256].contains(&bn);
    if ![128, 256].contains(&bm) || !known || wide || bk != 64 {
        return Err(LowerError::Config {
            what: format!("no matrix product has tiles of {bm} x {bn} x {bk}"),
            help: "use 128 rows and 32, 64, 96, 128, 160, 192 or 256 columns, or 256 rows and at most 160; a depth of 64"
                .into(),
        });
    }
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config);
    let world = draft.world();
    let gathered = kernel.gathered && world > 1;
    let mut left = if gathered {
        Left::Gathered(gather::push(&mut draft, &kernel.x, bm as i32, config))
    } else {
        Left::Local(draft.tensor(&kernel.x, Space::In))
    };
    let mut rows = all_rows(kernel, gathered, world, bm as i32);
    // Peers first: the own rows need no link, and nobody waits for them.
    rows.first = i32::from(rows.shards > 1);
    let mut depth = kernel.x.clone();
    if gathered {
        depth.placement = Placement::Replicate;
    }
    // Scratch and slots are padded; the caller's rows are as they are. All products share one ring, and so one way to store.
    let n_out = widest(&kernel.out, 1, world);
    let whole =
        aligned(n_out, kernel.out.dtype.size_bytes()) == n_out && even(&kernel.out, 1, world);
    let store = if whole || kernel.reduce.is_some() { Store::Tma } else { Store::Direct };
    let last = kernel.gemms.len() - 1;
    for (n, g) in kernel.gemms.iter().enumerate() {
        let b = draft.tensor(&g.b, Space::In);
        let extras: Vec<_> = g.extras.iter().map(|x| draft.tensor(x, Space::In)).collect();
        let target = match (n == last, kernel.reduce) {
            (true, None) => Target::Out(draft.tensor(&kernel.out, Space::Out)),
            (true, Some(_)) => {
                Target::Slots(reduce::slots(&mut draft, &kernel.out, rows.per_shard))
            }
            (false, _) => Target::Hidden(hidden(&mut draft, g, &rows, n)),
        };
        let own_a = match left {
            Left::Local(a) => pack(&mut draft, &kernel.x, a),
            _ => None,
        };
        if let Some(p) = &own_a {
            left = Left::Local(p.buffer);
        }
        let own_b = pack(&mut draft, &g.b, b);
        let product = product(
            &mut draft,
            g,
            &depth,
            target,
            own_b.as_ref().map_or(b, |p| p.buffer),
            extras,
            store,
            config,
        );
        let by = product.tiles(&mut draft, &left, &rows, kernel.gemms.len() > 1, n);
        for (packed, operand) in [(own_a, Operand::A), (own_b, Operand::B)] {
            if let Some(p) = packed {
                flow_packed(&mut draft, &p, operand, &by);
            }
        }
        if let (Target::Slots(slots), Some(how)) = (target, kernel.reduce) {
            let (block, from) = (product.block, by.clone());
            reduce::sum(&mut draft, slots, how, &kernel.out, &rows, block, Operand::C, from);
        }
        if let Target::Hidden(buffer) = target {
            left = Left::Hidden { buffer, by, tiles: product.col_blocks };
        }
        depth = g.out.clone();
    }
    Ok(draft)
}

/// How the rows of all products are cut: by owner if they come from owners or go to owners.
fn all_rows<'k>(kernel: &'k Kernel, gathered: bool, world: i32, height: i32) -> Rows<'k> {
    let by_owner = world > 1 && (gathered || kernel.reduce.is_some());
    let (of, shards) = if by_owner { (&kernel.x, world) } else { (&kernel.x, 1) };
    let per_shard = if by_owner { shard_extent(&of.shape[0], world) } else { widest(of, 0, world) };
    let blocks = (per_shard + height - 1) / height;
    Rows { of, per_shard, blocks, shards, first: 0, count: shards }
}

/// The most elements of a dimension that any rank has.
fn widest(t: &Tensor, dim: usize, world: i32) -> i32 {
    let e = &t.shape[dim];
    if t.placement == Placement::Shard(dim) { shard_extent(e, world) } else { e.value }
}

/// Whether all ranks have equally many elements of a dimension.
fn even(t: &Tensor, dim: usize, world: i32) -> bool {
    t.placement != Placement::Shard(dim) || t.shape[dim].value % world == 0
}

/// Scratch between two products.
fn hidden(draft: &mut Draft, g: &Gemm, rows: &Rows<'_>, n: usize) -> BufId {
    let world = draft.world();
    let cols = draft.local(&g.out, 1, Var::RANK);
    let widest = widest(&g.out, 1, world);
    let padded = aligned(widest, g.out.dtype.size_bytes());
    let pitch = (padded != widest || !even(&g.out, 1, world)).then_some(Expr::Const(padded));
    let shape = vec![rows.shards.into(), rows.per_shard.into(), cols];
    draft.buffer(&format!("hidden{n}"), Space::Scratch, g.out.dtype, shape, pitch)
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

fn flow_packed(draft: &mut Draft, p: &Packed, operand: Operand, to: &[Covers]) {
    draft.flows.push(Flow {
        name: if operand == Operand::A { "packed_a" } else { "packed_b" },
        shape: vec![1.into()],
        from: vec![Writer {
            family: p.by,
            operand: Operand::Dst,
            word: vec![0.into()],
            rank: Var::RANK.into(),
            each: None,
        }],
        count: p.tasks.into(),
        to: to
            .iter()
            .map(|c| Reader { family: c.family, operand, word: vec![0.into()], each: None })
            .collect(),
    });
}

#[expect(clippy::too_many_arguments, reason = "each is one independent fact")]
fn product<'a>(
    draft: &mut Draft,
    g: &'a Gemm,
    depth: &Tensor,
    target: Target,
    b: BufId,
    extras: Vec<BufId>,
    store: Store,
    config: &Config,
) -> Product<'a> {
    let world = draft.world();
    let [bm, bn, _] = config.block.map(|x| x as i32);
    let n_local = widest(&g.out, 1, world);
    Product {
        g,
        leaf: Leaf::MmaTile {
            block: config.block,
            stages: config.gemm_stages,
            b_layout: BLayout::Kn,
            store,
            epilogue: g.epilogue.clone(),
        },
        block: [bm, bn],
        group: config.group_rows.max(1) as i32,
        k: draft.local(depth, 1, Var::RANK),
        n: draft.local(&g.out, 1, Var::RANK),
        col_blocks: (n_local + bn - 1) / bn,
        b,
        extras,
        target,
    }
}

impl Product<'_> {
    /// All tiles: each family with the shard and block of rows that its tasks cover.
    fn tiles(
        &self,
        draft: &mut Draft,
        left: &Left,
        rows: &Rows<'_>,
        numbered: bool,
        n: usize,
    ) -> Vec<Covers> {
        let base = if numbered { format!("gemm{n}") } else { "gemm".to_string() };
        match left {
            Left::Local(a) => {
                let sharded = rows.shards > 1;
                vec![self.family(draft, &base, rows, |r| {
                    let at = if sharded {
                        r.shard.clone() * rows.per_shard + r.at.clone()
                    } else {
                        r.at.clone()
                    };
                    (*a, vec![(at, r.len.clone()), (0.into(), self.k.clone())])
                })]
            }
            Left::Gathered(x) => {
                let mut out = Vec::new();
                if !x.own_rows {
                    let own = Rows { first: 0, count: 1, ..*rows };
                    out.push(self.family(draft, &format!("{base}.own"), &own, |r| {
                        (x.shard, vec![(r.at.clone(), r.len.clone()), (0.into(), self.k.clone())])
                    }));
                }
                let count = if x.own_rows { rows.shards } else { rows.shards - 1 };
                let theirs = Rows { first: 1, count, ..*rows };
                let name = if x.own_rows { base } else { format!("{base}.peers") };
                let covers = self.family(draft, &name, &theirs, |r| (x.all, self.in_shards(r)));
                gather::flow(draft, x, Operand::A, covers.clone());
                out.push(covers);
                out
            }
            Left::Hidden { buffer, by, tiles } => {
                let covers = self.family(draft, &base, rows, |r| (*buffer, self.in_shards(r)));
                let writer = |c: &Covers| Writer {
                    family: c.family,
                    operand: Operand::C,
                    word: vec![c.shard.clone(), c.block.clone()],
                    rank: Var::RANK.into(),
                    each: None,
                };
                draft.flows.push(Flow {
                    name: "hidden",
                    shape: vec![rows.shards.into(), rows.blocks.into()],
                    from: by.iter().map(writer).collect(),
                    count: (*tiles).into(),
                    to: vec![Reader {
                        family: covers.family,
                        operand: Operand::A,
                        word: vec![covers.shard.clone(), covers.block.clone()],
                        each: None,
                    }],
                });
                vec![covers]
            }
        }
    }

    /// A block of rows in `[shards, rows, k]`.
    fn in_shards(&self, r: &super::rows::RowBlock) -> Vec<(Expr, Expr)> {
        vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), (0.into(), self.k.clone())]
    }

    fn family(
        &self,
        draft: &mut Draft,
        name: &str,
        rows: &Rows<'_>,
        a: impl Fn(&super::rows::RowBlock) -> (BufId, Vec<(Expr, Expr)>),
    ) -> Covers {
        let r = rows.block(draft, self.block[0]);
        let (buffer, region) = a(&r);
        let j = rows.column();
        let col = j.clone() * self.block[1];
        let cols = block_rows(self.n.clone(), j, self.block[1]);
        let mut accesses = vec![
            read(Operand::A, buffer, region),
            read(Operand::B, self.b, vec![(0.into(), self.k.clone()), (col.clone(), cols.clone())]),
        ];
        let row = if rows.shards > 1 {
            r.shard.clone() * rows.per_shard + r.at.clone()
        } else {
            r.at.clone()
        };
        let reading = self.g.epilogue.iter().filter(|e| e.has_operand());
        for ((op, buffer), operand) in reading.zip(&self.extras).zip(EXTRAS) {
            let mut region = vec![(col.clone(), cols.clone())];
            if *op != EpilogueOp::Bias {
                region.insert(0, (row.clone(), r.len.clone()));
            }
            // Read by the consumers once the tile is computed.
            accesses.push(Access { at: Point::End, ..read(operand, *buffer, region) });
        }
        let (len, columns) = (r.len.clone(), (col, cols));
        accesses.push(match self.target {
            Target::Out(out) => write(Operand::C, out, vec![(row, len), columns]),
            Target::Hidden(h) => write(
                Operand::C,
                h,
                vec![(r.shard.clone(), 1.into()), (r.at.clone(), len), columns],
            ),
            Target::Slots(slots) => Access {
                rank: if rows.shards > 1 { r.shard.clone() } else { Var::RANK.into() },
                ..write(
                    Operand::C,
                    slots,
                    vec![(Var::RANK.into(), 1.into()), (r.at.clone(), len), columns],
                )
            },
        });
        let domain = rows.domain(self.col_blocks);
        let order = rows.order(self.group, self.col_blocks);
        let family =
            draft.family(name, RoleKind::Compute, self.leaf.clone(), domain, order, accesses);
        Covers { family, shard: r.shard, block: r.block }
    }
}
