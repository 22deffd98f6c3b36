//! Two prime fields, and elements that are a number of each: what stands for a real number.
//!
//! `q = 2 p + 1`, so that the squares of the second field are a group of order `p`: the exponential of a number of the
//! first field is a power of a square in the second, and `exp(a + b) = exp(a) exp(b)` holds exactly. Numbers are kept
//! in Montgomery's form.

/// Order of the first field, a prime.
pub(super) const P: u64 = 0x1fff_ffff_ffff_eb5d;
/// Order of the second, a prime.
pub(super) const Q: u64 = 2 * P + 1;

/// Arithmetic modulo an odd number below 2^63.
#[derive(Clone, Copy)]
struct Modulus {
    n: u64,
    /// `-1 / n` modulo 2^64.
    negated: u64,
    /// 2^128 modulo `n`.
    square: u64,
}

/// Powers of 4, a square, in the second field: of each byte of an exponent.
static POWERS: [[u64; 256]; 8] = powers(SECOND.form(4));
const FIRST: Modulus = Modulus::new(P);
const SECOND: Modulus = Modulus::new(Q);

const fn powers(base: u64) -> [[u64; 256]; 8] {
    let (mut out, mut base, mut byte) = ([[SECOND.form(1); 256]; 8], base, 0);
    while byte < 8 {
        let mut digit = 1;
        while digit < 256 {
            out[byte][digit] = SECOND.mul(out[byte][digit - 1], base);
            digit += 1;
        }
        base = SECOND.mul(out[byte][255], base);
        byte += 1;
    }
    out
}

impl Modulus {
    const fn new(n: u64) -> Modulus {
        // Each step doubles the number of right bits.
        let (mut inverse, mut i) = (n, 0);
        while i < 6 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(n.wrapping_mul(inverse)));
            i += 1;
        }
        let r = (1u128 << 64) % n as u128;
        Modulus { n, negated: inverse.wrapping_neg(), square: (r * r % n as u128) as u64 }
    }

    #[inline(always)]
    const fn add(self, a: u64, b: u64) -> u64 {
        let sum = a + b;
        if sum >= self.n { sum - self.n } else { sum }
    }

    #[inline(always)]
    const fn negate(self, a: u64) -> u64 {
        if a == 0 { 0 } else { self.n - a }
    }

    /// `a b / 2^64`.
    #[inline(always)]
    const fn mul(self, a: u64, b: u64) -> u64 {
        self.reduced(a as u128 * b as u128)
    }

    /// Adds `a b` to a sum of products that is below `n 2^64`, and stays so.
    #[inline(always)]
    const fn add_product(self, sum: u128, a: u64, b: u64) -> u128 {
        let more = sum + a as u128 * b as u128;
        let limit = (self.n as u128) << 64;
        if more >= limit { more - limit } else { more }
    }

    /// A sum of products as [`Modulus::mul`] gives one.
    #[inline(always)]
    const fn reduced(self, sum: u128) -> u64 {
        let m = (sum as u64).wrapping_mul(self.negated);
        let high = ((sum + m as u128 * self.n as u128) >> 64) as u64;
        if high >= self.n { high - self.n } else { high }
    }

    /// The form of an integer.
    const fn form(self, x: u64) -> u64 {
        self.mul(x % self.n, self.square)
    }

    /// The integer of a form.
    const fn integer(self, a: u64) -> u64 {
        self.mul(a, 1)
    }

    fn power(self, mut base: u64, mut exponent: u64) -> u64 {
        let mut out = self.form(1);
        while exponent > 0 {
            if exponent & 1 == 1 {
                out = self.mul(out, base);
            }
            base = self.mul(base, base);
            exponent >>= 1;
        }
        out
    }

    /// `1 / a`; of 0 it is 0.
    fn inverse(self, a: u64) -> u64 {
        self.power(a, self.n - 2)
    }

    /// A finite f32, exactly: it is an integer times a power of two.
    fn real(self, x: f32) -> u64 {
        let bits = x.to_bits();
        let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, u64::from(bits & 0x7f_ffff));
        let (mantissa, exponent) = match exponent {
            0 => (fraction, -149),
            e => (fraction | 0x80_0000, e - 150),
        };
        let two = self.power(self.form(2), u64::from(exponent.unsigned_abs()));
        let two = if exponent < 0 { self.inverse(two) } else { two };
        let size = self.mul(self.form(mantissa), two);
        if bits >> 31 == 1 { self.negate(size) } else { size }
    }
}

/// A number of each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    first: u64,
    second: u64,
}

/// A sum of products that is not reduced yet: one reduction in the place of one for each product.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Products {
    first: u128,
    second: u128,
}

impl Products {
    /// A number, to which products are added.
    pub fn of(x: Pair) -> Products {
        Products { first: u128::from(x.first) << 64, second: u128::from(x.second) << 64 }
    }

    #[inline(always)]
    pub fn add(&mut self, a: Pair, b: Pair) {
        self.first = FIRST.add_product(self.first, a.first, b.first);
        self.second = SECOND.add_product(self.second, a.second, b.second);
    }

    pub fn sum(self) -> Pair {
        Pair { first: FIRST.reduced(self.first), second: SECOND.reduced(self.second) }
    }
}

impl Pair {
    pub const ZERO: Pair = Pair { first: 0, second: 0 };

    #[inline(always)]
    pub fn add(self, other: Pair) -> Pair {
        Pair {
            first: FIRST.add(self.first, other.first),
            second: SECOND.add(self.second, other.second),
        }
    }

    #[inline(always)]
    pub fn mul(self, other: Pair) -> Pair {
        Pair {
            first: FIRST.mul(self.first, other.first),
            second: SECOND.mul(self.second, other.second),
        }
    }

    pub fn negate(self) -> Pair {
        Pair { first: FIRST.negate(self.first), second: SECOND.negate(self.second) }
    }

    /// A real number that is finite; of others, a number like any.
    pub fn real(x: f32) -> Pair {
        if !x.is_finite() {
            return random(&[0x1f32, u64::from(x.to_bits())]);
        }
        Pair { first: FIRST.real(x), second: SECOND.real(x) }
    }

    /// `exp`, from the first field into the second, where it takes sums to products. Nothing is in the first.
    pub fn exp(self) -> Pair {
        let digits = FIRST.integer(self.first).to_le_bytes();
        let factors = digits.iter().zip(&POWERS).map(|(digit, of)| of[usize::from(*digit)]);
        let product = factors.reduce(|product, x| SECOND.mul(product, x));
        Pair { first: 0, second: product.unwrap_or(POWERS[0][0]) }
    }

    /// `1 / x` in the second field; of 0 it is 0.
    pub fn recip(self) -> Pair {
        Pair { first: 0, second: SECOND.inverse(self.second) }
    }

    /// A number of the second field with one of the first that follows from it, by a random function.
    pub fn settled(self, key: u64) -> Pair {
        Pair { first: random(&[key, self.second]).first, second: self.second }
    }

    /// The value of a random function.
    pub fn keyed(self, seed: u64, key: u64) -> Pair {
        random(&[seed, key, self.first, self.second])
    }
}

/// Two numbers that follow from words as if by chance.
pub(super) fn random(words: &[u64]) -> Pair {
    let mixed = |start: u64| words.iter().fold(start, |h, w| mix(h ^ mix(*w ^ start)));
    Pair { first: mixed(0x243f_6a88_85a3_08d3) % P, second: mixed(0x1319_8a2e_0370_7344) % Q }
}

/// One round of a hash; a bijection.
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miller and Rabin's test, with bases that decide every number of 64 bits.
    fn is_prime(n: u64) -> bool {
        let mul = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(n)) as u64;
        let power = |mut a: u64, mut e: u64| {
            let mut out = 1;
            while e > 0 {
                if e & 1 == 1 {
                    out = mul(out, a);
                }
                a = mul(a, a);
                e >>= 1;
            }
            out
        };
        let twos = (n - 1).trailing_zeros();
        [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37].into_iter().all(|base| {
            let mut x = power(base, (n - 1) >> twos);
            x == 1
                || (0..twos).any(|_| {
                    let found = x == n - 1;
                    x = mul(x, x);
                    found
                })
        })
    }

    #[test]
    fn both_orders_are_primes() {
        assert!(is_prime(P) && is_prime(Q));
        assert!(!is_prime(P - 2) && !is_prime(561), "the test itself");
    }

    #[test]
    fn arithmetic_is_that_of_integers() {
        for m in [FIRST, SECOND] {
            let samples = [0, 1, 2, 3, m.n - 1, m.n / 2, 0x1234_5678_9abc_def0 % m.n];
            for a in samples {
                assert_eq!(m.integer(m.form(a)), a);
                for b in samples {
                    let (fa, fb) = (m.form(a), m.form(b));
                    let want = (u128::from(a) * u128::from(b) % u128::from(m.n)) as u64;
                    assert_eq!(m.integer(m.mul(fa, fb)), want);
                    let want = ((u128::from(a) + u128::from(b)) % u128::from(m.n)) as u64;
                    assert_eq!(m.integer(m.add(fa, fb)), want);
                }
                if a > 0 {
                    assert_eq!(m.mul(m.form(a), m.inverse(m.form(a))), m.form(1));
                }
            }
        }
    }

    /// Also where every product is as large as it can be.
    #[test]
    fn products_are_added_as_one_by_one() {
        let most = Pair { first: P - 1, second: Q - 1 };
        for i in 0..200u64 {
            let of = |j: u64| if i % 3 == 0 { most } else { random(&[i, j]) };
            let (mut sum, mut sums) = (of(0), Products::of(of(0)));
            for j in 1..=i {
                sum = sum.add(of(j).mul(of(j + 1)));
                sums.add(of(j), of(j + 1));
            }
            assert_eq!(sums.sum(), sum, "{i} products");
        }
    }

    #[test]
    fn reals_keep_their_algebra() {
        let real = Pair::real;
        assert_eq!(real(0.5).mul(real(0.5)), real(0.25));
        assert_eq!(real(-1.5).add(real(1.5)), Pair::ZERO);
        assert_eq!(real(3.0).mul(real(1.0)), real(3.0));
        assert_eq!(real(1e-45).mul(real(2.0)), real(3e-45));
        assert_eq!(real(0.0), Pair::ZERO);
    }

    #[test]
    fn the_exponential_takes_sums_to_products() {
        let (a, b) = (random(&[1]), random(&[2]));
        assert_eq!(a.add(b).exp(), a.exp().mul(b.exp()));
        assert_eq!(a.exp().mul(a.exp().recip()), Pair { first: 0, second: SECOND.form(1) });
        assert_ne!(a.exp(), b.exp());
        let power = SECOND.power(SECOND.form(4), FIRST.integer(a.first));
        assert_eq!(a.exp().second, power);
    }
}
