//! GEMM: f32 accumulation, k in ascending order, so that any tiling of m and n gives the same bits.

use super::Tile;

/// Rows and columns of the block whose sums stay in registers.
const MR: usize = 4;
const NR: usize = 8;

/// `c += a * b`, for `a` `[m, k]`, `b` `[k, n]`, `c` `[m, n]`. The caller has checked the shapes.
pub(in super::super) fn multiply_add(c: &mut Tile, a: &Tile, b: &Tile) {
    let (m, n, k) = (c.rows, c.cols, a.cols);
    // Four rows of `a` side by side, so that the inner loop reads both operands in order.
    let mut panel = vec![[0.0f32; MR]; k];
    for i in (0..m).step_by(MR) {
        let rows = MR.min(m - i);
        for r in 0..rows {
            let row = &a.data[(i + r) * k..(i + r + 1) * k];
            panel.iter_mut().zip(row).for_each(|(p, x)| p[r] = *x);
        }
        for j in (0..n).step_by(NR) {
            let cols = NR.min(n - j);
            let mut acc = [[0.0f32; NR]; MR];
            for (r, sums) in acc.iter_mut().enumerate().take(rows) {
                let at = (i + r) * n + j;
                sums[..cols].copy_from_slice(&c.data[at..at + cols]);
            }
            if cols == NR {
                for (p, row) in panel.iter().zip(b.data.chunks_exact(n)) {
                    step(&mut acc, p, &row[j..j + NR]);
                }
            } else {
                let mut padded = [0.0f32; NR];
                for (p, row) in panel.iter().zip(b.data.chunks_exact(n)) {
                    padded[..cols].copy_from_slice(&row[j..]);
                    step(&mut acc, p, &padded);
                }
            }
            for (r, sums) in acc.iter().enumerate().take(rows) {
                let at = (i + r) * n + j;
                c.data[at..at + cols].copy_from_slice(&sums[..cols]);
            }
        }
    }
}

#[inline(always)]
fn step(acc: &mut [[f32; NR]; MR], a: &[f32; MR], b: &[f32]) {
    let Ok(b) = <&[f32; NR]>::try_from(b) else {
        return;
    };
    for (row, x) in acc.iter_mut().zip(a) {
        for (sum, y) in row.iter_mut().zip(b) {
            *sum += x * y;
        }
    }
}

/// `[n, k]` as `[k, n]`.
pub(in super::super) fn transpose(t: &Tile) -> Tile {
    let mut out = Tile::zeros(t.cols, t.rows);
    for i in 0..t.rows {
        for (j, x) in t.row(i).iter().enumerate() {
            out.data[j * t.rows + i] = *x;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_ragged_edges_add_in_ascending_k() {
        for (m, n, k) in [(1, 1, 1), (4, 8, 3), (7, 19, 5), (9, 24, 16), (3, 5, 0)] {
            let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 7.0;
            let fill = |rows: usize, cols: usize, salt: usize| Tile {
                rows,
                cols,
                data: (0..rows * cols).map(|i| value(i + salt)).collect(),
            };
            let (a, b, mut c) = (fill(m, k, 1), fill(k, n, 2), fill(m, n, 3));
            let mut want = c.clone();
            for i in 0..m {
                for j in 0..n {
                    for l in 0..k {
                        want.data[i * n + j] += a.data[i * k + l] * b.data[l * n + j];
                    }
                }
            }
            multiply_add(&mut c, &a, &b);
            assert_eq!(c, want, "{m}x{n}x{k}");
            assert_eq!(transpose(&transpose(&a)), a);
        }
    }
}
