//! The virtual caller: a training step that writes every input before each launch and reads every output after it.

use mk_plan::{BufId, TabId};

/// Writes inputs and reads outputs. Epochs count from 1.
///
/// A rank's inputs of epoch e + 1 are asked for, and overwrite those of epoch e, as soon as that rank's kernel of epoch
/// e has ended, whatever other ranks are doing.
pub trait Caller {
    /// A tensor of `space in`, row-major, `shape` elements. Values are rounded to the buffer's type. Integers that are
    /// a table are asked for once more, for all ranks, when the first of them launches: the answer is the same.
    fn input(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize]) -> Vec<f32>;
    /// A run-time table that no tensor has, row-major.
    fn table(&mut self, epoch: i64, rank: usize, table: TabId) -> Vec<i32>;
    /// A tensor of `space out` that a launch has left behind. What was not written is NaN.
    fn output(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize], values: &[f32]);
}

/// A caller made of three closures.
pub struct Callbacks<I, T, O> {
    /// See [`Caller::input`].
    pub input: I,
    /// See [`Caller::table`].
    pub table: T,
    /// See [`Caller::output`].
    pub output: O,
}

impl<I, T, O> Caller for Callbacks<I, T, O>
where
    I: FnMut(i64, usize, BufId, &[usize]) -> Vec<f32>,
    T: FnMut(i64, usize, TabId) -> Vec<i32>,
    O: FnMut(i64, usize, BufId, &[usize], &[f32]),
{
    fn input(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize]) -> Vec<f32> {
        (self.input)(epoch, rank, buffer, shape)
    }
    fn table(&mut self, epoch: i64, rank: usize, table: TabId) -> Vec<i32> {
        (self.table)(epoch, rank, table)
    }
    fn output(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize], values: &[f32]) {
        (self.output)(epoch, rank, buffer, shape, values);
    }
}
