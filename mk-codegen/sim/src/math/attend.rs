//! Attention of a block of queries, one block of keys and values after the other, with a running maximum and sum.

use super::Tile;
use mk_abi::DType;
use std::ops::Range;

/// State between steps: unnormalised output, and the maximum and sum of each row.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Attention {
    /// `[rows, d]`.
    pub acc: Tile,
    /// `[rows, 2]`: maximum, sum.
    pub stat: Tile,
}

/// Between which places of the other side each row of a tile meets it, from the first place of this step on.
#[derive(Clone, Debug)]
pub(in super::super) struct Bounds {
    /// The first place, and the one behind the last, of each row; both ascend.
    pub rows: Vec<[i64; 2]>,
    /// Whether the rows are keys.
    pub of_keys: bool,
}

/// How scores of one step become probabilities.
#[derive(Clone, Debug)]
pub(in super::super) struct AttentionStep {
    /// Factor on q·k.
    pub scale: f32,
    /// Rows of each query: one of each of its heads.
    pub heads: usize,
    /// Keys that the first query sees; each one after it sees one more. `None`: all see all.
    pub seen: Option<i64>,
    /// The most keys that a query sees of those: the last.
    pub window: Option<i64>,
    /// Bounds by which rows see each other, instead.
    pub bounds: Option<Bounds>,
    /// Scores `s` are `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Type that probabilities are rounded to before they meet the values.
    pub probabilities: DType,
}

impl AttentionStep {
    /// Which of so many keys query `i` of the step sees.
    pub fn sees(&self, i: usize, keys: usize) -> Range<usize> {
        match &self.bounds {
            Some(Bounds { rows, of_keys: true }) => {
                let meets = |p: &[i64; 2]| p[1] <= i as i64;
                let (from, end) =
                    (rows.partition_point(meets), rows.partition_point(|p| p[0] <= i as i64));
                return from.min(end)..end;
            }
            Some(Bounds { rows, of_keys: false }) => {
                let [from, end] = rows.get(i).copied().unwrap_or_default();
                let within = |x: i64| x.clamp(0, keys as i64) as usize;
                return within(from).min(within(end))..within(end);
            }
            None => {}
        }
        let end = self.seen.map_or(keys as i64, |first| first + i as i64);
        let from = self.window.map_or(0, |window| end - window);
        let within = |x: i64| x.clamp(0, keys as i64) as usize;
        within(from)..within(end)
    }

    /// The score from a dot product of query and key, and the factor from its gradient to that of the scaled product.
    pub fn score(&self, product: f32) -> (f32, f32) {
        let score = product * self.scale;
        match self.cap {
            None => (score, 1.0),
            Some(cap) => {
                let t = (score / cap).tanh();
                (cap * t, 1.0 - t * t)
            }
        }
    }
}

impl Attention {
    /// Before the first step.
    pub fn new(rows: usize, d: usize) -> Attention {
        let mut stat = Tile::zeros(rows, 2);
        stat.data.iter_mut().step_by(2).for_each(|m| *m = f32::NEG_INFINITY);
        Attention { acc: Tile::zeros(rows, d), stat }
    }

    /// One block of keys `[cols, dk]` and values `[cols, d]`. Probabilities are rounded before they meet the values, as
    /// tensor cores have it; their sum is not.
    pub fn step(&mut self, q: &Tile, k: &Tile, v: &Tile, step: &AttentionStep) {
        let mut scores = vec![0.0f32; k.rows];
        for i in 0..q.rows {
            let query = q.row(i);
            let seen = step.sees(i / step.heads, k.rows);
            let (from, p) = (seen.start, &mut scores[seen]);
            if p.is_empty() {
                continue;
            }
            let mut max = self.stat.data[2 * i];
            for (j, score) in p.iter_mut().enumerate() {
                let dot: f32 = query.iter().zip(k.row(from + j)).map(|(x, y)| x * y).sum();
                *score = step.score(dot).0;
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
                let weight = step.probabilities.round(weight);
                acc.iter_mut().zip(v.row(from + j)).for_each(|(x, y)| *x += weight * y);
            }
            self.stat.data[2 * i] = max;
            self.stat.data[2 * i + 1] = sum;
        }
    }

    /// Adds what another part of the keys gave.
    pub fn merge(&mut self, part: &Attention) {
        let d = self.acc.cols;
        for (i, stat) in self.stat.data.chunks_mut(2).enumerate() {
            let (old, new) = (stat[0], part.stat.data[2 * i]);
            // A NaN must survive.
            let most = if new > old || new.is_nan() { new } else { old };
            let shrink = |x: f32| if x == most { 1.0 } else { (x - most).exp() };
            let (own, theirs) = (shrink(old), shrink(new));
            let acc = self.acc.data[i * d..(i + 1) * d].iter_mut();
            acc.zip(part.acc.row(i)).for_each(|(x, y)| *x = *x * own + y * theirs);
            stat[1] = stat[1] * own + part.stat.data[2 * i + 1] * theirs;
            stat[0] = most;
        }
    }

    /// The sums with the exponential of a sink, too; rows without a key have its maximum.
    pub fn sink(&mut self, sink: f32) {
        let d = self.acc.cols;
        for (i, stat) in self.stat.data.chunks_mut(2).enumerate() {
            let (old, most) = (stat[0], stat[0].max(sink));
            let shrink = if old == most { 1.0 } else { (old - most).exp() };
            self.acc.data[i * d..(i + 1) * d].iter_mut().for_each(|x| *x *= shrink);
            stat[1] = stat[1] * shrink + (sink - most).exp();
            stat[0] = most;
        }
    }

    /// Logarithms of the sums of exponentials, `[rows]`.
    pub fn logarithms(&self) -> Vec<f32> {
        self.stat.data.chunks(2).map(|stat| stat[0] + stat[1].ln()).collect()
    }

    /// The result, `[rows, d]`: 0 in rows without a key.
    pub fn output(&self) -> Tile {
        let mut out = self.acc.clone();
        let cols = out.cols.max(1);
        for (row, stat) in out.data.chunks_mut(cols).zip(self.stat.data.chunks(2)) {
            let sum = if stat[1] == 0.0 { 1.0 } else { stat[1] };
            row.iter_mut().for_each(|x| *x /= sum);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: AttentionStep = AttentionStep {
        scale: 1.0,
        heads: 1,
        seen: None,
        window: None,
        bounds: None,
        cap: None,
        probabilities: DType::F32,
    };

    #[test]
    fn two_steps_are_one_softmax() {
        let tile = |rows, cols, data: &[f32]| Tile { rows, cols, data: data.to_vec() };
        let q = tile(1, 2, &[1.0, -1.0]);
        let (k1, k2) = (tile(1, 2, &[0.5, 0.25]), tile(1, 2, &[3.0, 1.0]));
        let (v1, v2) = (tile(1, 1, &[4.0]), tile(1, 1, &[-2.0]));
        let step = AttentionStep { scale: 0.5, seen: None, probabilities: DType::Bf16, ..PLAIN };
        let mut state = Attention::new(1, 1);
        state.step(&q, &k1, &v1, &step);
        state.step(&q, &k2, &v2, &step);
        let (a, b) = ((0.125f32).exp(), (1.0f32).exp());
        let want = (4.0 * a - 2.0 * b) / (a + b);
        let got = state.output().data[0];
        assert!((got - want).abs() < 0.01, "{got} is not {want}");
        state.step(&q, &tile(1, 2, &[f32::NAN, 0.0]), &v1, &step);
        assert!(state.output().data[0].is_nan());
    }

    #[test]
    fn queries_see_keys_up_to_their_place() {
        let tile = |rows, cols, data: &[f32]| Tile { rows, cols, data: data.to_vec() };
        let (q, k) = (tile(3, 1, &[0.0; 3]), tile(2, 1, &[1.0, 2.0]));
        let v = tile(2, 1, &[4.0, 8.0]);
        let step = AttentionStep { scale: 1.0, seen: Some(0), probabilities: DType::F16, ..PLAIN };
        let mut state = Attention::new(3, 1);
        state.step(&q, &k, &v, &step);
        assert_eq!(state.output().data, [0.0, 4.0, 6.0]);
        assert_eq!(state.logarithms(), [f32::NEG_INFINITY, 0.0, 2.0f32.ln()]);
        // Of two keys at most the last.
        let mut narrow = Attention::new(3, 1);
        narrow.step(&q, &k, &v, &AttentionStep { window: Some(1), ..step.clone() });
        assert_eq!(narrow.output().data, [0.0, 4.0, 8.0]);
        // Of two heads each, two queries are four rows.
        let mut pairs = Attention::new(4, 1);
        let of_two = AttentionStep { heads: 2, ..step.clone() };
        pairs.step(&tile(4, 1, &[0.0; 4]), &k, &v, &of_two);
        assert_eq!(pairs.output().data, [0.0, 0.0, 4.0, 4.0]);
        // A block that none of them sees changes nothing.
        let before = state.clone();
        state.step(&q, &k, &v, &AttentionStep { seen: Some(-2), ..step.clone() });
        assert_eq!(state, before);
    }
    /// Bounds of queries and of keys that say the same leave the same pairs.
    #[test]
    fn bounds_of_both_sides() {
        let of = |rows: &[[i64; 2]], of_keys| AttentionStep {
            bounds: Some(Bounds { rows: rows.to_vec(), of_keys }),
            ..PLAIN
        };
        // Documents of 2, 0 and 3 tokens, causal, and one token of none.
        let queries = of(&[[0, 1], [0, 2], [2, 3], [2, 4], [2, 5], [5, 5]], false);
        let keys = of(&[[0, 2], [1, 2], [2, 5], [3, 5], [4, 5], [5, 5]], true);
        for i in 0..6 {
            assert_eq!(queries.sees(i, 6).collect::<Vec<_>>(), keys.sees(i, 6).collect::<Vec<_>>());
        }
        assert_eq!((queries.sees(3, 6), queries.sees(5, 6).len()), (2..4, 0));
        // Of a step that begins elsewhere.
        assert_eq!(of(&[[-3, 2], [1, 9]], false).sees(1, 4), 1..4);
        assert!(of(&[[-3, -1]], false).sees(0, 4).is_empty());
    }
}
