//! Binary floating point of any width up to 32 bits.

/// What the bits of a float mean: a sign, a biased exponent, a mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Bits of the mantissa, without the leading one.
    pub mantissa: u32,
    /// IEEE 754: the largest exponent means infinity and NaN. Otherwise (OCP "fn") it has numbers, too, NaN alone has
    /// all bits set, and a cast saturates: infinity and what is too large become the largest number, as in torch
    /// (from 2.12 on) and by `cvt.satfinite`.
    pub infinite: bool,
}

impl Float {
    /// Exponent of the least normal number.
    pub const fn least_exponent(self) -> i32 {
        2 - (1 << (self.exponent - 1))
    }

    /// Exponent of the largest number.
    const fn largest_exponent(self) -> i32 {
        (1 << (self.exponent - 1)) - self.infinite as i32
    }

    /// The bits behind the sign of the first code that is no number.
    const fn end_code(self) -> u32 {
        let all = (1 << (self.exponent + self.mantissa)) - 1;
        if self.infinite { all >> self.mantissa << self.mantissa } else { all }
    }

    /// Where the range ends: the largest number and half of its last place.
    pub fn end(self) -> f64 {
        let digits = 2f64.powi(self.mantissa as i32 + 2) - if self.infinite { 1.0 } else { 3.0 };
        digits * 2f64.powi(self.largest_exponent() - self.mantissa as i32 - 1)
    }

    /// The largest number.
    pub const fn largest(self) -> f32 {
        self.decode(self.end_code() - 1)
    }

    /// What numbers become from there on.
    pub const fn beyond(self) -> f32 {
        self.decode(self.encode(f32::INFINITY))
    }

    /// The code of the nearest number, ties to even. Every NaN becomes the one with all bits set, sign apart.
    #[inline]
    pub const fn encode(self, x: f32) -> u32 {
        let (bits, m) = (x.to_bits(), self.mantissa);
        let (abs, sign) = (bits & 0x7fff_ffff, (bits >> 31) << (self.exponent + m));
        if abs > 0x7f80_0000 {
            return sign | ((1 << (self.exponent + m)) - 1);
        }
        let (field, least) = ((abs >> 23) as i32, self.least_exponent());
        let normal = field != 0;
        let exponent = if normal { field - 127 } else { -126 };
        let digits = abs & 0x7f_ffff | (normal as u32) << 23;
        // Places that the format does not have; with all digits gone, and one more, the result is zero.
        let below = if exponent < least { (least - exponent) as u32 } else { 0 };
        let places = if below > 25 { 26 } else { 23 - m + below };
        let places = if places > 26 { 26 } else { places };
        let kept = match places {
            0 => digits,
            n => (digits + (1 << (n - 1)) - 1 + (digits >> n & 1)) >> n,
        };
        // The leading one, and what rounds up to the next power of two, counts the exponent up.
        let above = if exponent > least { (exponent - least) as u32 } else { 0 };
        let code = (above << m) + kept;
        let most = self.end_code() - !self.infinite as u32;
        sign | if code < most { code } else { most }
    }

    /// The number that a code means, exactly.
    #[inline]
    pub const fn decode(self, code: u32) -> f32 {
        let (m, all) = (self.mantissa, (1 << (self.exponent + self.mantissa)) - 1);
        let (abs, sign) = (code & all, (code >> (self.exponent + m) & 1) << 31);
        if abs >= self.end_code() {
            let infinity = self.infinite && abs == self.end_code();
            return f32::from_bits(sign | if infinity { 0x7f80_0000 } else { 0x7fc0_0000 });
        }
        let (field, digits) = (abs >> m, abs & ((1 << m) - 1));
        let (digits, field) = if field == 0 { (digits, 1) } else { (digits | 1 << m, field) };
        // In f64, of which every subnormal is a normal number.
        let place = field as i32 - 1 + self.least_exponent() - m as i32;
        let x = (digits as f64 * f64::from_bits(((place + 1023) as u64) << 52)) as f32;
        f32::from_bits(x.to_bits() | sign)
    }
}
