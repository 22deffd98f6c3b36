//! Sequences that ranks share, as chunks: parts of equal length but for the last ones, each on one rank.
//!
//! A sequence that is sharded has a chunk for each rank; one that lies in zigzag has two, of which place `r` of `n`
//! holds number `r` and `2n - 1 - r`, one behind the other; one that every rank has is one chunk.

use super::{
    extents::Extents,
    ranks::{Nodes, RankGroup},
    tensor::{Cut, Tensor},
};
use crate::graph::Extent;
use mk_plan::Expr;

/// The chunks of a sequence.
#[derive(Clone)]
pub(in crate::passes) struct Chunks {
    /// The whole sequence.
    pub whole: Extent,
    /// The ranks that share it, and how they lie in nodes.
    pub group: RankGroup,
    pub nodes: Nodes,
    /// Chunks on each rank that are of the sequence: 1, or 2 in zigzag.
    pub per_rank: i32,
    /// Chunks of the sequence.
    pub count: i32,
    /// Rows of a full chunk, of the longest sequence.
    pub rows: i32,
    /// Rows of a full chunk.
    part: Expr,
}

impl Chunks {
    /// Those of dimension `dim` of a tensor.
    pub fn of(extents: &mut Extents, t: &Tensor, dim: usize) -> Chunks {
        let nodes = extents.along(t.cut(dim).map_or(0, |cut| cut.axis));
        let group = nodes.group;
        let whole = t.shape[dim].clone();
        let (per_rank, count) = match t.cut(dim) {
            Some(Cut { zigzag: false, .. }) => (1, group.size),
            Some(Cut { zigzag: true, .. }) => (2, 2 * group.size),
            None => (1, 1),
        };
        let rows = (whole.capacity() + count - 1) / count;
        let part = if count > 1 { extents.part_of(&whole, count) } else { rows.into() };
        Chunks { whole, group, nodes, per_rank, count, rows, part }
    }

    /// Rows of the pieces, of so many bytes, in which chunks are sent: a multiple of 64, where there are as many.
    pub fn height(&self, row_bytes: u64, piece_bytes: u32) -> i32 {
        let rows = (u64::from(piece_bytes) / row_bytes) as i32 / 64 * 64;
        rows.max(64).min(self.rows.max(1))
    }

    /// The same sequence, of which every rank has all.
    pub fn together(&self) -> Chunks {
        let rows = self.whole.capacity();
        Chunks { per_rank: 1, count: 1, rows, part: rows.into(), ..self.clone() }
    }

    /// Of a sequence of which it is a shard, as long as all others, the shards: each rank along an axis has one.
    pub fn shards(&self, nodes: Nodes) -> Chunks {
        let (group, rows) = (nodes.group, self.whole.value);
        let whole = Extent { value: rows * group.size, symbol: None, ..self.whole.clone() };
        Chunks { whole, group, nodes, per_rank: 1, count: group.size, rows, part: rows.into() }
    }

    /// Whether ranks have different chunks.
    pub fn cut(&self) -> bool {
        self.count > 1
    }

    /// The number of this rank's chunk `half`.
    pub fn own(&self, half: &Expr) -> Expr {
        self.of_place(&self.group.place(), half)
    }

    /// The number of a place's chunk `half`.
    pub fn of_place(&self, place: &Expr, half: &Expr) -> Expr {
        match (self.cut(), self.per_rank) {
            (false, _) => 0.into(),
            (true, 1) => place.clone(),
            _ => half.clone().select(self.mirror(place.clone()), place.clone()),
        }
    }

    /// The other chunk of the rank that has this one, in zigzag.
    pub fn mirror(&self, chunk: Expr) -> Expr {
        Expr::Const(self.count - 1) - chunk
    }

    /// The place in the sequence of a chunk's first row.
    pub fn first(&self, chunk: &Expr) -> Expr {
        chunk.clone() * self.part.clone()
    }

    /// The rows of a chunk.
    pub fn len(&self, extents: &mut Extents, chunk: &Expr) -> Expr {
        let whole = extents.dim(&self.whole);
        if !self.cut() {
            return whole;
        }
        if self.whole.runtime_max.is_none() && self.rows * self.count == self.whole.value {
            return self.rows.into();
        }
        Expr::Const(0).max(self.part.clone().min(whole - self.first(chunk)))
    }

    /// Whether the last chunks are empty, or may be.
    pub fn runs_out(&self) -> bool {
        self.whole.runtime_max.is_some() || self.rows * (self.count - 1) >= self.whole.value
    }

    /// Where this rank's chunk `half` begins in its part of the sequence.
    pub fn at(&self, extents: &mut Extents, half: &Expr) -> Expr {
        match self.per_rank {
            2 => {
                let first = self.len(extents, &self.group.place());
                half.clone() * first
            }
            _ => 0.into(),
        }
    }
}
