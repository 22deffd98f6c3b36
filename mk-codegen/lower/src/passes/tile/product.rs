//! The tiles of one GEMM: what a family of them reads, in which order, and where each goes.

use crate::passes::{
    draft::{Draft, Source, TileRows, read, write},
    shape::{
        kernel,
        ranks::block_rows,
        rows::{RowBlock, Rows},
    },
    strategies::{
        destination::Destination,
        gathered::{Gathered, Slices},
    },
};
use mk_plan::{
    Access, BLayout, BufId, EpilogueOp, Expr, Leaf, MmaTile, Operand, Point, QuantTile, RoleKind,
    Var, carry_last, gates_operand, named_operands,
};

/// How a GEMM's K is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Parts that are multiplied side by side.
    pub parts: i32,
    /// Extent of one.
    pub depth: i32,
    /// `[parts, rows of all shards, n]` in scratch, to be added up.
    pub into: BufId,
}

/// What the tiles of one GEMM share.
#[derive(Clone)]
pub(super) struct Product<'a> {
    pub g: &'a kernel::Product,
    pub name: String,
    pub tile: MmaTile,
    pub rows: Rows,
    pub group: i32,
    pub k: Expr,
    pub n: Expr,
    pub col_blocks: i32,
    pub b: BufId,
    pub extras: Vec<BufId>,
    pub destination: Destination,
    pub cut: Option<Cut>,
    /// The extent of half of K, where the loader stops on the way to wait for what a tile goes on
    /// with: its stages are full by then, so that the wait costs nothing.
    pub half: Option<i32>,
    /// Rows of a gathered operand that its owner multiplies, too.
    pub own: Option<Rows>,
    /// Whether peers' rows are multiplied shard by shard.
    pub by_shard: bool,
}

/// Where a block of operand A's rows is.
pub(super) struct LeftRows {
    pub rows: Source,
    /// Where their factors are, if these come with them: their memory, and region.
    pub factors: Option<(BufId, Vec<(Expr, Expr)>)>,
}

impl From<Source> for LeftRows {
    fn from(rows: Source) -> LeftRows {
        LeftRows { rows, factors: None }
    }
}

impl From<Access> for LeftRows {
    fn from(rows: Access) -> LeftRows {
        Source::from(rows).into()
    }
}

impl Product<'_> {
    /// A block of rows in `[shards, rows, k]`.
    pub fn in_shards(&self, r: &RowBlock) -> Vec<(Expr, Expr)> {
        vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), self.depth(r)]
    }

    /// The same rows in `[slices, shards, rows, part of k]`.
    pub fn in_slices(&self, r: &RowBlock, slices: Slices) -> Vec<(Expr, Expr)> {
        let slice = (self.slice(r, slices), 1.into());
        let rows = (r.at.clone(), r.len.clone());
        vec![slice, (r.shard.clone(), 1.into()), rows, (0.into(), slices.depth.into())]
    }

    /// The slice of k that a task multiplies in an iteration of its inner loop.
    pub fn slice(&self, r: &RowBlock, slices: Slices) -> Expr {
        match self.cut {
            None => Var::INNER.into(),
            Some(cut) => {
                Expr::from(Var::domain(r.loops + 1)) * (cut.depth / slices.depth) + Var::INNER
            }
        }
    }

    /// Iterations of that loop.
    fn iterations(&self, r: &RowBlock, slices: Slices) -> Expr {
        match self.cut {
            None => slices.count.into(),
            Some(cut) => {
                let part = Expr::from(Var::domain(r.loops + 1));
                block_rows(slices.count.into(), part, cut.depth / slices.depth)
            }
        }
    }

    /// The part of k that a task multiplies.
    pub fn depth(&self, r: &RowBlock) -> (Expr, Expr) {
        if let Some(half) = self.half {
            return (Expr::from(Var::INNER) * half, half.into());
        }
        let Some(Cut { depth, .. }) = self.cut else { return (0.into(), self.k.clone()) };
        let k = Expr::from(Var::domain(r.loops + 1));
        (k.clone() * depth, block_rows(self.k.clone(), k, depth))
    }

    /// Takes tiles of so many columns, and says how many of the result they make.
    pub fn set_columns(&mut self, columns: u32) -> i32 {
        self.tile.block[1] = columns;
        let columns = self.tile.task_columns() as i32;
        self.col_blocks = (self.g.out.widest(1) + columns - 1) / columns;
        columns
    }

    /// The tiles of a gathered operand's own rows, which the caller gives in `shard`.
    pub fn own_family(&self, draft: &mut Draft, own: &Rows, x: &Gathered) -> TileRows {
        self.family(draft, &format!("{}.own", self.name), own, None, |r| {
            let rows = vec![(r.at.clone(), r.len.clone()), self.depth(r)];
            let factors = x.factors.as_ref().map(|f| f.own((r.at.clone(), r.len.clone())));
            LeftRows { rows: read(Operand::A, x.shard, rows).into(), factors }
        })
    }

    /// The tiles of some rows, as a family; `a` says where a block of operand A's rows is, `slices` in which
    /// slices of k it comes, if it does.
    pub fn family(
        &self,
        draft: &mut Draft,
        name: &str,
        rows: &Rows,
        slices: Option<Slices>,
        a: impl Fn(&RowBlock) -> LeftRows,
    ) -> TileRows {
        let MmaTile { b_layout, epilogue, .. } = &self.tile;
        let width = self.tile.task_columns() as i32;
        let r = rows.block(&mut draft.extents);
        let LeftRows { rows: mut a, factors } = a(&r);
        let j = rows.column();
        let cols = (j.clone() * width, block_rows(self.n.clone(), j, width));
        let (depth, at) = match slices {
            None if self.half.is_some() => (self.depth(&r), Point::Inner),
            None => (self.depth(&r), Point::Start),
            Some(s) => ((self.slice(&r, s) * s.depth, s.depth.into()), Point::Inner),
        };
        let mut b = match b_layout {
            BLayout::Kn => vec![depth, cols.clone()],
            BLayout::Nk => vec![cols.clone(), depth],
        };
        if self.g.gated() {
            b.insert(1, (0.into(), 2.into()));
        }
        a.access.at = at;
        let mut accesses = vec![Access { at, ..read(Operand::B, self.b, b) }];
        let row = rows.global(&r);
        for ((op, operand), buffer) in named_operands(epilogue).zip(&self.extras) {
            let factors = factors.as_ref().filter(|_| op.scales_rows());
            let buffer = factors.map_or(buffer, |(buffer, _)| buffer);
            let block = mk_plan::MMA_STEP_BYTES as i32;
            let (at, depth) = self.depth(&r);
            let arriving = factors.map(|(_, region)| region.clone());
            let steps = (at.clone() / block, (depth.clone() + (block - 1)) / block);
            let of_row = QuantTile::BLOCK;
            let mut region = match (arriving, op.vector()) {
                (Some(region), _) => region,
                _ if op == EpilogueOp::ScaleSteps => vec![steps, (row.clone(), r.len.clone())],
                _ if matches!(op, EpilogueOp::Quantize(_)) => {
                    let (at, len) = cols.clone();
                    let blocks = (at / of_row, (len + (of_row - 1)) / of_row);
                    vec![blocks, (row.clone(), r.len.clone())]
                }
                _ if op == EpilogueOp::ScaleBlocks => {
                    let (at, len) = cols.clone();
                    vec![(at / block, (len + (block - 1)) / block), steps]
                }
                (_, Some(0)) => vec![(row.clone(), r.len.clone())],
                (_, Some(_)) => vec![cols.clone()],
                (_, None) => vec![(row.clone(), r.len.clone()), cols.clone()],
            };
            if gates_operand(epilogue) == Some(operand) {
                region.insert(1, (0.into(), 2.into()));
            }
            if self.g.halves() {
                // Of gates, their gradients, and ups, the last two lie behind the first.
                let ups = matches!(op, EpilogueOp::Save | EpilogueOp::Mul);
                region.insert(1, (i32::from(ups).into(), 1.into()));
            }
            // Touched by the consumers once the tile is computed.
            accesses.push(match op {
                EpilogueOp::Save | EpilogueOp::Quantize(_) => write(operand, *buffer, region),
                _ => Access { at: Point::End, ..read(operand, *buffer, region) },
            });
        }
        if let Destination::Ring(ring) = self.destination {
            let late = self.half.map(|_| 1);
            accesses.push(ring.carried(rows, &r, cols.clone(), late, carry_last(epilogue)));
        }
        let k = Expr::from(Var::domain(r.loops + 1));
        accesses.extend(match self.cut {
            Some(Cut { into, .. }) => {
                let row = (rows.in_covered(&r), r.len.clone());
                vec![write(Operand::C, into, vec![(k, 1.into()), row, cols])]
            }
            None => {
                let mut writes = self.destination.writes(Operand::C, rows, &r, cols);
                if self.g.halves() {
                    writes.iter_mut().for_each(|c| c.region.insert(1, (0.into(), 1.into())));
                }
                writes
            }
        });
        let mut domain = rows.domain(self.col_blocks);
        let parts = self.cut.map_or(1, |c| c.parts);
        let group = slices.map_or(self.group, |s| s.together * rows.count);
        let mut order = match self.by_shard {
            true => rows.order_by_shard(group, self.col_blocks, parts),
            false => self.destination.order(rows, group, self.col_blocks, parts),
        };
        if self.cut.is_some() {
            domain.push(("k", parts.into()));
            order.push(Expr::from(Var::LINEAR) % parts);
        }
        let leaf = Leaf::MmaTile(self.tile.clone());
        let touched = [a].into_iter().chain(accesses.into_iter().map(Source::from));
        let family = draft.family(name, RoleKind::Compute, leaf, domain, order, touched);
        let halves = self.half.map(|_| 2.into());
        let iterations = slices.map(|s| self.iterations(&r, s)).or(halves);
        draft.plan.families[family].inner = iterations.map(|n| ("q".to_string(), n));
        match self.cut {
            None => self.destination.made(family, rows, &r),
            Some(_) => TileRows { family, shard: r.shard, block: r.block, when: None },
        }
    }
}
