//! Attention, one block of keys and values after the other.
//!
//! Scores are numbers of the first field; their exponentials, weights, sums and the results are of the second. The
//! running maximum is whatever comes, another at each step, as any number gives the same quotient: a plan that forgets
//! to scale what it carries, or carries it from elsewhere, is wrong with every maximum but one.

use super::{
    algebra::{Algebra, Function},
    tile::Tile,
};
use mk_plan::Mask;
use std::ops::Range;

/// Which scores there are, and what becomes of them.
#[derive(Clone, Copy)]
pub(super) struct Scored {
    pub scale: f32,
    pub mask: Mask,
    pub cap: Option<u32>,
}

impl Scored {
    pub fn of(scale: u32, mask: Mask, cap: Option<u32>) -> Scored {
        Scored { scale: f32::from_bits(scale), mask, cap }
    }

    /// What a product of a query and a key becomes, before it is capped and behind it.
    pub fn score<A: Algebra>(&self, algebra: &mut A, product: A::Elem) -> [A::Elem; 2] {
        let scaled = algebra.scale(product, self.scale);
        let capped = self.cap.map(|cap| algebra.apply(Function::Cap(cap), scaled));
        [scaled, capped.unwrap_or(scaled)]
    }

    /// A gradient of a capped score as one of the score before.
    pub fn before_cap<A: Algebra>(
        &self,
        algebra: &mut A,
        gradient: A::Elem,
        scaled: A::Elem,
    ) -> A::Elem {
        let Some(cap) = self.cap else { return gradient };
        let slope = algebra.apply(Function::CapSlope(cap), scaled);
        algebra.mul(gradient, slope)
    }
}

/// State between steps: unnormalised results `[rows, d]`, and of each row a maximum and a sum, `[rows, 2]`.
#[derive(Clone)]
pub(super) struct Attention<E> {
    pub acc: Tile<E>,
    pub stat: Tile<E>,
}

impl<E: Copy + PartialEq> Attention<E> {
    /// Before the first step: nothing is summed, and any maximum will do.
    pub fn new<A: Algebra<Elem = E>>(algebra: &mut A, rows: usize, d: usize) -> Attention<E> {
        let stat = (0..rows).flat_map(|_| [algebra.any(), A::ZERO]).collect();
        Attention {
            acc: Tile { rows, cols: d, data: vec![A::ZERO; rows * d] },
            stat: Tile { rows, cols: 2, data: stat },
        }
    }

    /// A block of keys `[n, dk]` and values `[n, d]`, with what becomes of scores. `seen(i)` are the keys that
    /// query `i` sees: of others the weight is 0.
    pub fn step<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        [q, k, v]: [&Tile<E>; 3],
        scores: Scored,
        seen: impl Fn(usize) -> Range<usize>,
    ) {
        for i in 0..q.rows {
            if algebra.spent() {
                break;
            }
            let (old, new) = (self.stat.data[2 * i], algebra.any());
            let shrink = algebra.exp_of_difference(old, new);
            let mut sum = algebra.mul(self.stat.data[2 * i + 1], shrink);
            let acc = &mut self.acc.data[i * v.cols..(i + 1) * v.cols];
            for x in acc.iter_mut() {
                *x = algebra.mul(*x, shrink);
            }
            for j in seen(i) {
                let mut score = A::ZERO;
                for (x, y) in q.row(i).iter().zip(k.row(j)) {
                    algebra.add_mul(&mut score, *x, *y);
                }
                let [_, score] = scores.score(algebra, score);
                let weight = algebra.exp_of_difference(score, new);
                sum = algebra.add(sum, weight);
                for (x, y) in acc.iter_mut().zip(v.row(j)) {
                    algebra.add_mul(x, weight, *y);
                }
            }
            (self.stat.data[2 * i], self.stat.data[2 * i + 1]) = (new, sum);
        }
    }

    /// Adds what another part of the keys gave.
    pub fn merge<A: Algebra<Elem = E>>(&mut self, algebra: &mut A, part: &Attention<E>) {
        let cols = self.acc.cols;
        for i in 0..self.acc.rows {
            let [old, other] = [&self.stat, &part.stat].map(|s| s.data[2 * i]);
            let new = algebra.any();
            let own = algebra.exp_of_difference(old, new);
            let theirs = algebra.exp_of_difference(other, new);
            let mut both = |x: E, y: E| {
                let (x, y) = (algebra.mul(x, own), algebra.mul(y, theirs));
                algebra.add(x, y)
            };
            for at in i * cols..(i + 1) * cols {
                self.acc.data[at] = both(self.acc.data[at], part.acc.data[at]);
            }
            let sum = both(self.stat.data[2 * i + 1], part.stat.data[2 * i + 1]);
            (self.stat.data[2 * i], self.stat.data[2 * i + 1]) = (new, sum);
        }
    }

    /// The sums with the exponential of a sink, too.
    pub fn sink<A: Algebra<Elem = E>>(&mut self, algebra: &mut A, sink: E) {
        for stat in self.stat.data.chunks_mut(2) {
            let weight = algebra.exp_of_difference(sink, stat[0]);
            stat[1] = algebra.add(stat[1], weight);
        }
    }

    /// The result, `[rows, d]`.
    pub fn output<A: Algebra<Elem = E>>(&self, algebra: &mut A) -> Vec<E> {
        let cols = self.acc.cols.max(1);
        let rows = self.acc.data.chunks(cols).zip(self.stat.data.chunks(2));
        rows.flat_map(|(row, stat)| {
            row.iter().map(|x| algebra.quotient(*x, stat[1])).collect::<Vec<_>>()
        })
        .collect()
    }

    /// The logarithm of each row's sum of exponentials.
    pub fn logarithms<A: Algebra<Elem = E>>(&self, algebra: &mut A) -> Vec<E> {
        self.stat.data.chunks(2).map(|stat| algebra.logarithm(stat[1], stat[0])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equivalence::{
        algebra::{Block, Numbers},
        number::Pair,
    };

    fn tile(numbers: &mut Numbers, tensor: usize, rows: usize, cols: usize) -> Tile<Pair> {
        let block = Block { tensor, group: 0, rank: None, cells: vec![] };
        let data = (0..rows * cols).map(|i| numbers.input(&block, &[i])).collect();
        Tile { rows, cols, data }
    }

    fn rows(t: &Tile<Pair>, from: usize, to: usize) -> Tile<Pair> {
        let data = t.data[from * t.cols..to * t.cols].to_vec();
        Tile { rows: to - from, cols: t.cols, data }
    }

    /// Results and logarithms of keys and values in the blocks that begin at `cuts`.
    fn attended(cuts: &[usize], causal: bool, forget: bool) -> (Vec<Pair>, Vec<Pair>) {
        let mut numbers = Numbers::new(7);
        let (q, k, v) =
            (tile(&mut numbers, 0, 3, 4), tile(&mut numbers, 1, 6, 4), tile(&mut numbers, 2, 6, 2));
        let mut state = Attention::new(&mut numbers, 3, 2);
        for w in cuts.windows(2) {
            let (k, v) = (rows(&k, w[0], w[1]), rows(&v, w[0], w[1]));
            let before = state.acc.clone();
            let seen = |i: usize| match causal {
                true => 0..(2 * i + 2).saturating_sub(w[0]).min(k.rows),
                false => 0..k.rows,
            };
            let scores = Scored { scale: 0.5, mask: Mask::Full, cap: None };
            state.step(&mut numbers, [&q, &k, &v], scores, seen);
            if forget {
                // Another maximum for the sums of the step before.
                state.acc = before;
            }
        }
        (state.output(&mut numbers), state.logarithms(&mut numbers))
    }

    #[test]
    fn blocks_and_maxima_do_not_matter() {
        for causal in [false, true] {
            let whole = attended(&[0, 6], causal, false);
            assert_eq!(whole, attended(&[0, 2, 3, 6], causal, false));
            assert_ne!(whole, attended(&[0, 5], causal, false));
            assert_ne!(whole.0, attended(&[0, 2, 3, 6], causal, true).0);
        }
        assert_ne!(attended(&[0, 6], false, false), attended(&[0, 6], true, false));
    }
}
