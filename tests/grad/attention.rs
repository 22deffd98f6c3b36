//! Attention and the parts of its backward in f64.

use mk::syntax::{Node, Op, Scores};
use std::ops::Range;

/// Sizes, and what a query sees.
struct Heads<'d> {
    /// Where documents begin, of packed sequences.
    documents: Option<&'d [f64]>,
    batch: usize,
    sequence: usize,
    /// Of queries, and of keys.
    heads: [usize; 2],
    depth: usize,
    scores: Scores,
    scale: f64,
}

impl<'d> Heads<'d> {
    fn of(node: &Node, q: &[usize], k: &[usize], documents: Option<&'d [f64]>) -> Heads<'d> {
        let scores = match node.op {
            Op::Attention { scores, .. }
            | Op::AttentionDq { scores, .. }
            | Op::AttentionDk { scores, .. } => scores,
            _ => Scores::default(),
        };
        let &[batch, sequence, h, depth] = q else { panic!("{q:?}") };
        let scale = scores.scale.unwrap_or(1.0 / (depth as f64).sqrt());
        Heads { documents, batch, sequence, heads: [h, k[2]], depth, scores, scale }
    }

    /// Where a row of queries (0) or of keys (1) begins.
    fn at(&self, which: usize, b: usize, i: usize, h: usize) -> usize {
        let n = self.heads[which];
        ((b * self.sequence + i) * n + h * n / self.heads[0]) * self.depth
    }

    /// Every batch, head and query, with the keys that it sees.
    fn rows(&self) -> impl Iterator<Item = ([usize; 3], Range<usize>)> + '_ {
        let heads = (0..self.batch).flat_map(|b| (0..self.heads[0]).map(move |h| (b, h)));
        heads.flat_map(move |(b, h)| {
            (0..self.sequence).map(move |i| {
                let end = if self.scores.causal { i + 1 } else { self.sequence };
                let window = self.scores.window.map_or(end, |n| n as usize);
                let from = end.saturating_sub(window);
                let own = self.documents.map_or(0..self.sequence, |begins| {
                    let mut all = begins.windows(2).map(|d| d[0] as usize..d[1] as usize);
                    all.find(|d| d.contains(&i)).unwrap_or(0..0)
                });
                let end = end.min(own.end);
                ([b, h, i], from.max(own.start).min(end)..end)
            })
        })
    }

    /// The place of a row's logarithm.
    fn line(&self, [b, h, i]: [usize; 3]) -> usize {
        (b * self.heads[0] + h) * self.sequence + i
    }

    fn dot(&self, x: &[f64], y: &[f64]) -> f64 {
        x[..self.depth].iter().zip(y).map(|(x, y)| x * y).sum()
    }

    /// A score, and its slope.
    fn score(&self, q: &[f64], k: &[f64]) -> (f64, f64) {
        let score = self.scale * self.dot(q, k);
        self.scores.softcap.map_or((score, 1.0), |cap| {
            let t = (score / cap).tanh();
            (cap * t, 1.0 - t * t)
        })
    }
}

/// Results, and logarithms.
pub fn attention(
    node: &Node,
    shapes: [&[usize]; 2],
    [q, k, v]: [&[f64]; 3],
    documents: Option<&[f64]>,
    sinks: Option<&[f64]>,
) -> (Vec<f64>, Vec<f64>) {
    let all = Heads::of(node, shapes[0], shapes[1], documents);
    let (mut o, mut lse) = (vec![0.0; q.len()], vec![0.0; q.len() / all.depth]);
    for (at @ [b, h, i], keys) in all.rows() {
        let query = all.at(0, b, i, h);
        let scores = keys.clone().map(|j| all.score(&q[query..], &k[all.at(1, b, j, h)..]).0);
        let weights: Vec<f64> = scores.map(f64::exp).collect();
        let sum = weights.iter().sum::<f64>() + sinks.map_or(0.0, |s| s[h].exp());
        for (j, weight) in keys.zip(&weights) {
            let from = all.at(1, b, j, h);
            (0..all.depth).for_each(|c| o[query + c] += weight / sum * v[from + c]);
        }
        lse[all.line(at)] = sum.ln();
    }
    (o, lse)
}

/// Statistics of `[B, S, H, D]`.
pub fn statistics(shape: &[usize], [o, d_o, lse]: [&[f64]; 3]) -> Vec<f64> {
    let &[batch, sequence, h, depth] = shape else { panic!("{shape:?}") };
    let heads = [h, h];
    let (documents, scores) = (None, Scores::default());
    let all = Heads { documents, batch, sequence, heads, depth, scores, scale: 1.0 };
    let mut stats = vec![0.0; lse.len() * 4];
    for (at @ [b, h, i], _) in all.rows() {
        let row = all.at(0, b, i, h);
        let line = all.line(at);
        stats[4 * line] = lse[line];
        stats[4 * line + 1] = all.dot(&o[row..], &d_o[row..]);
    }
    stats
}

/// Gradients of sinks, of statistics `[B, H, S, 4]`.
pub fn of_sinks(shape: &[usize], [stats, sinks]: [&[f64]; 2]) -> Vec<f64> {
    let mut made = vec![0.0; sinks.len()];
    for (i, row) in stats.chunks(4).enumerate() {
        let h = i / shape[2] % shape[1];
        made[h] -= (sinks[h] - row[0]).exp() * row[1];
    }
    made
}

/// Gradients of queries, keys and values.
pub fn gradients(
    node: &Node,
    shapes: [&[usize]; 2],
    [q, d_o, stats, k, v]: [&[f64]; 5],
    documents: Option<&[f64]>,
) -> [Vec<f64>; 3] {
    let all = Heads::of(node, shapes[0], shapes[1], documents);
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
    for (at @ [b, h, i], keys) in all.rows() {
        let (query, stats) = (all.at(0, b, i, h), &stats[4 * all.line(at)..]);
        for key in keys.map(|j| all.at(1, b, j, h)) {
            let (score, of_cap) = all.score(&q[query..], &k[key..]);
            let weight = (score - stats[0]).exp();
            let above = all.dot(&d_o[query..], &v[key..]) - stats[1];
            let slope = weight * above * of_cap * all.scale;
            for c in 0..all.depth {
                dq[query + c] += slope * k[key + c];
                dk[key + c] += slope * q[query + c];
                dv[key + c] += weight * d_o[query + c];
            }
        }
    }
    [dq, dk, dv]
}
