//! Arithmetic of the leaves, as the numerics contract has it: operands in the precision of their buffer, f32
//! accumulation with k in ascending order, one rounding when a result is stored.

mod attend;
mod epilogue;
mod erf;
mod gradients;
mod matmul;

pub(super) use attend::{Attention, AttentionStep, Bounds};
pub(super) use epilogue::{apply, silu, slope_of};
pub(super) use gradients::{Block, Gradients, statistics};
pub(super) use matmul::{multiply_add, transpose};

/// A block of numbers, row-major. Of a region, `cols` is the last extent and `rows` the product of the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tile {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f32>,
}

impl Tile {
    pub fn zeros(rows: usize, cols: usize) -> Tile {
        Tile { rows, cols, data: vec![0.0; rows * cols] }
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }
}
