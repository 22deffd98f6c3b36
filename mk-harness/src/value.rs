//! Values of the dense reference.

use super::math;

/// Rows of a global value: everything below dimension 0 is one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// Elements of a row.
    pub cols: usize,
    /// The chosen rows, one after the other.
    pub data: Vec<f64>,
}

/// A value of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The same for all ranks, or sharded: its global rows.
    Whole(Matrix),
    /// A sum over the ranks, by rank.
    Summands(Vec<Matrix>),
}

impl Value {
    pub(super) fn zip(&self, other: &Value, op: impl Fn(f64, f64) -> f64) -> Value {
        let both = |x: &Matrix, y: &Matrix| Matrix {
            cols: x.cols,
            data: x.data.iter().zip(&y.data).map(|(x, y)| op(*x, *y)).collect(),
        };
        match (self, other) {
            (Value::Whole(x), Value::Whole(y)) => Value::Whole(both(x, y)),
            (Value::Summands(x), Value::Whole(y)) => {
                Value::Summands(x.iter().map(|x| both(x, y)).collect())
            }
            (Value::Whole(x), Value::Summands(y)) => {
                Value::Summands(y.iter().map(|y| both(x, y)).collect())
            }
            (Value::Summands(x), Value::Summands(y)) => {
                Value::Summands(x.iter().zip(y).map(|(x, y)| both(x, y)).collect())
            }
        }
    }

    pub(super) fn map(&self, op: impl Fn(usize, f64) -> f64) -> Value {
        self.each(|x| Matrix {
            cols: x.cols,
            data: x.data.iter().enumerate().map(|(i, x)| op(i, *x)).collect(),
        })
    }

    /// The value, with summands added up.
    pub(super) fn sum(&self) -> Matrix {
        match self {
            Value::Whole(x) => x.clone(),
            Value::Summands(all) => {
                let mut parts = all.iter();
                let mut sum = parts.next().cloned().unwrap_or_default();
                for part in parts {
                    sum.data.iter_mut().zip(&part.data).for_each(|(s, x)| *s += x);
                }
                sum
            }
        }
    }

    /// Of a matrix of which all rows are there, the rows `chosen` of its transpose.
    pub(super) fn transposed(&self, chosen: &[usize]) -> Value {
        let one = |x: &Matrix| {
            let column = |c: usize| x.data.iter().skip(c).step_by(x.cols.max(1)).copied();
            let data: Vec<f64> = chosen.iter().flat_map(|&c| column(c)).collect();
            Matrix { cols: x.data.len().checked_div(x.cols).unwrap_or(0), data }
        };
        self.each(one)
    }

    /// `silu(gate) * up`, of rows of which the first half is the gate.
    pub(super) fn swiglu(&self) -> Value {
        self.each(|x| {
            let cols = x.cols / 2;
            let pairs = x.data.chunks_exact(x.cols.max(1)).flat_map(|row| {
                let (gate, up) = row.split_at(cols);
                gate.iter().zip(up).map(|(gate, up)| math::silu(*gate) * up)
            });
            Matrix { cols, data: pairs.collect() }
        })
    }

    fn each(&self, one: impl Fn(&Matrix) -> Matrix) -> Value {
        match self {
            Value::Whole(x) => Value::Whole(one(x)),
            Value::Summands(all) => Value::Summands(all.iter().map(one).collect()),
        }
    }

    /// What `rank` holds of it.
    pub(super) fn on(&self, rank: usize) -> &[f64] {
        match self {
            Value::Whole(x) => &x.data,
            Value::Summands(all) => all.get(rank).map_or(&[], |m| &m.data),
        }
    }
}
