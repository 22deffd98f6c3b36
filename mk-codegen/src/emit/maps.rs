//! Tensor maps: one per buffer, box and swizzle that some leaf needs.

use super::layout::{At, Layout};
use crate::ir::{BufId, Plan};
use minijinja::{Value, context};
use mk_abi::{DType, MapBase, Swizzle, TensorMapSpec};

/// A map to encode on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Map {
    buffer: BufId,
    name: String,
    dtype: DType,
    box_dims: [u32; 2],
    swizzle: Swizzle,
    /// Rows of the buffer that make one row of the map.
    rows_in_one: i64,
    /// The rank whose memory it is; the own rank's if `None`.
    peer: Option<u32>,
}

/// All maps of a kernel, in the order of its parameter.
#[derive(Default)]
pub(super) struct Maps {
    list: Vec<Map>,
}

impl Maps {
    /// Index of the map of the own rank's buffer, seen as rows of its last dimension, with boxes of `[rows, cols]`.
    pub fn index(&mut self, plan: &Plan, buffer: BufId, rows: u32, cols: u32) -> usize {
        self.insert(plan, buffer, rows, cols, 1, None)
    }

    /// The same with `rows_in_one` rows, one behind the other, as one row: `[k, 2, n]` as `[k, 2 n]`.
    pub fn index_of_wide(
        &mut self,
        plan: &Plan,
        buffer: BufId,
        [rows, cols]: [u32; 2],
        rows_in_one: i64,
    ) -> usize {
        self.insert(plan, buffer, rows, cols, rows_in_one, None)
    }

    /// Index of the first of `world` maps, one for each rank's copy of a symmetric buffer.
    pub fn index_of_ranks(&mut self, plan: &Plan, buffer: BufId, rows: u32, cols: u32) -> usize {
        let world = plan.mesh.size();
        let first = self.insert(plan, buffer, rows, cols, 1, Some(0));
        (1..world).for_each(|q| {
            self.insert(plan, buffer, rows, cols, 1, Some(q));
        });
        first
    }

    fn insert(
        &mut self,
        plan: &Plan,
        buffer: BufId,
        rows: u32,
        cols: u32,
        rows_in_one: i64,
        peer: Option<u32>,
    ) -> usize {
        let b = &plan.buffers[buffer];
        // The swizzle spans the box's row.
        let swizzle = match u64::from(cols) * b.dtype.size_bytes() {
            128 => Swizzle::B128,
            64 => Swizzle::B64,
            32 => Swizzle::B32,
            _ => Swizzle::None,
        };
        let map = Map {
            buffer,
            name: b.name.clone(),
            dtype: b.dtype,
            box_dims: [cols, rows],
            swizzle,
            rows_in_one,
            peer,
        };
        match self.list.iter().position(|m| *m == map) {
            Some(i) => i,
            None => {
                self.list.push(map);
                self.list.len() - 1
            }
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// For the comment beside each map.
    pub fn comments(&self) -> Vec<Value> {
        let say = |(i, m): (usize, &Map)| {
            context! { index => i, name => m.name.clone(), rows => m.box_dims[1], cols => m.box_dims[0] }
        };
        self.list.iter().enumerate().map(say).collect()
    }

    pub fn on_rank(&self, layout: &Layout, rank: usize) -> Vec<TensorMapSpec> {
        let spec = |m: &Map| {
            let place = &layout.buffers[m.buffer];
            let owner = m.peer.map_or(rank, |p| p as usize);
            let shape = &place.shape[owner];
            let (leading, last) = shape.split_at(shape.len() - 1);
            let rows = leading.iter().product::<i64>() / m.rows_in_one;
            let pitch = place.pitch[owner];
            let cols = (m.rows_in_one - 1) * pitch + last[0];
            TensorMapSpec {
                base: match place.at {
                    At::Symmetric(o) if m.peer.is_some_and(|p| p as usize != rank) => {
                        MapBase::Peer(owner as u32, o)
                    }
                    At::Tensor(i) => MapBase::Tensor(i),
                    At::Symmetric(o) => MapBase::Symmetric(o),
                    At::Scratch(o) => MapBase::Scratch(o),
                },
                dtype: m.dtype,
                dims: vec![cols.max(0) as u64, rows.max(0) as u64],
                strides_bytes: vec![(m.rows_in_one * pitch).max(0) as u64 * m.dtype.size_bytes()],
                box_dims: m.box_dims.to_vec(),
                swizzle: m.swizzle,
            }
        };
        self.list.iter().map(spec).collect()
    }
}
