//! Reference attention in f64, with an error bound for correct results.
//!
//! A kernel computes scores in f32, rounds probabilities to the dtype of its queries before multiplying by values, and
//! accumulates in f32. Probabilities are rounded independently, so their errors add up as random ones do.

use super::{
    documents::document,
    near::{LAMBDA, Near, U32, half_ulp},
    value::Matrix,
};
use mk_abi::DType;
use mk_syntax::Scores;
use std::ops::Range;

/// The keys that query `i` attends to, of its document if there are some. With fewer queries than keys, the last query
/// is at the last key's position.
pub(crate) fn seen(
    scores: Scores,
    documents: Option<&[i32]>,
    i: usize,
    [queries, keys]: [usize; 2],
) -> Range<usize> {
    let end = if scores.causal { (i + 1 + keys).saturating_sub(queries) } else { keys };
    let window = scores.window.and_then(|n| usize::try_from(n).ok());
    let from = end.saturating_sub(window.unwrap_or(end));
    match documents {
        None => from..end,
        Some(begins) => {
            let own = document(begins, i);
            let end = end.min(own.end);
            from.max(own.start).min(end)..end
        }
    }
}

/// The soft-capped score, its derivative, and the error bound of computing it in f32 (tanh as an exponential and a
/// reciprocal).
pub(crate) fn capped(cap: Option<f64>, score: f64) -> (f64, f64, f64) {
    match cap {
        None => (score, 1.0, 0.0),
        Some(cap) => {
            let t = (score / cap).tanh();
            (cap * t, 1.0 - t * t, 8.0 * U32 * cap)
        }
    }
}

/// Sizes of the global tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention<'d> {
    /// Number of queries, and of keys.
    pub sequence: [usize; 2],
    /// Heads of queries; heads of keys and values.
    pub heads: [usize; 2],
    /// Elements of a head of queries and keys, and of values and results.
    pub depth: [usize; 2],
    /// Mask and cap; `scale` below replaces its factor.
    pub scores: Scores,
    pub scale: f64,
    /// Dtype of queries and of probabilities.
    pub dtype: DType,
    /// At most so many queries of a head are evaluated, spread over the sequence; the others are not compared.
    pub queries: usize,
    /// Where documents begin, of packed sequences.
    pub documents: Option<&'d [i32]>,
}

impl Attention<'_> {
    /// Results `[S, H, E]` and log-sum-exps `[H, S]` of each batch, with sinks of the heads if there are some.
    pub fn run(&self, [q, k, v]: [&Matrix; 3], sinks: Option<&Matrix>) -> [Matrix; 2] {
        let Attention { sequence: both @ [sequence, keys], heads: [heads, groups], depth, .. } =
            *self;
        let [depth, wide] = depth;
        let of_queries = sequence * heads * depth;
        let batches = q.data.len().checked_div(of_queries).unwrap_or(0);
        let of_results = sequence * heads * wide;
        let mut o = vec![Near::unasked(); batches * of_results];
        let mut lse = vec![Near::unasked(); batches * heads * sequence];
        let asked = self.queries.min(sequence);
        for b in 0..batches {
            let q = &q.data[b * of_queries..][..of_queries];
            let out = &mut o[b * of_results..][..of_results];
            let [k, v] = [(k, depth), (v, wide)].map(|(x, depth)| {
                let all = keys * groups * depth;
                &x.data[b * all..][..all]
            });
            for h in 0..heads {
                let g = h / (heads / groups).max(1);
                let sink = sinks.and_then(|s| s.data.get(h)).copied();
                for n in 0..asked {
                    // The first and the last query are among them.
                    let i = (n * (sequence - 1)).checked_div(asked - 1).unwrap_or(sequence - 1);
                    let at = i * heads + h;
                    let seen = seen(self.scores, self.documents, i, both);
                    let of = |j: usize| {
                        let row = (seen.start + j) * groups + g;
                        (&k[row * depth..][..depth], &v[row * wide..][..wide])
                    };
                    let sum = self.row(
                        &q[at * depth..][..depth],
                        (seen.len(), sink),
                        of,
                        &mut out[at * wide..][..wide],
                    );
                    lse[(b * heads + h) * sequence + i] = sum;
                }
            }
        }
        [(of_results, o), (heads * sequence, lse)]
            .map(|(cols, x)| Matrix::collect(cols, x.into_iter()))
    }

    /// One query against `keys` keys and values, and a sink; returns the log-sum-exp.
    fn row<'k>(
        &self,
        q: &[f64],
        (keys, sink): (usize, Option<f64>),
        of: impl Fn(usize) -> (&'k [f64], &'k [f64]),
        out: &mut [Near],
    ) -> Near {
        let depth = q.len() as f64;
        let accumulation = U32 * (4.0 * depth.sqrt() + depth / 4.0 + 8.0) * depth.sqrt() / LAMBDA;
        // Score, and the standard deviation of its error.
        let score = |j: usize| {
            let (k, _) = of(j);
            let terms = || q.iter().zip(k).map(|(x, y)| x * y);
            let (x, size) = (terms().sum::<f64>(), terms().map(|t| t * t).sum::<f64>().sqrt());
            let x = x * self.scale;
            let off = accumulation * size * self.scale.abs() + 4.0 * U32 * (1.0 + x.abs());
            let (x, slope, of_cap) = capped(self.scores.softcap, x);
            (x, off * slope + of_cap)
        };
        let scores: Vec<(f64, f64)> = (0..keys).map(score).collect();
        let none = sink.unwrap_or(f64::NEG_INFINITY);
        let max = scores.iter().map(|s| s.0).fold(none, f64::max);
        if keys == 0 && sink.is_none() {
            out.fill(Near::exact(0.0));
            return Near::exact(f64::NEG_INFINITY);
        }
        let all = scores.iter().map(|s| s.0).chain(sink);
        let total: f64 = all.map(|s| (s - max).exp()).sum();
        let rounding = half_ulp(self.dtype, 1.0);
        // Probabilities below the least normal number of their type lose more.
        let least = half_ulp(self.dtype, 0.0);
        let n = out.len();
        let (mut x, mut variance, mut size) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        let mut common = 0.0;
        for (j, (s, off)) in scores.iter().enumerate() {
            let weight = (s - max).exp() / total;
            let of_score = 2.0 * (weight * off) * (weight * off);
            common += of_score;
            let own = of_score + weight * weight * rounding * rounding;
            for (c, y) in of(j).1.iter().enumerate() {
                x[c] += weight * y;
                size[c] += weight * y.abs() + least / total * y.abs();
                variance[c] += own * y * y;
            }
        }
        let sums = U32 * (8.0 + 2.0 * (keys as f64).sqrt());
        for c in 0..n {
            let sd = (variance[c] + common * x[c] * x[c]).sqrt();
            let hard = sums * size[c] + least * size[c] / total.max(1.0);
            out[c] = Near { x: x[c], hard, sd }.within(DType::F32);
        }
        let lse = max + total.ln();
        Near { x: lse, hard: sums + 4.0 * U32 * lse.abs(), sd: (common / 2.0).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_no_document_are_exactly_zero() {
        let documents = [0, 2];
        let attention = Attention {
            sequence: [3; 2],
            heads: [1; 2],
            depth: [2; 2],
            scores: Scores { causal: true, ..Scores::default() },
            scale: 1.0,
            dtype: DType::Bf16,
            queries: 3,
            documents: Some(&documents),
        };
        let [q, k, v] = [1.0, 2.0, 3.0].map(|x| Matrix::exact(2, vec![x; 6]));
        let [o, lse] = attention.run([&q, &k, &v], None);
        assert!((0..4).all(|i| o.at(i).bound() > 0.0));
        assert!((4..6).all(|i| o.at(i) == Near::exact(0.0)));
        assert_eq!(lse.at(2), Near::exact(f64::NEG_INFINITY));
    }
}
