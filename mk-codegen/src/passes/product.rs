//! The tiles of one matrix product: what a family of them reads, in which order, and where each goes.

use super::{
    draft::{Covers, Draft, read, write},
    gather::block_rows,
    rows::{RowBlock, Rows},
    select::Gemm,
};
use crate::ir::{Access, BLayout, BufId, EpilogueOp, Expr, Leaf, Operand, Point, RoleKind, Var};

const EXTRAS: [Operand; 4] = [Operand::E0, Operand::E1, Operand::E2, Operand::E3];

/// Where a product goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// `[rows, n]` of the caller.
    Out(BufId),
    /// `[shards, rows, n]` in scratch, for the next product.
    Hidden(BufId),
    /// `[sources, rows, n]` on the owner of the rows.
    Slots(BufId),
    /// `[shards, rows, n]` of the own rank, for every rank to read.
    Parts(BufId),
    /// `[parts of k, rows of all shards, n]` in scratch, to be added up.
    Splits(BufId),
}

/// What the tiles of one product share.
pub(super) struct Product<'a> {
    pub g: &'a Gemm,
    pub name: String,
    pub leaf: Leaf,
    pub rows: Rows,
    pub group: i32,
    pub k: Expr,
    pub n: Expr,
    pub col_blocks: i32,
    pub b: BufId,
    pub extras: Vec<BufId>,
    pub target: Target,
    /// Parts of k that are multiplied side by side, and the extent of one.
    pub split: [i32; 2],
    /// Rows of a gathered operand that its owner multiplies, too.
    pub own: Option<Rows>,
}

impl Product<'_> {
    /// A block of rows in `[shards, rows, k]`.
    pub fn in_shards(&self, r: &RowBlock) -> Vec<(Expr, Expr)> {
        vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), self.depth(r)]
    }

    /// The part of k that a task multiplies.
    pub fn depth(&self, r: &RowBlock) -> (Expr, Expr) {
        let [parts, part] = self.split;
        if parts == 1 {
            return (0.into(), self.k.clone());
        }
        let k = Expr::from(Var::domain(r.loops + 1));
        (k.clone() * part, block_rows(self.k.clone(), k, part))
    }

    /// The tiles of some rows, as a family; `a` says where a block of the left operand's rows is.
    pub fn family(
        &self,
        draft: &mut Draft,
        name: &str,
        rows: &Rows,
        a: impl Fn(&RowBlock) -> (BufId, Vec<(Expr, Expr)>),
    ) -> Covers {
        let Leaf::MmaTile { block, b_layout, epilogue, .. } = &self.leaf else {
            return Covers { family: crate::ir::Entity::new(0), shard: 0.into(), block: 0.into() };
        };
        let width = self.leaf.out_columns() as i32;
        let r = rows.block(draft, block[0] as i32);
        let (buffer, region) = a(&r);
        let j = rows.column();
        let cols = (j.clone() * width, block_rows(self.n.clone(), j, width));
        let depth = self.depth(&r);
        let mut b = match b_layout {
            BLayout::Kn => vec![depth, cols.clone()],
            BLayout::Nk => vec![cols.clone(), depth],
        };
        if self.g.gated() {
            b.insert(1, (0.into(), 2.into()));
        }
        let mut accesses = vec![read(Operand::A, buffer, region), read(Operand::B, self.b, b)];
        let row = rows.global(&r);
        let reading = epilogue.iter().filter(|e| e.has_operand());
        for ((op, buffer), operand) in reading.zip(&self.extras).zip(EXTRAS) {
            let mut region = vec![cols.clone()];
            if *op != EpilogueOp::Bias {
                region.insert(0, (row.clone(), r.len.clone()));
            }
            // Read by the consumers once the tile is computed.
            accesses.push(Access { at: Point::End, ..read(operand, *buffer, region) });
        }
        let here = (r.at.clone(), r.len.clone());
        accesses.push(match self.target {
            Target::Out(out) => write(Operand::C, out, vec![(row, r.len.clone()), cols]),
            Target::Hidden(h) | Target::Parts(h) => {
                write(Operand::C, h, vec![(r.shard.clone(), 1.into()), here, cols])
            }
            Target::Splits(s) => {
                let k = Expr::from(Var::domain(r.loops + 1));
                let at = r.shard.clone() * rows.capacity + r.at.clone();
                write(Operand::C, s, vec![(k, 1.into()), (at, r.len.clone()), cols])
            }
            Target::Slots(slots) => Access {
                rank: if rows.shards > 1 { r.shard.clone() } else { Var::RANK.into() },
                ..write(Operand::C, slots, vec![(Var::RANK.into(), 1.into()), here, cols])
            },
        });
        let mut domain = rows.domain(self.col_blocks);
        let [parts, _] = self.split;
        let mut order = rows.order(self.group, self.col_blocks, parts);
        if parts > 1 {
            domain.push(("k", parts.into()));
            order.push(Expr::from(Var::LINEAR) % parts);
        }
        let family =
            draft.family(name, RoleKind::Compute, self.leaf.clone(), domain, order, accesses);
        Covers { family, shard: r.shard, block: r.block }
    }
}
