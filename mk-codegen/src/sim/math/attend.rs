//! Attention of a block of queries, one block of keys and values after the other, with a running maximum and sum.

use super::{Tile, round};
use mk_abi::DType;

/// State between steps: unnormalised output, and the maximum and sum of each row.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Attention {
    /// `[rows, d]`.
    pub acc: Tile,
    /// `[rows, 2]`: maximum, sum.
    pub stat: Tile,
}

impl Attention {
    /// Before the first step.
    pub fn new(rows: usize, d: usize) -> Attention {
        let mut stat = Tile::zeros(rows, 2);
        stat.data.iter_mut().step_by(2).for_each(|m| *m = f32::NEG_INFINITY);
        Attention { acc: Tile::zeros(rows, d), stat }
    }

    /// One block of keys `[cols, dk]` and values `[cols, d]`. Probabilities are rounded to bf16 before they meet the values, as
    /// tensor cores have it; their sum is not.
    pub fn step(&mut self, q: &Tile, k: &Tile, v: &Tile, scale: f32) {
        if k.rows == 0 {
            return;
        }
        let mut p = vec![0.0f32; k.rows];
        for i in 0..q.rows {
            let query = q.row(i);
            let mut max = self.stat.data[2 * i];
            for (j, score) in p.iter_mut().enumerate() {
                let dot: f32 = query.iter().zip(k.row(j)).map(|(x, y)| x * y).sum();
                *score = dot * scale;
                // A NaN must survive: poison that is read has to show.
                max = if *score > max || score.is_nan() { *score } else { max };
            }
            let old = self.stat.data[2 * i];
            let shrink = if old == max { 1.0 } else { (old - max).exp() };
            let acc = &mut self.acc.data[i * v.cols..(i + 1) * v.cols];
            acc.iter_mut().for_each(|x| *x *= shrink);
            let mut sum = self.stat.data[2 * i + 1] * shrink;
            for (j, score) in p.iter().enumerate() {
                let weight = (score - max).exp();
                sum += weight;
                let weight = round(DType::Bf16, weight);
                acc.iter_mut().zip(v.row(j)).for_each(|(x, y)| *x += weight * y);
            }
            self.stat.data[2 * i] = max;
            self.stat.data[2 * i + 1] = sum;
        }
    }

    /// Logarithms of the sums of exponentials, `[rows]`.
    pub fn logarithms(&self) -> Vec<f32> {
        self.stat.data.chunks(2).map(|stat| stat[0] + stat[1].ln()).collect()
    }

    /// The result, `[rows, d]`.
    pub fn output(&self) -> Tile {
        let mut out = self.acc.clone();
        let cols = out.cols.max(1);
        for (row, stat) in out.data.chunks_mut(cols).zip(self.stat.data.chunks(2)) {
            row.iter_mut().for_each(|x| *x /= stat[1]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_are_one_softmax() {
        let tile = |rows, cols, data: &[f32]| Tile { rows, cols, data: data.to_vec() };
        let q = tile(1, 2, &[1.0, -1.0]);
        let (k1, k2) = (tile(1, 2, &[0.5, 0.25]), tile(1, 2, &[3.0, 1.0]));
        let (v1, v2) = (tile(1, 1, &[4.0]), tile(1, 1, &[-2.0]));
        let mut state = Attention::new(1, 1);
        state.step(&q, &k1, &v1, 0.5);
        state.step(&q, &k2, &v2, 0.5);
        let (a, b) = ((0.125f32).exp(), (1.0f32).exp());
        let want = (4.0 * a - 2.0 * b) / (a + b);
        let got = state.output().data[0];
        assert!((got - want).abs() < 0.01, "{got} is not {want}");
        state.step(&q, &tile(1, 2, &[f32::NAN, 0.0]), &v1, 0.5);
        assert!(state.output().data[0].is_nan());
    }
}
