//! The tiles of one matrix product: what a family of them reads, in which order, and where each goes.

use super::{
    columns::Columns,
    draft::{Covers, Draft, read, write},
    gather::{Slices, block_rows, peer_at},
    gemm::widest,
    rows::{RowBlock, Rows},
    select::Gemm,
};
use crate::ir::{
    Access, BLayout, BufId, EPILOGUE_OPERANDS, EpilogueOp, Expr, Leaf, Operand, Point, RoleKind,
    Var, carry_last, saves_gates,
};

/// Where a product goes.
#[derive(Clone, Copy)]
pub(super) enum Destination {
    /// `[rows, n]` of the caller.
    Out(BufId),
    /// `[shards, rows, n]` in scratch, for the next product.
    Hidden(BufId),
    /// `[sources, rows, n]` on the owner of the rows.
    Slots(BufId),
    /// `[shards, rows, n]` of the own rank, for every rank to read.
    Parts(BufId),
    /// See [`Columns`].
    Columns(Columns),
    /// See [`Ring`].
    Ring(Ring),
}

impl Destination {
    /// The writes of some columns of a block of rows, to the own rank's slot where there are slots; of several, one happens.
    pub fn writes(
        self,
        operand: Operand,
        rows: &Rows,
        r: &RowBlock,
        columns: (Expr, Expr),
    ) -> Vec<Access> {
        let here = (r.at.clone(), r.len.clone());
        match self {
            Destination::Out(out) => {
                vec![write(operand, out, vec![(rows.global(r), r.len.clone()), columns])]
            }
            Destination::Hidden(b) | Destination::Parts(b) => {
                vec![write(operand, b, vec![(r.shard.clone(), 1.into()), here, columns])]
            }
            Destination::Slots(slots) => vec![Access {
                rank: if rows.shards > 1 { r.shard.clone() } else { Var::RANK.into() },
                ..write(operand, slots, vec![(Var::RANK.into(), 1.into()), here, columns])
            }],
            Destination::Columns(owned) => vec![owned.write(operand, rows, r, columns)],
            Destination::Ring(ring) => {
                let (hop, world) = (rows.hop(), rows.shards);
                let passed = Access {
                    rank: ring.next(world),
                    when: Some(hop.clone().lt(world - 1)),
                    ..write(
                        operand,
                        ring.passed,
                        vec![(hop.clone(), 1.into()), here.clone(), columns.clone()],
                    )
                };
                let last = Access {
                    when: Some(hop.equals(world - 1)),
                    ..write(operand, ring.last, vec![here, columns])
                };
                vec![passed, last]
            }
        }
    }
}

/// Sums that tiles go on with.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// `[hops, rows, n]`: the sums so far, with which the rank before goes on.
    pub passed: BufId,
    /// `[rows, n]` of the own rank: the finished sums, the caller's.
    pub last: BufId,
}

impl Ring {
    /// The rank that adds next to a tile.
    pub fn next(&self, world: i32) -> Expr {
        peer_at((world - 1).into(), world)
    }
}

/// How a product's inner dimension is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Parts that are multiplied side by side.
    pub parts: i32,
    /// Extent of one.
    pub depth: i32,
    /// `[parts, rows of all shards, n]` in scratch, to be added up.
    pub into: BufId,
}

/// What the tiles of one product share.
#[derive(Clone)]
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
    pub target: Destination,
    pub cut: Option<Cut>,
    /// The extent of half of the inner dimension, where the loader stops on the way to wait for what a tile goes on with: its stages
    /// are full by then, so that the wait costs nothing.
    pub half: Option<i32>,
    /// Rows of a gathered operand that its owner multiplies, too.
    pub own: Option<Rows>,
    /// Whether peers' rows are multiplied shard by shard.
    pub by_shard: bool,
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

    /// The sum so far with which a tile goes on: none at the first hop. It comes at the start, between the two halves of the inner
    /// dimension, or `last`: behind elementwise operations.
    fn carried(
        &self,
        rows: &Rows,
        r: &RowBlock,
        ring: Ring,
        cols: (Expr, Expr),
        last: bool,
    ) -> Access {
        let hop = rows.hop();
        let (at, when) = match self.half {
            _ if last => (Point::End, None),
            Some(_) => (Point::Inner, Some(Expr::from(Var::INNER).equals(1))),
            None => (Point::Start, None),
        };
        let len = hop.clone().equals(0).select(0, r.len.clone());
        let region = vec![((hop - 1).max(0), 1.into()), (r.at.clone(), len), cols];
        Access { at, when, ..read(Operand::AccIn, ring.passed, region) }
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
    pub fn set_columns(&mut self, columns: u32, world: i32) -> i32 {
        if let Leaf::MmaTile { block, .. } = &mut self.leaf {
            block[1] = columns;
        }
        let columns = self.leaf.out_columns() as i32;
        self.col_blocks = (widest(&self.g.out, 1, world) + columns - 1) / columns;
        columns
    }

    /// The tiles of a gathered operand's own rows, which the caller gives in `shard`.
    pub fn own_family(&self, draft: &mut Draft, own: &Rows, shard: BufId) -> Covers {
        self.family(draft, &format!("{}.own", self.name), own, None, |r| {
            (shard, vec![(r.at.clone(), r.len.clone()), self.depth(r)])
        })
    }

    /// The tiles of some rows, as a family; `a` says where a block of the left operand's rows is, and in which slices of k it
    /// comes, if it does.
    pub fn family(
        &self,
        draft: &mut Draft,
        name: &str,
        rows: &Rows,
        slices: Option<Slices>,
        a: impl Fn(&RowBlock) -> (BufId, Vec<(Expr, Expr)>),
    ) -> Covers {
        let Leaf::MmaTile { b_layout, epilogue, .. } = &self.leaf else {
            let family = crate::ir::Entity::new(0);
            return Covers { family, shard: 0.into(), block: 0.into() };
        };
        let width = self.leaf.out_columns() as i32;
        let r = rows.block(draft);
        let (buffer, region) = a(&r);
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
        let mut accesses = vec![
            Access { at, ..read(Operand::A, buffer, region) },
            Access { at, ..read(Operand::B, self.b, b) },
        ];
        let row = rows.global(&r);
        let touching = epilogue.iter().filter(|e| e.operand().is_some());
        for ((op, buffer), operand) in touching.zip(&self.extras).zip(EPILOGUE_OPERANDS) {
            let mut region = vec![cols.clone()];
            if *op != EpilogueOp::Bias {
                region.insert(0, (row.clone(), r.len.clone()));
            }
            if operand == Operand::E0 && saves_gates(epilogue) {
                region.insert(1, (0.into(), 2.into()));
            }
            // Touched by the consumers once the tile is computed.
            accesses.push(match op {
                EpilogueOp::Save => write(operand, *buffer, region),
                _ => Access { at: Point::End, ..read(operand, *buffer, region) },
            });
        }
        if let Destination::Ring(ring) = self.target {
            accesses.push(self.carried(rows, &r, ring, cols.clone(), carry_last(epilogue)));
        }
        let k = Expr::from(Var::domain(r.loops + 1));
        accesses.extend(match self.cut {
            Some(Cut { into, .. }) => {
                let row = (rows.in_covered(&r), r.len.clone());
                vec![write(Operand::C, into, vec![(k, 1.into()), row, cols])]
            }
            None => self.target.writes(Operand::C, rows, &r, cols),
        });
        let mut domain = rows.domain(self.col_blocks);
        let parts = self.cut.map_or(1, |c| c.parts);
        let group = slices.map_or(self.group, |s| s.together * rows.count);
        let mut order = match self.target {
            Destination::Ring(_) => rows.order_by_hop(group, self.col_blocks),
            _ if self.by_shard => rows.order_by_shard(group, self.col_blocks, parts),
            _ => rows.order(group, self.col_blocks, parts),
        };
        if let (Destination::Slots(_), [_, hop, column]) = (self.target, order.as_mut_slice())
            && rows.count == rows.shards
        {
            // Not always the same owner's, as many CTAs are a multiple of ranks: own tiles take less.
            *hop = (hop.clone() + column.clone()) % rows.count;
        }
        if self.cut.is_some() {
            domain.push(("k", parts.into()));
            order.push(Expr::from(Var::LINEAR) % parts);
        }
        let family =
            draft.family(name, RoleKind::Compute, self.leaf.clone(), domain, order, accesses);
        let halves = self.half.map(|_| 2.into());
        let iterations = slices.map(|s| self.iterations(&r, s)).or(halves);
        draft.plan.families[family].inner = iterations.map(|n| ("q".to_string(), n));
        Covers { family, shard: r.shard, block: r.block }
    }
}
