//! What the fixtures compute, in f64, from the whole tensors: written without a look at tiles, slots or ranks' order.

use crate::harness::{Data, Tensor};

fn at(t: &Tensor, i: usize) -> f64 {
    f64::from(t.values[i])
}

/// Row `i` of `a` `[m, k]` times `b` `[k, n]`, of which `offset` elements are skipped.
fn row_times(a: &Tensor, i: usize, b: &Tensor, offset: usize, n: usize) -> Vec<f64> {
    let k = a.shape[1];
    let mut out = vec![0.0; n];
    for l in 0..k {
        let x = at(a, i * k + l);
        for (j, sum) in out.iter_mut().enumerate() {
            *sum += x * at(b, offset + l * n + j);
        }
    }
    out
}

/// `gather(a) -> gemm(b)`.
pub fn gather_gemm(data: &Data, epoch: i64, rank: usize, world: usize) -> Vec<Option<f64>> {
    let b = data.input(epoch, rank, "b");
    let n = b.shape[1];
    let mut out = Vec::new();
    for p in 0..world {
        let a = data.input(epoch, p, "a");
        for i in 0..a.shape[0] {
            out.extend(row_times(a, i, b, 0, n).into_iter().map(Some));
        }
    }
    out
}

/// `gemm(a, b) -> reduce_scatter`, `rows` of each shard but the last.
pub fn gemm_reduce_scatter(
    data: &Data,
    epoch: i64,
    rank: usize,
    world: usize,
    rows: usize,
) -> Vec<Option<f64>> {
    let m = data.input(epoch, 0, "a").shape[0];
    let mut out = Vec::new();
    for i in rank * rows..m.min((rank + 1) * rows) {
        let parts = (0..world).map(|p| {
            let b = data.input(epoch, p, "b");
            row_times(data.input(epoch, p, "a"), i, b, 0, b.shape[1])
        });
        let sum = parts.reduce(|x, y| x.iter().zip(&y).map(|(x, y)| x + y).collect());
        out.extend(sum.unwrap_or_default().into_iter().map(Some));
    }
    out
}

/// `dispatch(x) -> grouped_gemm(w)`, with the rows of expert `e` from row `base(e)` on, at most `room` of them.
pub fn moe(
    data: &Data,
    epoch: i64,
    rank: usize,
    rows: usize,
    room: usize,
    packed: bool,
) -> Vec<Option<f64>> {
    let w = data.input(epoch, rank, "w");
    let (k, n) = (w.shape[1], w.shape[2]);
    let total = data.table(epoch, rank, "total");
    let (ranks, tokens) = (data.table(epoch, rank, "src_rank"), data.table(epoch, rank, "src_tok"));
    let per_expert = ranks.len() / total.len();
    let mut out = vec![None; rows * n];
    let mut next = 0;
    for (e, count) in total.iter().enumerate() {
        let base = if packed { next } else { e * room };
        next += (*count as usize).div_ceil(16) * 16;
        for i in 0..room.min(*count as usize) {
            let x = data.input(epoch, ranks[e * per_expert + i] as usize, "x");
            let row = row_times(x, tokens[e * per_expert + i] as usize, w, e * k * n, n);
            for (j, v) in row.into_iter().enumerate() {
                out[(base + i) * n + j] = Some(v);
            }
        }
    }
    out
}

/// Softmax attention of a rank's queries over the keys and values of all ranks.
pub fn attention(data: &Data, epoch: i64, rank: usize, world: usize) -> Vec<Option<f64>> {
    let q = data.input(epoch, rank, "q");
    let [rows, heads, d] = q.shape[..] else { panic!("[rows, heads, d]") };
    let mut out = Vec::new();
    for i in 0..rows {
        for h in 0..heads {
            let (mut sum, mut acc) = (0.0, vec![0.0; d]);
            for p in 0..world {
                let (k, v) = (data.input(epoch, p, "k"), data.input(epoch, p, "v"));
                for j in 0..k.shape[0] {
                    let dot: f64 = (0..d)
                        .map(|c| at(q, (i * heads + h) * d + c) * at(k, (j * heads + h) * d + c))
                        .sum();
                    let weight = (dot / (d as f64).sqrt()).exp();
                    sum += weight;
                    for (c, x) in acc.iter_mut().enumerate() {
                        *x += weight * at(v, (j * heads + h) * d + c);
                    }
                }
            }
            out.extend(acc.into_iter().map(|x| Some(x / sum)));
        }
    }
    out
}
