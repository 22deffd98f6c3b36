//! Slow, plain kernels on the GPU that fused kernels are compared with: random inputs, an fp32 GEMM without tensor
//! cores, elementwise operations, and error norms. For tests and `mk run`: every call waits for the GPU's launches, and
//! for itself.

mod attend;
mod norm;
mod params;

pub use attend::{Attend, Places};
pub use norm::ErrorNorm;

use crate::driver::Context;
use crate::gpu::{DeviceTensor, Kernel, Module};
use crate::jit::{JitOptions, Unit, compile_unit};
use crate::world::World;
use crate::{Error, Result};
use mk_abi::DType;
use mk_dtype::Curve;
use params::Params;
use std::sync::Arc;

const TEXT: &str = include_str!("kernels.cu");

/// Elementwise operations of [`Reference::map`], in fp32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MapOp {
    /// Conversion between types, or a copy.
    Cast,
    /// x + y.
    Add,
    /// x * y.
    Mul,
    /// silu(x[:, 0, :]) * x[:, 1, :]: `[M, 2, F]` to `[M, F]`.
    Swiglu,
    /// The gradient of the input `y` of [`MapOp::Swiglu`], from that of its result: `[M, F]` and `[M, 2, F]` to `[M, 2,
    /// F]`.
    SwigluGrad,
    /// x + y, where y is `[N]` and N the last dimension of x.
    Bias,
    /// x * y, where y is `[M]` and M the first dimension of x.
    ScaleRows,
    /// x * y of `[M, K]`, where y is `[K / 128, M]`.
    ScaleSteps,
    /// x * y of `[M, K]`, where y is `[M / 128, K / 128]`.
    ScaleBlocks,
    /// Of x `[M, K]` the factors `[K / 128, M]`: the largest magnitude of a row's 128 elements over this number; 1 of
    /// zeros.
    Factors(f32),
    /// x / y of `[M, K]`, where y is `[K / 128, M]`.
    OverSteps,
    /// Heads of x, `[M, H * D]`, turned by the angles of y, `[M, D]`: D / 2 cosines, then D / 2 sines.
    Rope {
        /// The other way.
        back: bool,
    },
    /// A curve of x.
    Curve(Curve),
    /// x times the slope of a curve at y.
    Slope(Curve),
    /// x times the factor.
    Scale(f32),
    /// 1 / sqrt(x + so much).
    ReciprocalRoot(f32),
}

impl MapOp {
    /// Whether each element is made of two, one from either tensor.
    fn pairs(self) -> bool {
        matches!(self, MapOp::Add | MapOp::Mul | MapOp::Slope(_))
    }

    /// The kernels' number of the operation, and its factor.
    fn code(self) -> (u32, f32) {
        match self {
            MapOp::Cast => (0, 1.0),
            MapOp::Add => (5, 1.0),
            MapOp::Mul => (6, 1.0),
            MapOp::Swiglu => (7, 1.0),
            MapOp::Bias => (8, 1.0),
            MapOp::Scale(factor) => (9, factor),
            MapOp::Curve(curve) => (32 + curve as u32, 1.0),
            MapOp::Slope(curve) => (64 + curve as u32, 1.0),
            MapOp::SwigluGrad => (14, 1.0),
            MapOp::ScaleRows => (15, 1.0),
            MapOp::ScaleSteps => (17, 1.0),
            MapOp::ScaleBlocks => (18, 1.0),
            MapOp::ReciprocalRoot(eps) => (16, eps),
            MapOp::Factors(largest) => (20, largest),
            MapOp::OverSteps => (21, 1.0),
            MapOp::Rope { back } => (19, if back { -1.0 } else { 1.0 }),
        }
    }
}

/// An operand of [`Reference::gemm`]: a matrix, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    tensor: &'a DeviceTensor,
    transposed: bool,
}

impl<'a> Operand<'a> {
    /// The matrix as it is.
    pub fn new(tensor: &'a DeviceTensor) -> Operand<'a> {
        Operand { tensor, transposed: false }
    }

    /// Its transpose.
    pub fn t(tensor: &'a DeviceTensor) -> Operand<'a> {
        Operand { tensor, transposed: true }
    }

    /// `(rows, columns, row stride, column stride)`, in elements.
    fn view(self) -> Result<(u64, u64, u64, u64)> {
        match (self.tensor.shape(), self.transposed) {
            (&[rows, cols], false) => Ok((rows, cols, cols, 1)),
            (&[rows, cols], true) => Ok((cols, rows, 1, cols)),
            (shape, _) => {
                Err(mismatch(format!("a gemm operand has shape {shape:?}, not two dimensions")))
            }
        }
    }
}

struct Kernels {
    gemm: Kernel,
    attend: Kernel,
    attend_stats: Kernel,
    attend_dq: Kernel,
    attend_dkv: Kernel,
    fill: Kernel,
    map: Kernel,
    error: Kernel,
}

/// The reference kernels, loaded on every GPU of a world.
pub struct Reference {
    world: World,
    /// Of this process's ranks; those on one GPU share.
    ranks: Vec<Arc<Kernels>>,
}

impl Reference {
    /// Compiles (or reads from the cache) and loads.
    ///
    /// # Errors
    /// As [`crate::jit::compile_unit`]; [`Error::Cuda`].
    pub fn new(world: &World, options: &JitOptions) -> Result<Reference> {
        let mut ranks: Vec<Arc<Kernels>> = Vec::new();
        for rank in world.local_ranks() {
            let ordinal = world.device(rank)?.ordinal;
            let shared = ranks.iter().find(|k| k.gemm.context().ordinal() == ordinal).cloned();
            ranks.push(match shared {
                Some(kernels) => kernels,
                None => Arc::new(Kernels::load(world, rank, options)?),
            });
        }
        Ok(Reference { world: world.clone(), ranks })
    }

    /// Fills a float tensor with uniform values in [-scale, scale), a function of `seed` and the index alone:
    /// [`random_value`] gives them on the host.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor of integers; [`Error::Cuda`].
    pub fn fill_random(&self, x: &DeviceTensor, seed: u64, scale: f32) -> Result<()> {
        let (kernels, context) = self.on(x.rank())?;
        let (code, scale) = ([code(x)?], [scale.to_bits()]);
        let params =
            Params::of(&[x]).words([x.elements()]).halves(code).words([seed]).halves(scale);
        params.run(&kernels.fill, context, [flat(x.elements()), 1])
    }

    /// c = a · b, or c += a · b: fp32 accumulation, k ascending. `c` is f32 `[M, N]`; operands are any float type,
    /// `[M, K]` and `[K, N]`. All on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`] for shapes, types or ranks that do not fit; [`Error::Cuda`].
    pub fn gemm(
        &self,
        c: &DeviceTensor,
        a: Operand<'_>,
        b: Operand<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (m, k, a_row, a_col) = a.view()?;
        let (k2, n, b_row, b_col) = b.view()?;
        if k != k2 || c.shape() != [m, n] || c.dtype() != DType::F32 {
            return Err(mismatch(format!(
                "a gemm of [{m}, {k}] and [{k2}, {n}] does not give {} {:?}",
                c.dtype(),
                c.shape()
            )));
        }
        same_rank(&[c, a.tensor, b.tensor])?;
        let (kernels, context) = self.on(c.rank())?;
        let params = Params::of(&[c, a.tensor, b.tensor])
            .words([m, n, k, a_row, a_col, b_row, b_col])
            .halves([code(a.tensor)?, code(b.tensor)?, u32::from(accumulate)]);
        params.run(&kernels.gemm, context, [tiles(n)?, tiles(m)?])
    }

    /// out = op(a) or op(a, b), elementwise in fp32, rounded to the type of `out`. All on one rank; `out` may be `a`
    /// where the types agree.
    ///
    /// # Errors
    /// [`Error::Shape`] for shapes, types or ranks that do not fit, or a second operand too many or too few;
    /// [`Error::Cuda`].
    pub fn map(
        &self,
        op: MapOp,
        out: &DeviceTensor,
        a: &DeviceTensor,
        b: Option<&DeviceTensor>,
    ) -> Result<()> {
        let inner = out.shape().last().copied().unwrap_or(1);
        let same = |t: &DeviceTensor| t.elements() == out.elements();
        let fits = match (op, a.shape(), b) {
            (MapOp::Swiglu, &[m, 2, f], None) => out.shape() == [m, f],
            (MapOp::SwigluGrad, &[m, f], Some(h)) => {
                same(h) && h.shape() == [m, 2, f] && out.shape() == [m, 2, f]
            }
            (MapOp::Swiglu | MapOp::SwigluGrad, ..) => false,
            (op, _, Some(b)) if op.pairs() => same(a) && same(b),
            (MapOp::Bias, _, Some(b)) => same(a) && b.shape() == [inner],
            (MapOp::ScaleRows, &[m, _], Some(b)) => same(a) && b.shape() == [m],
            (MapOp::ScaleSteps | MapOp::OverSteps, &[m, k], Some(b)) => {
                same(a) && b.shape() == [k.div_ceil(128), m]
            }
            (MapOp::Factors(_), &[m, k], None) => out.shape() == [k.div_ceil(128), m],
            (MapOp::Factors(_) | MapOp::OverSteps, ..) => false,
            (MapOp::ScaleBlocks, &[m, k], Some(b)) => {
                same(a) && b.shape() == [m.div_ceil(128), k.div_ceil(128)]
            }
            (MapOp::Rope { .. }, &[m, n], Some(b)) => {
                let d = b.shape().last().copied().unwrap_or(0);
                same(a) && b.shape() == [m, d] && d > 0 && d % 2 == 0 && n % d == 0
            }
            (MapOp::Rope { .. }, ..) => false,
            (MapOp::Bias | MapOp::ScaleRows | MapOp::ScaleSteps | MapOp::ScaleBlocks, ..) => false,
            (op, _, None) if op.pairs() => false,
            (_, _, Some(_)) => false,
            (_, _, None) => same(a),
        };
        if !fits {
            return Err(mismatch(format!(
                "{op:?} of {:?} and {:?} does not give {:?}",
                a.shape(),
                b.map(|b| b.shape()),
                out.shape()
            )));
        }
        let b = b.unwrap_or(a);
        same_rank(&[out, a, b])?;
        let (op, factor) = op.code();
        let (kernels, context) = self.on(out.rank())?;
        let params = Params::of(&[out, a, b])
            .words([out.elements(), inner.max(1), b.shape().last().copied().unwrap_or(1)])
            .halves([op, factor.to_bits(), code(out)?, code(a)?, code(b)?]);
        params.run(&kernels.map, context, [flat(out.elements()), 1])
    }

    /// Compares `x` with `reference`, of the same shape (seen as rows of the last dimension) on the same rank. The
    /// sums are in f64. Elements beyond the range of the type of `x` in both are left out. With `own`, only the first
    /// `own[i]` rows of the 128 from `128 * i` on count, and the others must be 0 in both.
    ///
    /// # Errors
    /// [`Error::Shape`] for shapes, types or ranks that do not fit; [`Error::Cuda`].
    pub fn error(
        &self,
        x: &DeviceTensor,
        reference: &DeviceTensor,
        own: Option<&[u64]>,
    ) -> Result<ErrorNorm> {
        if x.shape() != reference.shape() {
            return Err(mismatch(format!(
                "{:?} cannot be compared with {:?}",
                x.shape(),
                reference.shape()
            )));
        }
        same_rank(&[x, reference])?;
        let cols = x.shape().last().copied().unwrap_or(1);
        let rows = x.elements().checked_div(cols).unwrap_or(0);
        let grid = [tiles(cols)?, tiles(rows)?];
        let n_tiles = u64::from(grid[0]) * u64::from(grid[1]);
        let (kernels, context) = self.on(x.rank())?;
        let out = crate::mem::DeviceBuffer::zeroed(
            &self.world,
            x.rank(),
            n_tiles * norm::TILE_BYTES as u64,
        )?;
        let memory = [out.ptr(), x.as_arg().ptr(), reference.as_arg().ptr()];
        let params = Params::of(&[]).words(memory).words([rows, cols]);
        let params = params.halves([code(x)?, code(reference)?]);
        params.run(&kernels.error, context, grid)?;
        Ok(ErrorNorm::from_tiles(&out.download()?, rows, cols, own))
    }

    fn on(&self, rank: u32) -> Result<(&Kernels, &Context)> {
        let context = self.world.context(rank)?;
        let kernels = self.world.local_index(rank).and_then(|i| self.ranks.get(i));
        Ok((kernels.ok_or_else(|| self.world.no_rank(rank))?, context))
    }
}

impl Kernels {
    fn load(world: &World, rank: u32, options: &JitOptions) -> Result<Kernels> {
        let (major, minor) = world.device(rank)?.capability;
        let compiled = compile_unit(
            Unit {
                name: "reference",
                cuda: TEXT,
                arch: &format!("sm_{major}{minor}"),
                options: &[],
            },
            options,
        )?;
        let module = Module::load(world.context(rank)?, &compiled.cubin)?;
        let kernel = |entry| Kernel::new(&module, entry, "reference");
        Ok(Kernels {
            gemm: kernel("reference_gemm")?,
            attend: kernel("reference_attend")?,
            attend_stats: kernel("reference_attend_stats")?,
            attend_dq: kernel("reference_attend_dq")?,
            attend_dkv: kernel("reference_attend_dkv")?,
            fill: kernel("reference_fill")?,
            map: kernel("reference_map")?,
            error: kernel("reference_error")?,
        })
    }
}

/// The value of element `index` of [`Reference::fill_random`], before it is rounded to the tensor's type.
pub fn random_value(seed: u64, index: u64, scale: f32) -> f32 {
    let mut z = seed
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(index.wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    ((z >> 40) as u32 as f32 * (1.0 / 8_388_608.0) - 1.0) * scale
}

/// The kernels' number of a tensor's type.
fn code(x: &DeviceTensor) -> Result<u32> {
    match x.dtype().is_integer() {
        false => Ok(x.dtype() as u32),
        true => Err(mismatch("the reference kernels take floats only".into())),
    }
}

fn same_rank(tensors: &[&DeviceTensor]) -> Result<()> {
    let first = tensors[0].rank();
    match tensors.iter().find(|t| t.rank() != first) {
        None => Ok(()),
        Some(other) => Err(mismatch(format!(
            "tensors of ranks {first} and {} meet in one reference kernel: copy one first",
            other.rank()
        ))),
    }
}

/// Blocks for a grid-stride loop.
fn flat(n: u64) -> u32 {
    n.div_ceil(256).min(4096) as u32
}

/// 128-wide tiles along a dimension.
fn tiles(n: u64) -> Result<u32> {
    let tiles = n.div_ceil(128);
    // The y dimension of a grid ends at 65535.
    u32::try_from(tiles).ok().filter(|t| *t <= 65_535).ok_or_else(|| {
        mismatch(format!("a dimension of {n} is too large for the reference kernels"))
    })
}

fn mismatch(what: String) -> Error {
    Error::Shape { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jit::EntryReport;
    use mk_skip::{Need, skip};

    #[test]
    fn the_kernels_compile_without_spills() {
        let unit = Unit { name: "reference", cuda: TEXT, arch: "sm_90", options: &[] };
        let options = JitOptions { use_cache: false, ..JitOptions::default() };
        match compile_unit(unit, &options) {
            Ok(compiled) => {
                let entries = &compiled.report.entries;
                assert_eq!(entries.len(), TEXT.matches("__global__").count(), "{entries:?}");
                let spills = |e: &EntryReport| e.spill_store_bytes + e.spill_load_bytes;
                assert!(entries.iter().all(|e| spills(e) == 0), "{entries:?}");
            }
            Err(Error::NvrtcMissing { .. }) => skip(Need::Nvrtc, ""),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn random_values_fill_their_range_evenly() {
        let n = 10_000;
        let values: Vec<f32> = (0..n).map(|i| random_value(7, i, 2.0)).collect();
        assert!(values.iter().all(|v| (-2.0..2.0).contains(v)));
        let mean = values.iter().sum::<f32>() / n as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / n as f32;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((square - 4.0 / 3.0).abs() < 0.05, "{square}");
        assert_ne!(random_value(7, 0, 1.0), random_value(8, 0, 1.0));
    }
}
