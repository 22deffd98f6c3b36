//! Gradients of attention in f64, with what right results may be off by.
//!
//! A kernel has scores, weights and gradients of scores in f32, rounds weights and gradients of scores to the type of
//! its queries before they meet other operands, and has sums in f32. Each of them is rounded by itself, so that what
//! that costs adds up as independent errors do.

use super::{
    attention::{Attention, capped, seen},
    near::{LAMBDA, Near, U32, half_ulp},
    value::Matrix,
};
use mk_abi::DType;
use std::ops::Range;

/// The attention, of which at most so many queries, and keys, of a head are evaluated; and the queries that count.
pub(crate) struct Gradients<'d> {
    pub of: Attention<'d>,
    pub queries: Vec<Range<usize>>,
}

/// Operands, `[S, heads, D]` of each batch; statistics `[H, S, 4]`.
pub(crate) struct Operands<'m> {
    pub q: &'m Matrix,
    pub d_o: &'m Matrix,
    pub stats: &'m Matrix,
    pub k: &'m Matrix,
    pub v: &'m Matrix,
}

/// A sum of many products, with the variance of its roundings and the sum of the terms' sizes.
struct Totals {
    x: Vec<f64>,
    variance: Vec<f64>,
    size: Vec<f64>,
    lost: Vec<f64>,
}

impl Totals {
    fn new(n: usize) -> Totals {
        let zeros = || vec![0.0; n];
        Totals { x: zeros(), variance: zeros(), size: zeros(), lost: zeros() }
    }

    /// Adds `factor`, of this variance, times each element; `lost` is what its rounding near 0 may cost.
    fn add(&mut self, at: usize, (factor, variance): (f64, f64), lost: f64, y: &[f64]) {
        for (c, y) in y.iter().enumerate() {
            self.x[at + c] += factor * y;
            self.variance[at + c] += variance * y * y;
            self.size[at + c] += (factor * y).abs();
            self.lost[at + c] += lost * y.abs();
        }
    }

    /// The sums of so many terms each, times a factor.
    fn finish(self, terms: usize, factor: f64) -> impl Iterator<Item = Near> {
        let sums = U32 * (8.0 + 2.0 * (terms as f64).sqrt());
        let all = self.x.into_iter().zip(self.variance).zip(self.size.into_iter().zip(self.lost));
        all.map(move |((x, variance), (size, lost))| {
            let hard = (sums * size + lost + 2.0 * U32 * x.abs()) * factor.abs();
            let sd = variance.sqrt() * factor.abs();
            Near { x: x * factor, hard, sd }.within(DType::F32)
        })
    }
}

impl Gradients<'_> {
    /// Gradients of queries, of keys, and of values, of each batch that the operands have.
    pub fn run(&self, operands: &Operands<'_>) -> [Matrix; 3] {
        let Attention { sequence: both, heads: [heads, groups], depth, scores, scale, .. } =
            self.of;
        let ([sequence, keys], [depth, values]) = (both, depth);
        let (wide, narrow) = (sequence * heads * depth, keys * groups * depth);
        let of_values = keys * groups * values;
        let of_stats = heads * sequence * 4;
        let batches = operands.q.data.len().checked_div(wide).unwrap_or(0);
        let shared = (heads / groups).max(1);
        let [mut dq, mut dk, mut dv] = [wide, narrow, of_values].map(|n| Totals::new(batches * n));
        let rounding = half_ulp(self.of.dtype, 1.0);
        let least = half_ulp(self.of.dtype, 0.0);
        let dot = |x: &[f64], y: &[f64]| {
            let n = x.len() as f64;
            let accumulation = U32 * (4.0 * n.sqrt() + n / 4.0 + 8.0) * n.sqrt() / LAMBDA;
            let terms = || x.iter().zip(y).map(|(x, y)| x * y);
            (terms().sum::<f64>(), accumulation * terms().map(|t| t * t).sum::<f64>().sqrt())
        };
        let [asked, keys_asked] = both.map(|n| self.asked(n));
        let of_log = |argument: f64, lse: f64| match scores.softcap {
            Some(cap) => 16.0 * U32 * (argument.abs() + lse.abs() + cap) / cap,
            None => 0.0,
        };
        for (b, h) in (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            for i in self.queries.iter().cloned().flatten() {
                let row = (b * sequence + i) * heads + h;
                let at = row * depth;
                let q = &operands.q.data[at..][..depth];
                let d_o = &operands.d_o.data[row * values..][..values];
                let stats = &operands.stats.data[b * of_stats + (h * sequence + i) * 4..];
                let (lse, delta) = (stats[0], stats[1]);
                if lse == f64::NEG_INFINITY {
                    continue;
                }
                for j in
                    seen(scores, self.of.documents, i, both).filter(|j| asked[i] || keys_asked[*j])
                {
                    let row = (b * keys + j) * groups + h / shared;
                    let k = &operands.k.data[row * depth..][..depth];
                    let v = &operands.v.data[row * values..][..values];
                    let (score, off) = dot(q, k);
                    let score = score * scale;
                    let off = off * scale.abs() + 4.0 * U32 * (1.0 + score.abs());
                    let (score, of_cap, off_cap) = capped(scores.softcap, score);
                    let argument = score - lse;
                    let off = off * of_cap + off_cap + 4.0 * U32 * argument.abs();
                    let weight = argument.exp();
                    let (worth, off_worth) = dot(d_o, v);
                    let above = worth - delta;
                    let above = above * of_cap;
                    let slope = weight * above;
                    let of_weight = 2.0 * (weight * off).powi(2);
                    // The slope of a cap follows from its weight's logarithm.
                    let of_above = off_worth + 2.0 * U32 * (worth.abs() + delta.abs());
                    let of_above = of_above + of_log(argument, lse) * (worth - delta).abs();
                    let of_slope = of_weight * above * above + (weight * of_above).powi(2);
                    let slope = (slope, of_slope + (slope * rounding).powi(2));
                    let weight = (weight, of_weight + (weight * rounding).powi(2));
                    dq.add(at, slope, least, k);
                    dk.add(row * depth, slope, least, q);
                    dv.add(row * values, weight, least, d_o);
                }
            }
        }
        let terms = shared * sequence;
        // Of a row of so many elements only where it was asked for.
        let only = |asked: &[bool], n: usize, x: Vec<Near>| {
            let at = |(i, near): (usize, Near)| match asked[i / n % asked.len()] {
                true => near,
                false => Near::unasked(),
            };
            x.into_iter().enumerate().map(at).collect::<Vec<_>>()
        };
        let [of_queries, of_keys, of_value] = [heads * depth, groups * depth, groups * values];
        let dq = only(&asked, of_queries, dq.finish(keys, scale).collect());
        let dk = only(&keys_asked, of_keys, dk.finish(terms, scale).collect());
        let dv = only(&keys_asked, of_value, dv.finish(terms, 1.0).collect());
        [(wide, dq), (narrow, dk), (of_values, dv)].map(|(n, x)| Matrix::collect(n, x.into_iter()))
    }

    /// Which of so many places are evaluated, the first and the last among them.
    fn asked(&self, sequence: usize) -> Vec<bool> {
        let count = self.of.queries.min(sequence);
        let mut asked = vec![false; sequence];
        for n in 0..count {
            let last = sequence - 1;
            asked[(n * last).checked_div(count - 1).unwrap_or(last)] = true;
        }
        asked
    }
}

/// Statistics `[H, S, 4]` of each batch, of results and their gradients `[S, H, D]` and logarithms `[H, S]`.
pub(crate) fn statistics([rows, heads, depth]: [usize; 3], [o, d_o, lse]: [&Matrix; 3]) -> Matrix {
    let batches = o.data.len().checked_div(rows * heads * depth).unwrap_or(0);
    let mut all = Vec::with_capacity(batches * heads * rows * 4);
    for (b, h) in (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for i in 0..rows {
            let at = ((b * rows + i) * heads + h) * depth;
            let terms = || {
                let both = o.data[at..][..depth].iter().zip(&d_o.data[at..][..depth]);
                both.map(|(x, y)| x * y)
            };
            let (x, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            let hard = U32 * (depth as f64 / 4.0 + 8.0) * size;
            let lse = Near::exact(lse.data[(b * heads + h) * rows + i]);
            let zero = Near::exact(0.0);
            all.extend([lse, Near { x, hard, sd: 0.0 }, zero, zero]);
        }
    }
    Matrix::collect(heads * rows * 4, all.into_iter())
}

/// Gradients `[1, H]` of sinks, of those statistics `[B, H, S, 4]` that a rank has.
pub(crate) fn of_sinks(
    [heads, sequence]: [usize; 2],
    [stats, sinks]: [&Matrix; 2],
    own: impl Fn(usize, usize) -> bool,
) -> Matrix {
    let batches = stats.data.len().checked_div(sequence * heads * 4).unwrap_or(0);
    let all = (0..heads).map(|h| {
        let sink = sinks.data[h];
        let (mut sum, mut size, mut terms) = (0.0, 0.0, 0);
        for (b, i) in (0..batches).flat_map(|b| (0..sequence).map(move |i| (b, i))) {
            let at = 4 * ((b * heads + h) * sequence + i);
            let [lse, delta] = [0, 1].map(|n| stats.data[at + n]);
            if lse == f64::NEG_INFINITY || !own(b, i) {
                continue;
            }
            let term = (sink - lse).exp() * delta;
            (sum, terms) = (sum - term, terms + 1);
            // The exponential is of an argument in f32.
            size += term.abs() * (8.0 + 4.0 * (sink.abs() + lse.abs()));
        }
        let hard = U32 * (1.0 + f64::from(terms).sqrt() / 4.0) * size;
        Near { x: sum, hard, sd: 0.0 }.within(DType::F32)
    });
    Matrix::collect(heads, all)
}
