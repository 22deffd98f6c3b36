//! The kernels of `kernels.cu` and `mma.cu`, loaded on a GPU.

use super::piece::Piece;
use crate::gpu::{Kernel, Module, Stream};
use crate::jit::{JitOptions, Unit, compile_unit};
use crate::world::World;
use crate::{Error, Result};
use cudarc::driver::sys::CUfunction_attribute;
use std::ffi::c_void;

/// The files of the device library that the kernels are made of, and the kernels.
const TEXT: &str = concat!(
    "constexpr bool kIndicesAnew = false;\n",
    include_str!("../../templates/ptx/types.cuh"),
    include_str!("../../templates/ptx/memory.cuh"),
    include_str!("../../templates/ptx/fence.cuh"),
    include_str!("../../templates/ptx/mbarrier.cuh"),
    include_str!("../../templates/ptx/bulk.cuh"),
    include_str!("../../templates/ptx/sm90_wgmma.cuh"),
    include_str!("kernels.cu"),
    include_str!("mma.cu"),
);

/// Dynamic shared memory of bulk copies, in bytes: so much that an SM holds one CTA.
const BULK_SMEM_BYTES: u32 = 198_144;
/// Dynamic shared memory of GEMMs, in bytes.
const MMA_SMEM_BYTES: u32 = 197_632;
/// GEMMs come in so many steps.
pub(super) const MMA_STEPS: u32 = 16;
/// Threads of a CTA that multiplies, and how many sums each keeps.
pub(super) const MMA_THREADS: u32 = 256;
pub(super) const MMA_KEPT: u32 = 4;
/// Loads and stores come in blocks of so many bytes.
pub(super) const LDST_BYTES: u64 = 128 << 10;

/// What kernels leave to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Whether a wait was given up.
    pub gave_up: bool,
    /// 32-bit words that were found wrong.
    pub wrong: u32,
    /// Sum of the words that were filled in or read, modulo 2^32.
    pub sum: u32,
    /// What a kernel measured, in nanoseconds.
    pub ns: u64,
}

impl Report {
    /// Size on the device.
    pub(super) const BYTES: u64 = 24;

    /// Reads the device's bytes; none where there are not as many.
    pub(super) fn read(bytes: &[u8]) -> Option<Report> {
        let word = |i: usize| {
            let four = bytes.get(4 * i..4 * i + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(four))
        };
        let ns = u64::from(word(4)?) | u64::from(word(5)?) << 32;
        Some(Report { gave_up: word(0)? != 0, wrong: word(1)?, sum: word(2)?, ns })
    }
}

/// Grid and block of a launch, one-dimensional, and its dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    grid: u32,
    block: u32,
    smem_bytes: u32,
}

impl Shape {
    /// A loop over all words by as many CTAs as fit.
    pub(super) fn flat(words: u32) -> Shape {
        Shape { grid: words.div_ceil(256).clamp(1, 4096), block: 256, smem_bytes: 0 }
    }

    /// Loads and stores by so many SMs.
    pub(super) fn ldst(sms: u32) -> Shape {
        Shape { grid: sms, block: 1024, smem_bytes: 0 }
    }

    /// Bulk copies by so many SMs.
    pub(super) fn bulk(sms: u32) -> Shape {
        Shape { grid: sms, block: 64, smem_bytes: BULK_SMEM_BYTES }
    }

    /// GEMMs by so many SMs.
    pub(super) fn mma(sms: u32) -> Shape {
        Shape { grid: sms, block: MMA_THREADS, smem_bytes: MMA_SMEM_BYTES }
    }

    /// Single threads on SMs of their own.
    pub(super) fn threads(sms: u32) -> Shape {
        Shape { grid: sms, block: 1, smem_bytes: BULK_SMEM_BYTES }
    }

    /// The smallest there is.
    pub(super) fn least() -> Shape {
        Shape { grid: 1, block: 1, smem_bytes: 0 }
    }
}

/// The kernels on one GPU. Arguments are listed in `kernels.cu` and `mma.cu`.
#[derive(Debug)]
pub(super) struct Kernels {
    pub fill: Kernel,
    pub check: Kernel,
    pub ldst_copy: Kernel,
    pub read: Kernel,
    pub ping_gpu: Kernel,
    pub ping_sys: Kernel,
    pub nothing: Kernel,
    pub mma: Kernel,
    pub mma_check: Kernel,
    /// By size of a piece: copies, and sums.
    bulk: Vec<(Piece, Kernel, Kernel)>,
}

impl Kernels {
    pub(super) fn load(world: &World, rank: u32, options: &JitOptions) -> Result<Kernels> {
        let compiled = compile_unit(unit(), options)?;
        let module = Module::load(world.context(rank)?, &compiled.cubin)?;
        let kernel = |entry: &str| Kernel::new(&module, entry, NAME);
        let with_smem = |entry: &str, bytes: u32| {
            let kernel = kernel(entry)?;
            let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            kernel.set(which, bytes as i32)?;
            Ok::<_, Error>(kernel)
        };
        let large = |entry: &str| with_smem(entry, BULK_SMEM_BYTES);
        let mut bulk = Vec::new();
        for piece in Piece::ALL {
            let kib = piece.bytes() / 1024;
            let copy = large(&format!("probe_bulk_copy_{kib}"))?;
            bulk.push((piece, copy, large(&format!("probe_bulk_add_{kib}"))?));
        }
        Ok(Kernels {
            fill: kernel("probe_fill")?,
            check: kernel("probe_check")?,
            ldst_copy: kernel("probe_ldst_copy")?,
            read: kernel("probe_read")?,
            ping_gpu: large("probe_ping_gpu")?,
            ping_sys: large("probe_ping_sys")?,
            nothing: kernel("probe_nothing")?,
            mma: with_smem("probe_mma", MMA_SMEM_BYTES)?,
            mma_check: kernel("probe_mma_check")?,
            bulk,
        })
    }

    /// The bulk kernel that copies in such pieces, or adds.
    pub(super) fn bulk(&self, piece: Piece, add: bool) -> Option<&Kernel> {
        let (_, copy, sum) = self.bulk.iter().find(|(p, ..)| *p == piece)?;
        Some(if add { sum } else { copy })
    }
}

const NAME: &str = "probe";

fn unit() -> Unit<'static> {
    Unit { name: NAME, cuda: TEXT, arch: "sm_90a", options: &[] }
}

/// Enqueues a kernel. Arguments are words, of which the driver reads as much as the kernel declares (little-endian).
///
/// # Safety
/// They must be what the kernel declares in `kernels.cu` or `mma.cu`; memory among them must be mapped on the stream's
/// GPU, as large as the kernel takes it to be, and live until it is done. The stream must be of the kernel's GPU.
pub(super) unsafe fn enqueue(
    kernel: &Kernel,
    shape: Shape,
    stream: &Stream,
    args: &[u64],
) -> Result<()> {
    let mut args = args.to_vec();
    let mut pointers: Vec<*mut c_void> =
        args.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
    let (grid, block) = ([shape.grid, 1, 1], [shape.block, 1, 1]);
    // SAFETY: by the caller; the driver copies the arguments before it returns.
    unsafe { kernel.launch(grid, block, shape.smem_bytes, stream.as_ref().raw(), &mut pointers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jit::disassemble;
    use mk_skip::{Need, skip};

    #[test]
    fn the_kernels_compile_without_spills() {
        let options = JitOptions { use_cache: false, ..JitOptions::default() };
        let compiled = match compile_unit(unit(), &options) {
            Ok(compiled) => compiled,
            Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(compiled.report.entries.len(), 17, "{:?}", compiled.report);
        // One stage is four products of the largest shape; they are the only ones, so that none is serialised or
        // doubled.
        match disassemble(&compiled.cubin) {
            Ok(sass) => assert_eq!(sass.matches("HGMMA.64x256x16.F32.BF16").count(), 4),
            Err(Error::ToolMissing { .. }) => skip(Need::Program("nvdisasm"), ""),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_report_is_read_as_the_device_writes_it() {
        let mut bytes = Vec::new();
        for word in [1u32, 2, 3, 0, 5, 6] {
            bytes.extend(word.to_le_bytes());
        }
        assert_eq!(bytes.len() as u64, Report::BYTES);
        let want = Report { gave_up: true, wrong: 2, sum: 3, ns: 5 | 6 << 32 };
        assert_eq!(Report::read(&bytes), Some(want));
        assert_eq!(Report::read(&bytes[..23]), None);
    }
}
