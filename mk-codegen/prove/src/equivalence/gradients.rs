//! Gradients of attention, one block of the other side after the other: as the executor has them
//! (`sim/math/gradients.rs`).
//!
//! Scores and logarithms are numbers of the first field, weights and all that is made of them of the second.

use super::{algebra::Algebra, attend::Scored, tile::Tile};
use mk_plan::{Operand, STATS};
use std::ops::Range;

/// Sums so far, `[rows, d]` each, without the factor on scores.
#[derive(Clone)]
pub(super) enum Gradients<E> {
    Queries(Tile<E>),
    Keys { keys: Tile<E>, values: Tile<E> },
}

/// What of the queries meets what of the keys.
#[derive(Clone, Copy)]
pub(super) struct Block<'t, E> {
    pub q: &'t Tile<E>,
    pub d_o: &'t Tile<E>,
    pub stats: &'t Tile<E>,
    pub k: &'t Tile<E>,
    pub v: &'t Tile<E>,
}

impl<E> Block<'_, E> {
    /// Whether all of it fits.
    pub fn fits(&self) -> bool {
        let Block { q, d_o, stats, k, v } = self;
        let rows = q.rows == d_o.rows && q.rows == stats.rows;
        let columns = q.cols == k.cols && d_o.cols == v.cols && stats.cols == STATS as usize;
        rows && columns && k.rows == v.rows
    }
}

impl<E: Copy + PartialEq> Gradients<E> {
    pub fn queries<A: Algebra<Elem = E>>(rows: usize, cols: usize) -> Gradients<E> {
        Gradients::Queries(Tile { rows, cols, data: vec![A::ZERO; rows * cols] })
    }

    pub fn keys<A: Algebra<Elem = E>>(rows: usize, cols: usize, wide: usize) -> Gradients<E> {
        let zeros = |cols: usize| Tile { rows, cols, data: vec![A::ZERO; rows * cols] };
        Gradients::Keys { keys: zeros(cols), values: zeros(wide) }
    }

    /// Adds a block's share; `seen(i)` are the keys that query `i` sees.
    pub fn step<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        block: Block<'_, E>,
        scores: Scored,
        seen: impl Fn(usize) -> Range<usize>,
    ) {
        let Block { q, d_o, stats, k, v } = block;
        for i in 0..q.rows {
            let [lse, delta] = [0, 1].map(|n| stats.row(i)[n]);
            for j in seen(i) {
                let score = algebra.dot(q.row(i), k.row(j));
                let [scaled, score] = scores.score(algebra, score);
                let weight = algebra.exp_of_difference(score, lse);
                let worth = algebra.dot(d_o.row(i), v.row(j));
                let above = algebra.difference(worth, delta);
                let slope = algebra.mul(weight, above);
                let slope = scores.before_cap(algebra, slope, scaled);
                match self {
                    Gradients::Queries(sum) => add(algebra, sum, i, slope, k.row(j)),
                    Gradients::Keys { keys, values } => {
                        add(algebra, keys, j, slope, q.row(i));
                        add(algebra, values, j, weight, d_o.row(i));
                    }
                }
            }
        }
    }

    /// What is stored as an operand.
    pub fn made<A: Algebra<Elem = E>>(&self, algebra: &mut A, of: Operand, scale: f32) -> Vec<E> {
        let (sum, scaled) = match self {
            Gradients::Queries(sum) => (sum, true),
            Gradients::Keys { keys, .. } if of == Operand::Dk => (keys, true),
            Gradients::Keys { values, .. } => (values, false),
        };
        let mut each = |x: &E| {
            let x = if scaled { algebra.scale(*x, scale) } else { *x };
            algebra.settled(x)
        };
        sum.data.iter().map(&mut each).collect()
    }
}

fn add<A: Algebra>(
    algebra: &mut A,
    sum: &mut Tile<A::Elem>,
    row: usize,
    factor: A::Elem,
    x: &[A::Elem],
) {
    let cols = sum.cols;
    for (sum, x) in sum.data[row * cols..(row + 1) * cols].iter_mut().zip(x) {
        algebra.add_mul(sum, factor, *x);
    }
}

/// The gradient of a sink, of the statistics of queries of its head.
pub(super) fn of_sink<'t, A: Algebra>(
    algebra: &mut A,
    sink: A::Elem,
    stats: impl Iterator<Item = &'t [A::Elem]>,
) -> A::Elem
where
    A::Elem: 't,
{
    let mut sum = A::ZERO;
    for row in stats {
        if let [lse, delta, ..] = *row {
            let weight = algebra.exp_of_difference(sink, lse);
            algebra.add_mul(&mut sum, weight, delta);
        }
    }
    algebra.scale(sum, -1.0)
}

/// `[lse, sum of o * do, 0, 0]` of each query.
pub(super) fn statistics<A: Algebra>(
    algebra: &mut A,
    o: &Tile<A::Elem>,
    d_o: &Tile<A::Elem>,
    lse: &[A::Elem],
) -> Vec<A::Elem> {
    let mut data = Vec::with_capacity(lse.len() * STATS as usize);
    for (i, lse) in lse.iter().enumerate() {
        let delta = algebra.dot(o.row(i), d_o.row(i));
        data.extend([*lse, delta, A::ZERO, A::ZERO]);
    }
    data
}
