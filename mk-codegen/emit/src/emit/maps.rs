//! Tensor maps: one per buffer, view, box and swizzle that some leaf needs (PTX ISA, "Tensors").
//!
//! A map has one to five dimensions. A [`View`] says how the dimensions of a buffer become those of a map: neighbours
//! are merged where the hardware needs not tell them apart, and kept apart where what lies past the end of one must
//! read as zeros.

use super::{
    EmitError, Result,
    layout::{At, Layout},
};
use minijinja::{Value, context};
use mk_abi::{DType, MapBase, Swizzle, TensorMapSpec};
use mk_plan::{BufId, Expr, Plan, Space};

/// Most dimensions of a map.
const MAX_RANK: usize = 5;

/// The dimensions of a buffer `[d0, .., dn]`, cut into those of a map: `cuts` says where each but the first begins.
/// `[e, k, 2, n]` cut at `[1, 2]` is `[e, k, 2 n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    cuts: Vec<usize>,
    /// Rows of a matrix that are one of the map's: of those that TMA cannot take one by one, eight.
    together: i64,
}

impl View {
    /// Rows of the last dimension, all that come before being one.
    pub fn rows(dims: usize) -> View {
        View { cuts: vec![dims.saturating_sub(1)], together: 1 }
    }

    /// Cut at these dimensions, which ascend.
    pub fn cut(cuts: impl IntoIterator<Item = usize>) -> View {
        View { cuts: cuts.into_iter().collect(), together: 1 }
    }

    /// Whole groups of so many rows of a matrix without gaps, each a row of the map.
    pub fn together(rows: i64) -> View {
        View { cuts: vec![1], together: rows.max(1) }
    }

    /// How many dimensions the map has.
    pub fn rank(&self) -> usize {
        self.cuts.len() + 1
    }

    /// The buffer's dimensions in each of the map's, outermost first.
    fn groups(&self, dims: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let ends = self.cuts.iter().copied().chain([dims]);
        [0].into_iter().chain(self.cuts.iter().copied()).zip(ends)
    }

    /// The buffer's dimensions that all have to end for the map's to end along `d`: itself, and those before it that
    /// are merged with it.
    pub fn merged(&self, dims: usize, d: usize) -> impl Iterator<Item = usize> + '_ {
        let group = self.groups(dims).find(|(from, to)| (*from..*to).contains(&d));
        group.map_or(d, |(from, _)| from)..=d
    }

    /// Extents and strides of the map in elements, outermost first. Only the buffer's last dimension has a pitch.
    fn extents(&self, shape: &[i64], pitch: i64) -> Vec<(i64, i64)> {
        if let ([rows, _], true) = (shape, self.together > 1) {
            let row = self.together * pitch;
            return vec![(rows / self.together, row), (row, 1)];
        }
        let last = shape.len() - 1;
        let below = |d: usize| -> i64 { shape[d..last].iter().product::<i64>() * pitch };
        let group = |(from, to): (usize, usize)| {
            if to <= last {
                return (shape[from..to].iter().product(), below(to));
            }
            // Rows that are one: what lies between them counts, but behind the last of them.
            let rows: i64 = shape[from..last].iter().product();
            (if rows > 0 { (rows - 1) * pitch + shape[last] } else { 0 }, 1)
        };
        self.groups(shape.len()).map(group).collect()
    }
}

/// A map to encode on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Map {
    buffer: BufId,
    name: String,
    dtype: DType,
    view: View,
    /// Outermost first.
    box_dims: Vec<u32>,
    swizzle: Swizzle,
    /// The rank whose memory it is; this rank's if `None`.
    peer: Option<u32>,
}

/// How the rows of a box lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As GEMMs read them.
    Swizzled,
    /// As in the tensor, to be copied on.
    Plain,
}

/// All maps of a kernel, in the order of its parameter.
#[derive(Default)]
pub(super) struct Maps {
    list: Vec<Map>,
}

impl Maps {
    /// Index of the map of this rank's buffer with boxes of `box_dims`, outermost first.
    ///
    /// # Errors
    /// [`EmitError::Refused`] for more dimensions than a map has, [`EmitError::Internal`] for a box of another rank
    /// than the view.
    pub fn index(&mut self, plan: &Plan, b: BufId, view: &View, box_dims: &[u32]) -> Result<usize> {
        self.insert(plan, b, view, box_dims, (Order::Swizzled, None))
    }

    /// The same, with boxes whose rows lie in shared memory as they do in the tensor.
    ///
    /// # Errors
    /// As [`Self::index`].
    pub fn index_plain(
        &mut self,
        plan: &Plan,
        b: BufId,
        view: &View,
        dims: &[u32],
    ) -> Result<usize> {
        self.insert(plan, b, view, dims, (Order::Plain, None))
    }

    /// Index of the first of `world` maps, one for each rank's copy of a symmetric buffer.
    ///
    /// # Errors
    /// As [`Self::index`].
    pub fn of_ranks(&mut self, plan: &Plan, b: BufId, view: &View, dims: &[u32]) -> Result<usize> {
        let of_rank = |q| self.insert(plan, b, view, dims, (Order::Swizzled, Some(q)));
        let all = (0..plan.mesh.size()).map(of_rank).collect::<Result<Vec<_>>>()?;
        Ok(all[0])
    }

    fn insert(
        &mut self,
        plan: &Plan,
        buffer: BufId,
        view: &View,
        box_dims: &[u32],
        (order, peer): (Order, Option<u32>),
    ) -> Result<usize> {
        let b = &plan.buffers[buffer];
        let (rank, dims) = (view.rank(), b.shape.len());
        if rank > MAX_RANK {
            let what = format!("a tensor map has at most {MAX_RANK} dimensions, not {rank}");
            return EmitError::refuse(format!("{buffer} {:?}", b.name), what);
        }
        let ascend = view.groups(dims).all(|(from, to)| from < to);
        let (true, true, Some(row)) = (ascend, box_dims.len() == rank, box_dims.last()) else {
            let what = format!("{buffer}, {dims} dimensions, as {view:?} in boxes {box_dims:?}");
            return Err(EmitError::internal("emit/maps.rs", what));
        };
        let named =
            |e: &Expr| plan.dims.iter().any(|(dim, d)| d.runtime_max.is_some() && e.names_dim(dim));
        if rank != dims && matches!(b.space, Space::In | Space::Out) && b.shape.iter().any(named) {
            let what = "a tensor with a run-time dimension is seen in all of its dimensions";
            return EmitError::refuse(format!("{buffer} {:?}", b.name), what);
        }
        // The swizzle spans the box's row.
        let swizzle = match (order, u64::from(*row) * b.dtype.size_bytes()) {
            (Order::Swizzled, 128) => Swizzle::B128,
            (Order::Swizzled, 64) => Swizzle::B64,
            (Order::Swizzled, 32) => Swizzle::B32,
            _ => Swizzle::None,
        };
        let map = Map {
            buffer,
            name: b.name.clone(),
            dtype: b.dtype,
            view: view.clone(),
            box_dims: box_dims.to_vec(),
            swizzle,
            peer,
        };
        Ok(match self.list.iter().position(|m| *m == map) {
            Some(i) => i,
            None => {
                self.list.push(map);
                self.list.len() - 1
            }
        })
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// For the comment beside each map.
    pub fn comments(&self) -> Vec<Value> {
        let say = |(i, m): (usize, &Map)| {
            let boxes: Vec<_> = m.box_dims.iter().map(u32::to_string).collect();
            context! { index => i, name => m.name.clone(), boxes => boxes.join(" x ") }
        };
        self.list.iter().enumerate().map(say).collect()
    }

    pub fn on_rank(&self, layout: &Layout, rank: usize) -> Vec<TensorMapSpec> {
        let spec = |m: &Map| {
            let place = &layout.buffers[m.buffer];
            // Nobody copies through the map of a rank of another node: its place is kept, so that ranks number their
            // maps alike.
            let near = |p: &u32| match &layout.net {
                Some(net) => *p / net.layout.local == rank as u32 / net.layout.local,
                None => true,
            };
            let owner = m.peer.filter(near).map_or(rank, |p| p as usize);
            let size = m.dtype.size_bytes();
            let extents = m.view.extents(&place.shape[owner], place.pitch[owner]);
            let inner = || extents.iter().rev();
            TensorMapSpec {
                base: match place.at {
                    At::Symmetric(o) if owner != rank => MapBase::Peer(owner as u32, o),
                    At::Tensor(i) => MapBase::Tensor(i),
                    At::Symmetric(o) => MapBase::Symmetric(o),
                    At::Scratch(o) => MapBase::Scratch(o),
                    At::Net(o) => MapBase::Net(o),
                },
                dtype: m.dtype,
                dims: inner().map(|(n, _)| (*n).max(0) as u64).collect(),
                strides_bytes: inner().skip(1).map(|(_, s)| (*s).max(0) as u64 * size).collect(),
                box_dims: m.box_dims.iter().rev().copied().collect(),
                swizzle: m.swizzle,
            }
        };
        self.list.iter().map(spec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::View;

    #[test]
    fn views() {
        // [3 experts, 40, 2, 24], rows of 32: extents and strides, outermost first.
        let shape = [3, 40, 2, 24];
        assert_eq!(View::rows(4).extents(&shape, 32), [(240, 32), (24, 1)]);
        assert_eq!(View::cut([1, 2]).extents(&shape, 32), [(3, 2560), (40, 64), (56, 1)]);
        let apart = [(3, 2560), (40, 64), (2, 32), (24, 1)];
        assert_eq!(View::cut([1, 2, 3]).extents(&shape, 32), apart);
        assert_eq!(View::cut([2]).extents(&[40, 0, 24], 32), [(0, 32), (24, 1)]);
        assert_eq!(View::cut([1]).extents(&[40, 2, 24], 24), [(40, 48), (48, 1)]);
        assert_eq!(View::together(8).extents(&[43, 25], 25), [(5, 200), (200, 1)]);
    }
}
