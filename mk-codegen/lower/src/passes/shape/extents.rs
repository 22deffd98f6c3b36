//! Extents as expressions: under their own names, and as parts that ranks own.

use super::{
    ranks::Nodes,
    tensor::{Cut, Tensor, shard_extent},
};
use crate::graph::Extent;
use mk_plan::{Arena, Dim, DimId, Expr};

/// The dimensions of a plan, and how ranks share them.
pub(in crate::passes) struct Extents {
    /// The ranks along the kernel's first axis, and along each, by node.
    first: Nodes,
    axes: Vec<Nodes>,
    dims: Arena<DimId, Dim>,
}

impl Extents {
    pub fn new(first: Nodes, axes: Vec<Nodes>) -> Extents {
        Extents { first, axes, dims: Arena::new() }
    }

    /// The ranks along an axis, by node.
    pub fn along(&self, axis: usize) -> Nodes {
        self.axes.get(axis).copied().unwrap_or(self.first)
    }

    /// The dimensions that expressions name.
    pub fn into_dims(self) -> Arena<DimId, Dim> {
        self.dims
    }

    /// An extent under its own name.
    pub fn dim(&mut self, e: &Extent) -> Expr {
        let Some(name) = &e.symbol else { return Expr::Const(e.value) };
        let known = self.dims.iter().find(|(_, d)| d.name == *name).map(|(id, _)| id);
        let id: DimId = known.unwrap_or_else(|| {
            let Extent { value, runtime_max, may_be_zero, .. } = *e;
            self.dims.push(Dim { name: name.clone(), value, runtime_max, may_be_zero })
        });
        Expr::Dim(id)
    }

    /// The value of an extent, if it is the same on all ranks, and in all launches.
    pub fn fixed(&self, extent: &Expr) -> Option<i32> {
        match extent {
            Expr::Const(value) => Some(*value),
            Expr::Dim(d) => match &self.dims[*d] {
                Dim { runtime_max: None, value, .. } => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The part of an extent that place `q` of so many owns: `torch.chunk`'s, so the last ranks may own less, or
    /// nothing.
    pub fn shard(&mut self, e: &Extent, ranks: i32, q: impl Into<Expr>) -> Expr {
        if ranks == 1 {
            return self.dim(e);
        }
        if e.runtime_max.is_none() && shard_extent(e, ranks) * ranks == e.value {
            return Expr::Const(shard_extent(e, ranks));
        }
        let (part, whole) = (self.part_of(e, ranks), self.dim(e));
        Expr::Const(0).max(part.clone().min(whole - q.into() * part))
    }

    /// The part of an extent that place `q` owns in zigzag: of twice as many parts as ranks, number `q`, and the one of
    /// that number from the end.
    fn zigzag(&mut self, e: &Extent, world: i32, q: Expr) -> Expr {
        let part = self.part_of(e, 2 * world);
        if let Expr::Const(part) = part
            && 2 * world * part == e.value
        {
            return Expr::Const(2 * part);
        }
        let whole = self.dim(e);
        let of = |n: Expr| Expr::Const(0).max(part.clone().min(whole.clone() - n * part.clone()));
        of(q.clone()) + of(Expr::Const(2 * world - 1) - q)
    }

    /// Elements of one of so many parts of an extent, before the last come short.
    pub fn part_of(&mut self, e: &Extent, count: i32) -> Expr {
        match e.runtime_max {
            Some(_) => self.dim(e).ceil_div(count),
            None => Expr::Const(shard_extent(e, count)),
        }
    }

    /// A dimension of a tensor at place `q`.
    pub fn local(&mut self, t: &Tensor, dim: usize, q: impl Into<Expr>) -> Expr {
        match t.cut(dim) {
            Some(Cut { zigzag: false, ranks, .. }) => self.shard(&t.shape[dim], ranks, q),
            Some(Cut { zigzag: true, ranks, .. }) => self.zigzag(&t.shape[dim], ranks, q.into()),
            None => self.dim(&t.shape[dim]),
        }
    }

    /// A dimension of a tensor on this rank.
    pub fn own(&mut self, t: &Tensor, dim: usize) -> Expr {
        let along = self.along(t.cut(dim).map_or(0, |cut| cut.axis));
        self.local(t, dim, along.group.place())
    }

    /// A tensor's shape on this rank.
    pub fn local_shape(&mut self, t: &Tensor) -> Vec<Expr> {
        (0..t.shape.len()).map(|d| self.own(t, d)).collect()
    }
}
