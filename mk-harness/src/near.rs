//! A number of the reference with a bound on how far a right result may be from it.
//!
//! A bound has two parts. `hard` holds whatever the roundings do: half a unit in the last place for each value that is
//! stored, and what f32 arithmetic adds. `sd` is the standard deviation of what many roundings add up to in a product;
//! they are independent, and [`LAMBDA`] deviations are never seen. (N. Higham, T. Mary: A new approach to probabilistic
//! rounding error analysis, 2019.)

use crate::math;
use mk_abi::DType;
use mk_syntax::Curve;

/// Deviations that a right result never is away: 1e-12 of Gaussian ones, and no sum of up to 16 roundings at all.
pub(crate) const LAMBDA: f64 = 7.0;
/// Rounding to f32, relative.
pub(crate) const U32: f64 = 1.0 / (1u64 << 24) as f64;
/// What rounding to a subnormal f32 costs, with some to spare.
const TINY: f64 = 1.0e-44;
/// What the fast division and exponential of epilogues lose below the smallest normal f32.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
/// No slope of gelu or silu is greater.
const STEEPEST: f64 = 1.13;

/// A number, and how far a right result may be from it. Infinite or NaN with a bound of 0: a right result is the same.
/// With an infinite bound: something on the way is so near the end of its type's range that a right result may be
/// anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Near {
    pub x: f64,
    pub hard: f64,
    pub sd: f64,
}

impl Near {
    /// Exactly this.
    pub fn exact(x: f64) -> Near {
        Near { x, hard: 0.0, sd: 0.0 }
    }

    /// A number about which nothing is known but what it would be without an end of the range. It is finite, so that no
    /// other number seems to be infinite for sure because of it.
    pub fn unknown(x: f64) -> Near {
        Near { x: if x.is_finite() { x } else { 0.0 }, hard: f64::INFINITY, sd: 0.0 }
    }

    /// A number that was not evaluated. Whatever is made of it is unknown.
    pub fn unasked() -> Near {
        Near { x: 0.0, hard: f64::NAN, sd: 0.0 }
    }

    pub fn is_unasked(self) -> bool {
        self.hard.is_nan()
    }

    /// No number, for sure.
    pub fn is_nan(self) -> bool {
        self.x.is_nan() && self.is_exact()
    }

    pub fn is_exact(self) -> bool {
        self.hard == 0.0 && self.sd == 0.0
    }

    /// How far a right result may be.
    pub fn bound(self) -> f64 {
        self.hard + LAMBDA * self.sd
    }

    /// The mean square of the error that is to be expected: a rounding is anywhere in its interval.
    pub fn variance(self) -> f64 {
        self.hard * self.hard / 3.0 + self.sd * self.sd
    }

    /// Where the range of a type ends: beyond it is infinite, or the largest number. What may or may not be beyond it
    /// is unknown in the first case, and at most as far as the largest number in the second.
    pub fn within(self, dtype: DType) -> Near {
        let (bound, end) = (self.bound(), end(dtype));
        let beyond = dtype.format().float.map_or(f64::INFINITY, |f| f.beyond().into());
        if !bound.is_finite() {
            return Near::unknown(self.x);
        }
        if self.x.is_nan() {
            return Near::exact(self.x);
        }
        match self.x.abs() {
            x if x - bound >= end => Near::exact(beyond.copysign(self.x)),
            x if x + bound >= end && beyond.is_finite() => {
                Near { hard: self.hard.max(x - beyond), ..self }
            }
            x if x + bound >= end => Near::unknown(self.x),
            _ => self,
        }
    }

    /// As memory of a type holds it. The number stays what it was, so that roundings do not add up in the reference.
    pub fn stored(self, dtype: DType) -> Near {
        let near = self.within(dtype);
        if near.is_exact() && (near.is_nan() || math::round(dtype, near.x) == near.x) {
            return near;
        }
        let hard = self.hard + half_ulp(dtype, self.x.abs() + self.bound());
        Near { hard, ..self }.within(dtype)
    }

    /// Converted: an exact number is the converted one.
    pub fn cast(self, to: DType) -> Near {
        if self.is_exact() { Near::exact(math::round(to, self.x)) } else { self }
    }

    /// What an operation in f32 gives, off by `own` and by what its rounding costs.
    fn f32(x: f64, hard: f64, sd: f64, own: f64) -> Near {
        // What is infinite is not rounded.
        let rounding = if x.is_finite() { own + U32 * x.abs() + TINY } else { 0.0 };
        Near { x, hard: hard + rounding, sd }.within(DType::F32)
    }

    pub fn add(self, o: Near) -> Near {
        if self.is_nan() || o.is_nan() {
            return Near::exact(f64::NAN);
        }
        Near::f32(self.x + o.x, self.hard + o.hard, self.sd + o.sd, 0.0)
    }

    pub fn mul(self, o: Near) -> Near {
        let x = self.x * o.x;
        if self.is_nan() || o.is_nan() {
            return Near::exact(f64::NAN);
        }
        let sure = |n: Near| n.x.abs() > n.bound() || n.is_exact();
        if !x.is_finite() && sure(self) && sure(o) {
            return Near::exact(x);
        }
        let (a, b) = (self.x.abs(), o.x.abs());
        let hard = a * o.hard + b * self.hard + self.bound() * o.bound();
        Near::f32(x, hard, a * o.sd + b * self.sd, 0.0)
    }

    /// The product of two exact numbers.
    pub fn product(a: f64, b: f64) -> Near {
        let x = a * b;
        // Far from where f32 ends.
        match x.abs() < 1e30 {
            true => Near { x, hard: U32 * x.abs() + TINY, sd: 0.0 },
            false => Near::exact(a).mul(Near::exact(b)),
        }
    }

    /// Times a constant, which the kernel has in f32.
    pub fn scale(self, factor: f64) -> Near {
        let (size, off) = (factor.abs(), (factor - f64::from(factor as f32)).abs());
        // 0 times what is infinite in f32 is no number.
        let own = if off == 0.0 { 0.0 } else { self.x.abs() * off };
        Near::f32(self.x * factor, size * self.hard, size * self.sd, own)
    }

    /// A curve of it.
    pub fn curve(self, curve: Curve) -> Near {
        let y = math::curve(curve, self.x);
        match math::curve_units(curve, self.x) {
            // It is what it is made of, or nothing.
            None => Near { x: y, ..self },
            Some(off) => self.curved(y, off * U32 + self.x.abs() * SMALLEST),
        }
    }

    /// This gradient times the slope of a curve at `at`.
    pub fn slope(self, curve: Curve, at: Near) -> Near {
        if at.is_nan() {
            return if curve == Curve::Relu { self } else { Near::exact(f64::NAN) };
        }
        let slope = math::slope(curve, at.x);
        if curve == Curve::Relu {
            return match () {
                () if !at.is_exact() && at.x.abs() <= at.bound() => {
                    self.mul(Near { x: 0.5, hard: 0.5, sd: 0.0 })
                }
                () if slope == 0.0 => Near::exact(0.0),
                () => self,
            };
        }
        // Slopes change by less than this for each unit of x. An exponential is off by some units for each unit of its
        // argument, and where that is large it is small itself.
        self.mul(Near::f32(slope, STEEPEST * at.hard, STEEPEST * at.sd, 32.0 * U32))
    }

    fn curved(self, y: f64, own: f64) -> Near {
        // Of what is infinite both curves are the limit, or no number.
        if !self.x.is_finite() && self.bound() == 0.0 {
            return Near::exact(y);
        }
        Near::f32(y, STEEPEST * self.hard, STEEPEST * self.sd, own)
    }
}

/// The sum of the ranks' contributions to one element, each of which is stored with this type. Rings store partial
/// sums, too: of consecutive ranks, or of those that are left.
pub(crate) fn over_ranks(contributions: &[Near], dtype: DType) -> Near {
    let [first, ref rest @ ..] = *contributions else { return Near::exact(0.0) };
    if rest.is_empty() {
        return first;
    }
    let mut sum = Near::exact(0.0);
    let (mut low, mut high, mut size, mut variance) = (0.0f64, 0.0f64, 0.0, 0.0);
    for contribution in contributions {
        let s = contribution.stored(dtype);
        sum.x += s.x;
        sum.hard += s.hard;
        variance += s.sd * s.sd;
        (low, high, size) = (low.min(sum.x), high.max(sum.x), size + s.x.abs());
    }
    sum.sd = variance.sqrt();
    // Whatever the others are.
    if contributions.iter().any(|s| s.is_nan()) {
        return Near::exact(f64::NAN);
    }
    let n = contributions.len() as f64;
    // Every sum of consecutive ranks is a difference of two sums from the first one on, or the total less that.
    let largest = high - low + sum.x.abs();
    let hops = (n - 2.0) * half_ulp(dtype, largest + sum.bound());
    let f32s = n * U32 * size + TINY;
    let all = Near { hard: sum.hard + hops + f32s, ..sum };
    // A partial sum may be beyond the range where the total is not.
    match size.is_finite() && size + all.bound() >= end(dtype) {
        true => Near::unknown(all.x),
        false => all.within(DType::F32),
    }
}

/// The least number that rounds to infinity, or to the largest one as all beyond it do.
pub(crate) fn end(dtype: DType) -> f64 {
    let most = 2f64.powi(dtype.format().bits as i32 - 1);
    dtype.format().float.map_or(most, mk_dtype::Float::end)
}

/// Half the distance between values of a type beside `x`, which is not negative.
pub(crate) fn half_ulp(dtype: DType, x: f64) -> f64 {
    let Some(float) = dtype.format().float else { return 0.5 };
    let (digits, least) = (float.mantissa as i32 + 1, float.least_exponent());
    if !x.is_finite() {
        return f64::INFINITY;
    }
    // The exponent as the number has it; subnormal f64 are below every type's least one.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(least) - digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_units_in_the_last_place() {
        for (dtype, x, want) in [
            (DType::Bf16, 1.0, 2f64.powi(-8)),
            (DType::Bf16, 1.99, 2f64.powi(-8)),
            (DType::Bf16, 0.0, 2f64.powi(-134)),
            (DType::F16, 1024.0, 0.5),
            (DType::F16, 1e-9, 2f64.powi(-25)),
            (DType::F32, 1.0, 2f64.powi(-24)),
            (DType::E4m3, 448.0, 16.0),
            (DType::E5m2, 0.0, 2f64.powi(-17)),
        ] {
            assert_eq!(half_ulp(dtype, x), want, "{dtype} {x}");
        }
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_integer()) {
            let (end, below) = (end(dtype), end(dtype) * (1.0 - 1e-9));
            let beyond = if dtype == DType::E4m3 { 448.0 } else { f64::INFINITY };
            assert_eq!([math::round(dtype, end), math::round(dtype, 1e39)], [beyond; 2], "{dtype}");
            assert!(math::round(dtype, below).is_finite(), "{dtype}");
        }
    }

    #[test]
    fn ends_of_ranges() {
        let f = |x: f64| Near { x, hard: 1e30, sd: 0.0 }.within(DType::Bf16);
        assert_eq!(f(5e38), Near::exact(f64::INFINITY));
        assert_eq!(f(-5e38), Near::exact(f64::NEG_INFINITY));
        assert_eq!(f(1.0).hard, 1e30);
        assert!(f(end(DType::Bf16)).hard.is_infinite());
        let f = |x: f64| Near::exact(x).stored(DType::E4m3);
        assert_eq!([f(500.0), f(f64::NEG_INFINITY)], [448.0, -448.0].map(Near::exact));
        assert!(f(f64::NAN).is_nan() && f(460.0).bound() == 16.0);
        let inf = Near::exact(f64::INFINITY);
        assert_eq!(inf.mul(Near::exact(-2.0)), Near::exact(f64::NEG_INFINITY));
        assert!(inf.mul(Near::exact(0.0)).x.is_nan() && inf.mul(Near::exact(0.0)).is_exact());
        assert!(inf.mul(Near { x: 0.5, hard: 1.0, sd: 0.0 }).bound().is_infinite());
        assert_eq!(inf.add(Near { x: 0.5, hard: 1.0, sd: 0.0 }), inf);
        assert_eq!(inf.curve(Curve::Gelu), inf);
        assert!(inf.scale(0.0).x.is_nan());
        assert_eq!(Near::exact(4.0).scale(1e38), Near::exact(f64::INFINITY));
    }

    #[test]
    fn what_is_exact_stays_so() {
        let x = Near::exact(1.5);
        assert_eq!(
            (x.curve(Curve::Relu), x.stored(DType::Bf16), over_ranks(&[x], DType::Bf16)),
            (x, x, x)
        );
        assert_eq!(Near::exact(1.0 + 2f64.powi(-9)).cast(DType::Bf16), Near::exact(1.0));
        assert!(!x.add(x).is_exact() && !over_ranks(&[x, x], DType::Bf16).is_exact());
    }
}
