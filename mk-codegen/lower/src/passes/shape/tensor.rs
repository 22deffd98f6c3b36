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
    /// The dimensions that ranks share, each over one axis.
    pub cuts: Vec<Cut>,
}

/// How ranks share a dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) struct Cut {
    pub dim: usize,
    /// The axis of the kernel that they are along, and how many.
    pub axis: usize,
    pub ranks: i32,
    /// Whether each has two parts.
    pub zigzag: bool,
}

/// How ranks, so many along each axis, share what is placed so.
pub(in crate::passes) fn cuts(placement: &[Placement], sizes: &[i32]) -> Vec<Cut> {
    let along = placement.iter().zip(sizes).enumerate();
    let cut = |(axis, (p, ranks)): (usize, (&Placement, &i32))| {
        let zigzag = matches!(p, Placement::Zigzag(_));
        Some(Cut { dim: p.cut()?, axis, ranks: *ranks, zigzag })
    };
    along.filter_map(cut).collect()
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
    /// How ranks share a dimension, if they do.
    pub fn cut(&self, dim: usize) -> Option<Cut> {
        self.cuts.iter().copied().find(|cut| cut.dim == dim)
    }

    /// Whether each rank along an axis has other elements of a dimension.
    pub fn is_sharded(&self, dim: usize) -> bool {
        self.cut(dim).is_some_and(|cut| !cut.zigzag)
    }

    /// The most elements of a dimension that any rank has.
    pub fn widest(&self, dim: usize) -> i32 {
        let e = &self.shape[dim];
        match self.cut(dim) {
            Some(Cut { zigzag: false, ranks, .. }) => shard_extent(e, ranks),
            Some(Cut { zigzag: true, ranks, .. }) => 2 * shard_extent(e, 2 * ranks),
            None => e.capacity(),
        }
    }

    /// Whether all ranks have equally many elements of a dimension.
    pub fn even(&self, dim: usize) -> bool {
        let parts =
            self.cut(dim).map_or(1, |cut| if cut.zigzag { 2 * cut.ranks } else { cut.ranks });
        parts == 1 || self.shape[dim].value % parts == 0
    }

    /// The same, as rows of this rank, where ranks along another axis than this one share them, as many each.
    pub fn on_own_rows(&self, axis: usize) -> Tensor {
        let mut own = self.clone();
        if let Some(cut) = self.cut(0).filter(|cut| cut.axis != axis) {
            own.within(cut);
        }
        own
    }

    /// The same, as the shard of the outer ones of axes that share a dimension, whose ranks have as many elements each:
    /// one axis cuts it.
    pub fn on_inner_axes(mut self) -> Tensor {
        for dim in 0..self.shape.len() {
            let along: Vec<Cut> = self.cuts.iter().copied().filter(|cut| cut.dim == dim).collect();
            // An axis of one rank cuts nothing.
            let inner = along.iter().rposition(|cut| cut.ranks > 1);
            let inner = inner.unwrap_or(along.len().saturating_sub(1));
            for (_, cut) in along.iter().enumerate().filter(|(i, _)| *i != inner) {
                match cut.ranks {
                    1 => self.cuts.retain(|other| other != cut),
                    _ => self.within(*cut),
                }
            }
        }
        self
    }

    /// Becomes its shard along an axis.
    pub fn within_axis(&mut self, axis: usize) {
        if let Some(cut) = self.cuts.iter().copied().find(|cut| cut.axis == axis) {
            self.within(cut);
        }
    }

    /// Becomes a shard of itself.
    fn within(&mut self, cut: Cut) {
        self.shape[cut.dim] = Extent::fixed(shard_extent(&self.shape[cut.dim], cut.ranks));
        self.cuts.retain(|other| *other != cut);
    }

    /// Whether each rank has its own number of rows.
    pub fn own_rows(&self) -> bool {
        self.shape.first().is_some_and(|e| e.own)
    }

    /// Whether rows of the last dimension are what TMA takes, on every rank.
    pub fn tma_rows(&self) -> bool {
        let last = self.shape.len() - 1;
        let cols = self.widest(last);
        aligned(cols, self.dtype.size_bytes()) == cols && self.even(last)
    }

    /// Whether rows that TMA does not take can be shifted on the way to registers: TMA takes groups of eight of them.
    pub fn shifts(&self) -> bool {
        let fixed = self.shape.iter().all(|e| e.runtime_max.is_none());
        let matrix = self.shape.len() == 2 && self.even(0) && self.even(1);
        matrix && fixed && !self.dtype.is_narrow() && !self.tma_rows() && self.widest(0) >= 8
    }

    /// Whether bulk copies take its rows: they have no gaps.
    pub fn in_bulk(&self) -> bool {
        let k = self.widest(1);
        aligned(k, self.dtype.size_bytes()) == k && self.even(1)
    }

    /// The pitch of rows in memory of mk's, where it is more than their length on some rank.
    pub fn padded_pitch(&self) -> Option<Expr> {
        let n = self.widest(1);
        let padded = aligned(n, self.dtype.size_bytes());
        (padded != n || !self.even(1)).then_some(Expr::Const(padded))
    }
}
