//! The elementwise tail of a GEMM, in f32.

use super::{Tile, erf::erf};
use mk_dtype::Curve;
use mk_plan::EpilogueOp;

/// Applies `op` to `acc`. `operand` is `None` for operations without one; a vector has `acc.cols` elements, or
/// `acc.rows`, a matrix as many as `acc`. The caller has checked that.
pub(in super::super) fn apply(op: EpilogueOp, acc: &mut Tile, operand: Option<&Tile>) {
    let cols = acc.cols.max(1);
    let other = operand.map_or(&[][..], |t| &t.data);
    let each = |acc: &mut Tile, f: &dyn Fn(f32) -> f32| {
        acc.data.iter_mut().for_each(|x| *x = f(*x));
    };
    match op {
        EpilogueOp::Bias => {
            for row in acc.data.chunks_mut(cols) {
                row.iter_mut().zip(other).for_each(|(x, b)| *x += b);
            }
        }
        EpilogueOp::ScaleColumns => {
            for row in acc.data.chunks_mut(cols) {
                row.iter_mut().zip(other).for_each(|(x, s)| *x *= s);
            }
        }
        EpilogueOp::ScaleRows => {
            for (row, s) in acc.data.chunks_mut(cols).zip(other) {
                row.iter_mut().for_each(|x| *x *= s);
            }
        }
        EpilogueOp::Mul => acc.data.iter_mut().zip(other).for_each(|(x, y)| *x *= y),
        EpilogueOp::Add | EpilogueOp::Carry => {
            acc.data.iter_mut().zip(other).for_each(|(x, y)| *x += y)
        }
        EpilogueOp::Curve(curve) => each(acc, &|x| value(curve, x)),
        EpilogueOp::MulSilu => acc.data.iter_mut().zip(other).for_each(|(x, y)| *x *= silu(*y)),
        EpilogueOp::Slope(Curve::Relu) => acc.data.iter_mut().zip(other).for_each(|(x, y)| {
            if *y <= 0.0 {
                *x = 0.0;
            }
        }),
        EpilogueOp::Slope(curve) => {
            acc.data.iter_mut().zip(other).for_each(|(x, y)| *x *= slope_of(curve, *y));
        }
        EpilogueOp::Scale(bits) => each(acc, &|x| x * f32::from_bits(bits)),
        EpilogueOp::Round(to) => each(acc, &|x| to.round(x)),
        // Of steps, before they are added.
        EpilogueOp::ScaleSteps | EpilogueOp::ScaleBlocks => {}
        // What is quantised is a tile's.
        EpilogueOp::Quantize(_) => {}
        EpilogueOp::Widen | EpilogueOp::Save | EpilogueOp::Keep => {}
        EpilogueOp::Swiglu => {
            let half = acc.cols / 2;
            let rows = acc.data.chunks(cols);
            acc.data = rows
                .flat_map(|row| row[..half].iter().zip(&row[half..]).map(|(g, u)| silu(*g) * u))
                .collect();
            acc.cols = half;
        }
    }
}

fn value(curve: Curve, x: f32) -> f32 {
    match curve {
        Curve::Gelu => gelu(x),
        Curve::GeluTanh => gelu_tanh(x),
        Curve::Silu => silu(x),
        // Not `max`, which would make 0 of a NaN.
        Curve::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
    }
}

fn slope_at(curve: Curve, x: f64) -> f64 {
    match curve {
        Curve::Gelu => gelu_slope(x),
        Curve::GeluTanh => gelu_tanh_slope(x),
        Curve::Silu => silu_slope(x),
        Curve::Relu => f64::from(u8::from(x > 0.0)),
    }
}

/// The slope of a curve, its argument clamped to [-100, 100], so that infinite arguments have finite slopes.
pub(in super::super) fn slope_of(curve: Curve, x: f32) -> f32 {
    slope_at(curve, f64::from(x).clamp(-100.0, 100.0)) as f32
}

fn gelu_slope(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density
}

fn silu_slope(x: f64) -> f64 {
    let s = 1.0 / (1.0 + (-x).exp());
    s * (1.0 + x * (1.0 - s))
}

/// `2u` of [`gelu_tanh`], and its slope.
fn tanh_argument(x: f64) -> (f64, f64) {
    let c = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
    (c * (x + 0.044715 * x * x * x), c * (1.0 + 3.0 * 0.044715 * x * x))
}

fn gelu_tanh(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + (-tanh_argument(x).0).exp())) as f32
}

fn gelu_tanh_slope(x: f64) -> f64 {
    let (u, slope) = tanh_argument(x);
    let s = 1.0 / (1.0 + (-u).exp());
    s + x * s * (1.0 - s) * slope
}

pub(in super::super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}
