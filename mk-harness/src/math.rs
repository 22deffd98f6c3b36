//! Arithmetic of the reference, in f64.

use mk_abi::DType;
use mk_syntax::Curve;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Nearest value of a type, ties to even.
pub(super) fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        _ if dtype.is_integer() => x.round_ties_even(),
        _ => dtype.round(to_odd(x)).into(),
    }
}

/// The f32 beside `x` whose last bit is odd, unless `x` is an f32 itself: rounded once more, to fewer bits, it gives
/// what `x` would.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || !near.is_finite() || near.to_bits() & 1 == 1 {
        return near;
    }
    let away = back.abs() < x.abs();
    f32::from_bits(if away { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

/// A curve.
pub(super) fn curve(curve: Curve, x: f64) -> f64 {
    match curve {
        Curve::Gelu => gelu(x),
        Curve::GeluTanh => gelu_tanh(x),
        Curve::Silu => silu(x),
        Curve::Relu => relu(x),
    }
}

/// How far kernels are from a curve, in roundings to f32 of 1; `None` for one that only chooses.
pub(super) fn curve_units(curve: Curve, x: f64) -> Option<f64> {
    // An exponential is off by some units for each unit of its argument.
    let exponential = |y: f64, argument: f64| y.abs() * (8.0 + 2.0 * argument) * 2.0;
    let size = x.abs();
    match curve {
        Curve::Gelu => Some(size * 8.0),
        // The exponential's argument is at most this far from a multiple of x.
        Curve::GeluTanh => {
            Some(exponential(gelu_tanh(x), (1.6 * size * (1.0 + 0.05 * size * size)).min(1e3)))
        }
        Curve::Silu => Some(exponential(silu(x), size)),
        Curve::Relu => None,
    }
}

/// x * Phi(x).
fn gelu(x: f64) -> f64 {
    // Where Phi is small it is a difference of nearly equal numbers if it is not taken from erfc.
    x * 0.5 * erfc(-x * FRAC_1_SQRT_2)
}

/// max(x, 0), and not `f64::max`, which would make 0 of a NaN.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// x * sigmoid(x).
fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// x * sigmoid(2u), which is gelu with tanh(u) for the error function.
fn gelu_tanh(x: f64) -> f64 {
    x / (1.0 + (-tanh_argument(x).0).exp())
}

/// `2u` of it, and its slope.
fn tanh_argument(x: f64) -> (f64, f64) {
    let c = 2.0 * (2.0 / PI).sqrt();
    (c * (x + 0.044715 * x * x * x), c * (1.0 + 3.0 * 0.044715 * x * x))
}

/// The slope of a curve; beyond 100 that at 100, from which it differs by less than the least f64.
pub(super) fn slope(curve: Curve, x: f64) -> f64 {
    let x = x.clamp(-100.0, 100.0);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match curve {
        Curve::Gelu => {
            0.5 * erfc(-x * FRAC_1_SQRT_2) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
        }
        Curve::GeluTanh => {
            let (u, slope) = tanh_argument(x);
            let s = sigmoid(u);
            s + x * s * (1.0 - s) * slope
        }
        Curve::Silu => {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }
        Curve::Relu => f64::from(u8::from(x > 0.0)),
    }
}

/// 1 - erf(x), to about 1e-13 relative.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let z = x.abs();
    let upper = if z < 2.0 { 1.0 - erf_series(z) } else { erfc_fraction(z) };
    if x < 0.0 { 2.0 - upper } else { upper }
}

/// erf(x) = 2/sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n+1) / (2n+1)!!, all terms positive (Abramowitz and Stegun 7.1.6).
fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut n = 1.0;
    while term > sum * 1e-17 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// The continued fraction of Abramowitz and Stegun 7.1.14; x at least 2. The greater x is, the fewer levels it takes.
fn erfc_fraction(x: f64) -> f64 {
    let levels = 16 + (256.0 / (x * x)) as u32;
    let below = (1..=levels).rev().fold(0.0, |below, n| f64::from(n) / 2.0 / (x + below));
    (-x * x).exp() / PI.sqrt() / (x + below)
}

/// `c += a b`, of shapes `[m, n]`, `[m, k]` and `[k, n]`, row-major.
pub(super) fn matmul(c: &mut [f64], a: &[f64], b: &[f64], k: usize, n: usize) {
    if k == 0 || n == 0 {
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let m = c.len() / n;
    let each = if m * n * k < 1 << 22 { m } else { m.div_ceil(threads) }.max(1);
    std::thread::scope(|scope| {
        for (c, a) in c.chunks_mut(each * n).zip(a.chunks(each * k)) {
            scope.spawn(move || matmul_alone(c, a, b, k, n));
        }
    });
}

/// What becomes of each of some items, by as many threads as there are processors.
pub(super) fn each<T: Sync, R: Send>(items: &[T], make: &(impl Fn(&T) -> R + Sync)) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if items.len() < 2 || threads < 2 {
        return items.iter().map(make).collect();
    }
    let share = items.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let parts = items.chunks(share);
        let running = parts.map(|part| scope.spawn(|| part.iter().map(make).collect::<Vec<R>>()));
        let running: Vec<_> = running.collect();
        let joined = running.into_iter().map(|thread| match thread.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    })
}

/// Columns that are walked together: a block of `b` as wide stays in the cache while the rows of `a` pass.
const BLOCK: usize = 128;

fn matmul_alone(c: &mut [f64], a: &[f64], b: &[f64], k: usize, n: usize) {
    for from in (0..n).step_by(BLOCK) {
        let to = (from + BLOCK).min(n);
        for (c, a) in c.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
            let c = &mut c[from..to];
            for (x, b) in a.iter().zip(b.chunks_exact(n)) {
                for (sum, y) in c.iter_mut().zip(&b[from..to]) {
                    *sum += x * y;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_stays_so() {
        for of in [relu, gelu, silu] {
            assert!(of(f64::NAN).is_nan());
        }
        assert_eq!([relu(f64::INFINITY), relu(f64::NEG_INFINITY)], [f64::INFINITY, 0.0]);
    }

    #[test]
    fn erfc_at_known_points() {
        // By the C library.
        for (x, want) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (1.999_999, 0.004_677_755_648_073_953),
            (2.0, 0.004_677_734_981_047_266),
            (4.0, 1.541_725_790_028_002e-8),
            (-1.0, 1.842_700_792_949_715),
        ] {
            let got: f64 = erfc(x);
            assert!((got - want).abs() <= 1e-11 * want, "erfc({x}) is {want}, not {got}");
        }
        assert!(gelu(-30.0).abs() < 1e-100);
        assert_eq!(gelu(30.0), 30.0);
    }

    #[test]
    fn what_is_nearly_a_tie_is_none() {
        let tie = 1.0 + 2f64.powi(-8);
        for (x, want) in [
            (tie, 1.0),
            (tie + 2f64.powi(-23), 1.0 + 2f64.powi(-7)),
            (tie + 2f64.powi(-50), 1.0 + 2f64.powi(-7)),
            (tie - 2f64.powi(-50), 1.0),
            (-tie - 2f64.powi(-30), -1.0 - 2f64.powi(-7)),
            (1e300, f64::INFINITY),
            (0.0, 0.0),
        ] {
            assert_eq!(round(DType::Bf16, x), want, "{x:e}");
        }
        assert_eq!(round(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 1.0 + 2f64.powi(-10));
    }

    #[test]
    fn a_product() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let mut c = [0.0; 4];
        matmul(&mut c, &a, &b, 3, 2);
        assert_eq!(c, [4.0, 5.0, 10.0, 11.0]);
    }
}
