//! Quantises the weights of layers that train. One read gives two layouts, as stored and transposed: tensor cores take
//! operands of eight bits with the summed dimension last, and a backward sums over the other one. Not part of a plan:
//! no peer reads them, and streams order launches.

use crate::driver::{Context, attribute, init};
use crate::gpu::{Kernel, Module, StreamRef};
use crate::jit::{JitOptions, Unit, compile_unit};
use crate::{Error, Result};
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use std::ffi::c_void;
use std::sync::Arc;

const TEXT: &str = include_str!("kernel.cu");
/// Rows and columns that share a factor.
const BLOCK: u64 = 128;
/// A thread's patch has so many rows and columns.
const PATCH: u64 = 8;
/// Threads of a block, as the kernel has them.
const THREADS: u32 = 256;
/// Most blocks of a grid in its second and third dimension (CUDA C++ Programming Guide, compute capabilities).
const MOST_BLOCKS: u64 = 65535;

/// Device memory of a call, by address. With `r = ceil(rows / 128)` and `c = ceil(columns / 128)`:
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// bf16 `[matrices, rows, columns]`.
    pub x: u64,
    /// e4m3 `[matrices, rows, columns]`.
    pub values: u64,
    /// f32 `[matrices, r, c]`: a block's largest magnitude over 448; 1 if all are 0, NaN if one is.
    pub factors: u64,
    /// e4m3 `[matrices, columns, rows]`.
    pub turned: u64,
    /// f32 `[matrices, c, r]`.
    pub turned_factors: u64,
    /// How many there are.
    pub matrices: u64,
    /// Of each; a multiple of 8.
    pub rows: u64,
    /// Of each; a multiple of 8.
    pub columns: u64,
}

/// The kernel that makes them, loaded on one GPU.
#[derive(Clone, Debug)]
pub struct Weights(Kernel);

impl Weights {
    /// Compiles (or reads from the cache) and loads.
    ///
    /// # Errors
    /// As [`crate::jit::compile`]; [`Error::Cuda`].
    pub fn new(ordinal: i32, options: &JitOptions) -> Result<Weights> {
        init()?;
        let context = Arc::new(Context::retain(ordinal)?);
        let [major, minor] = [
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|which| attribute(ordinal, which));
        let arch = format!("sm_{}{}", major?, minor?);
        let unit = Unit { name: "weights", cuda: TEXT, arch: &arch, options: &[] };
        let module = Module::load(&context, &compile_unit(unit, options)?.cubin)?;
        Ok(Weights(Kernel::new(&module, "weights_quantize", "weights")?))
    }

    /// Enqueues a call.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that are no multiples of 8, or too large, and for addresses; [`Error::Cuda`].
    ///
    /// # Safety
    /// The memory is the GPU's, of the sizes that [`Weight`] has, and stays until the stream is past the call; the
    /// stream is one of the GPU's primary context.
    pub unsafe fn quantize(&self, weight: Weight, stream: StreamRef) -> Result<()> {
        let Weight { x, values, factors, turned, turned_factors, matrices, rows, columns } = weight;
        let [across, down] = [columns, rows].map(|n| n.div_ceil(BLOCK));
        if rows % PATCH != 0 || columns % PATCH != 0 || down.max(matrices) > MOST_BLOCKS {
            let what = format!(
                "{matrices} weights of {rows} x {columns}: rows and columns must be multiples of \
                 {PATCH}, with at most {MOST_BLOCKS} matrices, of {MOST_BLOCKS} x {BLOCK} rows"
            );
            return Err(Error::Shape { what });
        }
        if x % 16 != 0 || [values, turned].iter().any(|p| p % 8 != 0) {
            let what = "a weight must be at a multiple of 16 bytes, and its results of 8".into();
            return Err(Error::Shape { what });
        }
        if [matrices, rows, columns].contains(&0) {
            return Ok(());
        }
        let mut words = [x, values, factors, turned, turned_factors, rows, columns];
        let mut params = words.each_mut().map(|word| std::ptr::from_mut(word).cast::<c_void>());
        let grid = [across as u32, down as u32, matrices as u32];
        // SAFETY: the kernel declares these seven words; memory and stream by the caller.
        unsafe { self.0.launch(grid, [THREADS, 1, 1], 0, stream.raw(), &mut params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_skip::{Need, skip};

    #[test]
    fn the_kernel_compiles_without_spills() {
        let unit = Unit { name: "weights", cuda: TEXT, arch: "sm_90", options: &[] };
        let options = JitOptions { use_cache: false, ..JitOptions::default() };
        match compile_unit(unit, &options) {
            Ok(compiled) => {
                let entries = &compiled.report.entries;
                assert!(entries.len() == 1 && !entries[0].spills(), "{entries:?}");
            }
            Err(Error::NvrtcMissing { .. }) => skip(Need::Nvrtc, ""),
            Err(error) => panic!("{error}"),
        }
    }
}
