//! Root mean square normalisation in the dense reference.

use super::{
    near::{Near, U32},
    value::Matrix,
};

/// Rows of `x` over the root of their mean square, times a weight; of gradients `d` of that, those of `x`.
pub(crate) fn normalised(
    eps: f64,
    x: &Matrix,
    weight: Option<&Matrix>,
    d: Option<&Matrix>,
) -> Matrix {
    let n = x.cols;
    // The kernel has it in f32.
    let eps = f64::from(eps as f32);
    let from = d.unwrap_or(x);
    let weighed = |i: usize| match weight {
        Some(g) => from.at(i).mul(g.at(i % n)),
        None => from.at(i),
    };
    let mean = |of: &dyn Fn(usize) -> Near, row: usize| {
        let all = (row * n..(row + 1) * n).map(of);
        all.fold(Near::exact(0.0), Near::add).scale(1.0 / n as f64)
    };
    let rows = x.len().checked_div(n).unwrap_or(0);
    let mut out = Vec::with_capacity(x.len());
    for row in 0..rows {
        let squares = mean(&|i| x.at(i).mul(x.at(i)), row).add(Near::exact(eps));
        let root = reciprocal_root(squares);
        let back = d.map(|_| {
            let along = mean(&|i| weighed(i).mul(x.at(i)), row);
            root.mul(root).mul(root).mul(along)
        });
        out.extend((row * n..(row + 1) * n).map(|i| {
            let scaled = root.mul(weighed(i));
            match back {
                Some(back) => scaled.add(x.at(i).mul(back).scale(-1.0)),
                None => scaled,
            }
        }));
    }
    Matrix::collect(n, out.into_iter())
}

fn reciprocal_root(x: Near) -> Near {
    let y = 1.0 / x.x.sqrt();
    if x.is_nan() {
        return Near::exact(f64::NAN);
    }
    // What may be half as large has a slope of less than three times that here.
    if !(x.bound() <= x.x / 2.0) {
        return Near::unknown(y);
    }
    let steep = 1.5 * y / x.x;
    Near { x: y, hard: steep * x.hard + 4.0 * U32 * y, sd: steep * x.sd }
}
