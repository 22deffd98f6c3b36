//! Buffers of all ranks. Numbers are kept as f32 and rounded to the buffer's type when they are stored; memory that
//! nobody has written is NaN.

use super::{Result, SimError, math::Tile, options::MAX_ELEMENTS};
use mk_abi::DType;
use mk_plan::{BufId, Entity, Plan, Points, Region};

/// Buffers by rank and id.
pub(super) struct Memory {
    ranks: Vec<Vec<Slab>>,
}

struct Slab {
    shape: Vec<usize>,
    dtype: DType,
    data: Vec<f32>,
}

impl Memory {
    /// Poisoned memory for a plan.
    pub fn new(plan: &Plan, points: &Points<'_>) -> Result<Memory> {
        let mut total = 0u64;
        let mut ranks = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let mut slabs = Vec::new();
            for (id, buffer) in plan.buffers.iter() {
                let shape = points.shape(id, rank)?;
                let len = elements(&shape, || format!("{id} {:?}", buffer.name))?;
                total = total.saturating_add(len);
                within("elements of all buffers", total)?;
                slabs.push(Slab {
                    shape: shape.iter().map(|n| *n as usize).collect(),
                    dtype: buffer.dtype,
                    data: vec![f32::NAN; len as usize],
                });
            }
            ranks.push(slabs);
        }
        Ok(Memory { ranks })
    }

    pub fn shape(&self, rank: usize, buffer: BufId) -> &[usize] {
        &self.ranks[rank][buffer.index()].shape
    }

    pub fn values(&self, rank: usize, buffer: BufId) -> &[f32] {
        &self.ranks[rank][buffer.index()].data
    }

    pub fn poison(&mut self, rank: usize, buffer: BufId) {
        self.ranks[rank][buffer.index()].data.fill(f32::NAN);
    }

    /// Replaces a whole buffer. The caller has checked the length.
    pub fn fill(&mut self, rank: usize, buffer: BufId, values: &[f32]) {
        let slab = &mut self.ranks[rank][buffer.index()];
        for (x, v) in slab.data.iter_mut().zip(values) {
            *x = slab.dtype.round(*v);
        }
    }

    /// Whether a region lies inside its buffer.
    pub fn contains(&self, region: &Region) -> bool {
        let shape = self.shape(region.rank, region.buffer);
        shape.len() == region.dims.len()
            && region
                .dims
                .iter()
                .zip(shape)
                .all(|((base, len), n)| *base >= 0 && *len >= 1 && base + len <= *n as i64)
    }

    /// What a region holds now. The region lies inside its buffer.
    pub fn read(&self, region: &Region) -> Tile {
        let slab = &self.ranks[region.rank][region.buffer.index()];
        let cols = region.dims.last().map_or(0, |d| d.1 as usize);
        let mut tile = Tile {
            rows: region.len() as usize / cols.max(1),
            cols,
            data: Vec::with_capacity(region.len() as usize),
        };
        rows(&slab.shape, region, |at| {
            tile.data.extend_from_slice(&slab.data[at..at + cols]);
        });
        tile
    }

    /// Stores to a region, or adds to it. The region lies inside its buffer and `data` is as long.
    pub fn write(&mut self, region: &Region, data: &[f32], accumulate: bool) {
        let slab = &mut self.ranks[region.rank][region.buffer.index()];
        let cols = region.dims.last().map_or(0, |d| d.1 as usize);
        let mut from = data.chunks_exact(cols.max(1));
        let (values, dtype) = (&mut slab.data, slab.dtype);
        rows(&slab.shape, region, |at| {
            for (x, v) in values[at..at + cols].iter_mut().zip(from.next().unwrap_or(&[])) {
                let v = dtype.round(*v);
                *x = if accumulate { dtype.round(*x + v) } else { v };
            }
        });
    }
}

/// Product of extents, none of which may be negative.
pub(super) fn elements(shape: &[i64], what: impl Fn() -> String) -> Result<u64> {
    let mut len = 1u64;
    for n in shape {
        let n = u64::try_from(*n).map_err(|_| SimError::Operands {
            place: what(),
            message: format!("an extent of {shape:?} is negative"),
        })?;
        len = len.saturating_mul(n);
    }
    within(&what(), len)?;
    Ok(len)
}

/// Refuses more than [`MAX_ELEMENTS`].
pub(super) fn within(what: &str, wanted: u64) -> Result<()> {
    if wanted <= MAX_ELEMENTS {
        return Ok(());
    }
    Err(SimError::TooLarge { what: what.into(), wanted, limit: MAX_ELEMENTS })
}

/// Calls `f` with the offset of every contiguous row of a region, in order.
pub(super) fn rows(shape: &[usize], region: &Region, mut f: impl FnMut(usize)) {
    let Some(outer) = region.dims.len().checked_sub(1) else {
        return;
    };
    let mut strides = vec![1usize; shape.len()];
    for d in (0..outer).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    let start: usize = region.dims.iter().zip(&strides).map(|(d, s)| d.0 as usize * s).sum();
    let mut index = vec![0usize; outer];
    loop {
        f(start + index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>());
        let Some(d) = (0..outer).rev().find(|d| index[*d] + 1 < region.dims[*d].1 as usize) else {
            return;
        };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}
