//! Rows in eight bits, with a factor for each block of 128 elements.

use super::{
    near::{Near, U32},
    value::Matrix,
};
use mk_abi::DType;
use mk_syntax::SCALE_BLOCK;

/// Elements of `x` over the factors of their blocks, before they are stored; and the factors, `[blocks, rows]`.
pub(crate) fn quantised(to: DType, x: &Matrix) -> [Matrix; 2] {
    let (columns, block) = (x.cols.max(1), SCALE_BLOCK as usize);
    let rows = x.len() / columns;
    let mut factors = vec![Near::exact(1.0); columns.div_ceil(block) * rows];
    for (at, to_factor) in factors.iter_mut().enumerate() {
        let (row, first) = (at % rows, at / rows * block);
        let elements = (first..columns.min(first + block)).map(|c| x.at(row * columns + c));
        *to_factor = factor(to, elements);
    }
    let values = (0..x.len()).map(|i| {
        let over = factors[i % columns / block * rows + i / columns];
        quotient(to, x.at(i), over)
    });
    [Matrix::collect(columns, values), Matrix::collect(rows, factors.iter().copied())]
}

fn factor(to: DType, block: impl Iterator<Item = Near>) -> Near {
    let (mut most, mut bound, mut nan) = (0.0f64, 0.0f64, false);
    for x in block {
        if x.is_unasked() {
            return x;
        }
        nan |= x.x.is_nan();
        (most, bound) = (most.max(x.x.abs()), bound.max(x.bound()));
    }
    let largest = to.format().float.map_or(1.0, |f| f64::from(f.largest()));
    match () {
        () if nan => Near::exact(f64::NAN),
        () if !bound.is_finite() => Near::unknown(most / largest),
        () if bound == 0.0 => Near::exact(to.factor((most as f32).to_bits()).into()),
        // It may be 1, of zeros.
        () if bound >= most => Near::unknown(most / largest),
        () => Near {
            x: most / largest,
            hard: bound / largest + U32 * (most + bound) / largest,
            sd: 0.0,
        },
    }
}

/// Exact of what is exact: rounded to the type.
fn quotient(to: DType, x: Near, factor: Near) -> Near {
    if x.is_unasked() || factor.is_unasked() {
        return Near::unasked();
    }
    let y = x.x / factor.x;
    if x.is_nan() || factor.is_nan() {
        return Near::exact(f64::NAN);
    }
    if x.is_exact() && factor.is_exact() {
        return Near::exact(to.round(x.x as f32 / factor.x as f32).into());
    }
    if !factor.bound().is_finite() || factor.bound() >= factor.x {
        return Near::unknown(y);
    }
    let least = factor.x - factor.bound();
    let hard = (x.bound() + y.abs() * factor.bound()) / least + U32 * y.abs();
    // No element is over its block's largest, which becomes the dtype's: none leaves its range.
    let most = to.format().float.map_or(f64::INFINITY, |f| f64::from(f.largest())) * (1.0 - 1e-9);
    if y.abs() + hard < most {
        return Near { x: y, hard, sd: 0.0 };
    }
    let least = (y.abs() - hard).clamp(0.0, most);
    Near { x: f64::midpoint(least, most).copysign(y), hard: (most - least) / 2.0, sd: 0.0 }
}
