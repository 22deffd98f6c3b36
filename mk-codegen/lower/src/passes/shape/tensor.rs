//! Tensors as they lie in memory, on each rank.

use crate::graph::Extent;
use mk_abi::DType;
use mk_plan::Expr;
use mk_syntax::Placement;

/// A caller's tensor, or a result: as it lies in memory.
#[derive(Clone)]
pub(in crate::passes) struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Global.
    pub shape: Vec<Extent>,
    pub placement: Placement,
}

/// The most elements of an extent that a rank owns.
pub(in crate::passes) fn shard_extent(e: &Extent, world: i32) -> i32 {
    (e.capacity() + world - 1) / world
}

/// Elements of a row that keep its pitch a multiple of 16 bytes.
pub(in crate::passes) fn aligned(elements: i32, size_bytes: u64) -> i32 {
    let unit = (16 / size_bytes) as i32;
    (elements + unit - 1) / unit * unit
}

impl Tensor {
    /// The most elements of a dimension that any rank has.
    pub fn widest(&self, dim: usize, world: i32) -> i32 {
        let e = &self.shape[dim];
        match self.placement {
            Placement::Shard(d) if d == dim => shard_extent(e, world),
            Placement::Zigzag(d) if d == dim => 2 * shard_extent(e, 2 * world),
            _ => e.capacity(),
        }
    }

    /// Whether all ranks have equally many elements of a dimension.
    pub fn even(&self, dim: usize, world: i32) -> bool {
        match self.placement {
            Placement::Shard(d) if d == dim => self.shape[dim].value % world == 0,
            Placement::Zigzag(d) if d == dim => self.shape[dim].value % (2 * world) == 0,
            _ => true,
        }
    }

    /// Whether rows of the last dimension are what TMA takes, on every rank.
    pub fn tma_rows(&self, world: i32) -> bool {
        let last = self.shape.len() - 1;
        let cols = self.widest(last, world);
        aligned(cols, self.dtype.size_bytes()) == cols && self.even(last, world)
    }

    /// Whether bulk copies take its rows: they have no gaps.
    pub fn in_bulk(&self) -> bool {
        let k = self.shape[1].value;
        aligned(k, self.dtype.size_bytes()) == k
    }

    /// The pitch of whole rows in memory of mk's, where it is more than their length.
    pub fn padded_pitch(&self) -> Option<Expr> {
        let n = self.shape[1].value;
        let padded = aligned(n, self.dtype.size_bytes());
        (padded != n).then_some(Expr::Const(padded))
    }
}
