//! Gradients of attention: of a block of queries against blocks of keys and values, or of keys and values against
//! blocks of queries.

use super::{AttentionStep, Tile};

/// Accumulated gradients, `[rows, d]` each, without the scale of scores: of queries, or of keys and values.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Gradients {
    Queries(Tile),
    Keys { keys: Tile, values: Tile },
}

/// The operands of one step: a block of queries, and one of keys.
#[derive(Clone, Copy)]
pub(in super::super) struct Block<'t> {
    /// Queries, and gradients of their outputs, `[queries, d]`.
    pub q: &'t Tile,
    pub d_o: &'t Tile,
    /// `[lse, sum of o * do, 0, 0]` of each query, `[queries, 4]`.
    pub stats: &'t Tile,
    /// Keys and values, `[keys, d]`.
    pub k: &'t Tile,
    pub v: &'t Tile,
}

impl Block<'_> {
    /// Whether the shapes agree.
    pub fn fits(&self) -> bool {
        let [q, d_o, stats, k, v] = [self.q, self.d_o, self.stats, self.k, self.v];
        let rows = q.rows == d_o.rows && q.rows == stats.rows && stats.cols == 4;
        rows && k.rows == v.rows && q.cols == k.cols && d_o.cols == v.cols
    }
}

impl Gradients {
    /// Adds the contribution of a block. Probabilities and gradients of scores are rounded before they are multiplied,
    /// as in tensor cores.
    pub fn step(&mut self, block: Block<'_>, step: &AttentionStep) {
        let Block { q, d_o, stats, k, v } = block;
        for i in 0..q.rows {
            let [lse, delta, ..] = *stats.row(i) else { continue };
            if lse == f32::NEG_INFINITY {
                continue;
            }
            for j in step.sees(i, k.rows) {
                let (score, slope_of_cap) = step.score(dot(q.row(i), k.row(j)));
                let weight = (score - lse).exp();
                let slope = weight * (dot(d_o.row(i), v.row(j)) - delta) * slope_of_cap;
                let [weight, slope] = [weight, slope].map(|x| step.probabilities.round(x));
                match self {
                    Gradients::Queries(sum) => add(sum, i, slope, k.row(j)),
                    Gradients::Keys { keys, values } => {
                        add(keys, j, slope, q.row(i));
                        add(values, j, weight, d_o.row(i));
                    }
                }
            }
        }
    }
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn add(sum: &mut Tile, row: usize, factor: f32, x: &[f32]) {
    let cols = sum.cols;
    let row = &mut sum.data[row * cols..(row + 1) * cols];
    row.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
}

/// `[lse, sum of o * do, 0, 0]` of each query.
pub(in super::super) fn statistics(o: &Tile, d_o: &Tile, lse: &[f32]) -> Vec<f32> {
    let rows = lse.iter().enumerate();
    rows.flat_map(|(i, lse)| [*lse, dot(o.row(i), d_o.row(i)), 0.0, 0.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Attention;
    use mk_abi::DType;

    fn tile(rows: usize, cols: usize, first: f32) -> Tile {
        let data = (0..rows * cols).map(|i| (first + i as f32 * 0.7).sin()).collect();
        Tile { rows, cols, data }
    }

    /// The sum of results times what they are worth, of queries, keys and values.
    fn worth(q: &Tile, k: &Tile, v: &Tile, d_o: &Tile, step: &AttentionStep) -> f64 {
        let mut state = Attention::new(q.rows, v.cols);
        state.step(q, k, v, step);
        let o = state.output();
        o.data.iter().zip(&d_o.data).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    /// Against differences of results, with and without a mask; a query without a key has and gives nothing.
    #[test]
    fn gradients_are_slopes() {
        for (seen, window, cap) in
            [(None, None, None), (Some(0), None, Some(0.75)), (Some(2), Some(2), None)]
        {
            let probabilities = DType::F32;
            let bounds = None;
            let step =
                &AttentionStep { scale: 0.5, heads: 1, seen, window, bounds, cap, probabilities };
            let (q, k, v) = (tile(3, 4, 0.0), tile(4, 4, 1.0), tile(4, 4, 2.0));
            let d_o = tile(3, 4, 3.0);
            let mut state = Attention::new(3, 4);
            state.step(&q, &k, &v, step);
            let data = statistics(&state.output(), &d_o, &state.logarithms());
            let stats = Tile { rows: 3, cols: 4, data };
            let block = Block { q: &q, d_o: &d_o, stats: &stats, k: &k, v: &v };
            let mut of_queries = Gradients::Queries(Tile::zeros(3, 4));
            of_queries.step(block, step);
            let (keys, values) = (Tile::zeros(4, 4), Tile::zeros(4, 4));
            let mut of_keys = Gradients::Keys { keys, values };
            of_keys.step(block, step);
            let (Gradients::Queries(dq), Gradients::Keys { keys, values }) = (of_queries, of_keys)
            else {
                panic!("each is of what it was")
            };
            let found = [(dq, 0.5), (keys, 0.5), (values, 1.0)];
            for (which, (gradient, factor)) in found.into_iter().enumerate() {
                for at in 0..gradient.data.len() {
                    let moved = |by: f32| {
                        let mut all = [q.clone(), k.clone(), v.clone()];
                        all[which].data[at] += by;
                        worth(&all[0], &all[1], &all[2], &d_o, step)
                    };
                    let slope = (moved(0.01) - moved(-0.01)) / 0.02;
                    let got = f64::from(gradient.data[at] * factor);
                    assert!((slope - got).abs() < 2e-3, "{seen:?} {which} {at}: {slope} {got}");
                }
            }
        }
    }
}
