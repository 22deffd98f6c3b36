//! Calls of the reference kernels.

use crate::Result;
use crate::driver::Context;
use crate::driver::ledger::wait_for_launches;
use crate::gpu::{DeviceTensor, Kernel};
use std::ffi::c_void;

/// Kernel parameters by value: each in a word of its own, of which the driver reads as much as the kernel declares.
pub(super) struct Params(Vec<u64>);

impl Params {
    /// The memory of tensors.
    pub(super) fn of(tensors: &[&DeviceTensor]) -> Params {
        Params(tensors.iter().map(|t| t.as_arg().ptr()).collect())
    }

    pub(super) fn words(mut self, words: impl IntoIterator<Item = u64>) -> Params {
        self.0.extend(words);
        self
    }

    /// 32-bit parameters.
    pub(super) fn halves(self, halves: impl IntoIterator<Item = u32>) -> Params {
        // Little-endian, as every machine that CUDA runs on: a value is in the first four bytes.
        self.words(halves.into_iter().map(u64::from))
    }

    /// Runs after the GPU's launches, and waits.
    pub(super) fn run(mut self, kernel: &Kernel, context: &Context, grid: [u32; 2]) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        wait_for_launches(context.ordinal())?;
        let mut pointers: Vec<*mut c_void> =
            self.0.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        let grid = [grid[0], grid[1], 1];
        // SAFETY: each caller passes what its kernel in kernels.cu declares, with shapes checked against the tensors,
        // which outlive the call because it waits.
        context.run(|stream| unsafe { kernel.launch(grid, [256, 1, 1], 0, stream, &mut pointers) })
    }
}
