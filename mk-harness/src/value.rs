//! Values of the dense reference.

use super::{
    math,
    near::{LAMBDA, Near, U32, end, over_ranks},
};
use mk_abi::DType;
use mk_syntax::Curve;

/// How far right results may be from the elements of a matrix: see [`Near`].
#[derive(Clone, Debug, Default, PartialEq)]
struct Spread {
    hard: Vec<f64>,
    sd: Vec<f64>,
}

/// Rows of a global value: everything below dimension 0 is one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// Elements of a row.
    pub cols: usize,
    /// The chosen rows, one after the other.
    pub data: Vec<f64>,
    /// Of every element; nothing where all are exact.
    spread: Option<Spread>,
}

impl Matrix {
    /// Of exact elements.
    pub fn exact(cols: usize, data: Vec<f64>) -> Matrix {
        Matrix { cols, data, spread: None }
    }

    pub(crate) fn collect(cols: usize, elements: impl Iterator<Item = Near>) -> Matrix {
        let (mut data, mut spread) = (Vec::new(), Spread::default());
        for near in elements {
            data.push(near.x);
            spread.hard.push(near.hard);
            spread.sd.push(near.sd);
        }
        let exact = spread.hard.iter().chain(&spread.sd).all(|x| *x == 0.0);
        Matrix { cols, data, spread: (!exact).then_some(spread) }
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn at(&self, i: usize) -> Near {
        match &self.spread {
            None => Near::exact(self.data[i]),
            Some(s) => Near { x: self.data[i], hard: s.hard[i], sd: s.sd[i] },
        }
    }

    fn elements(&self) -> impl Iterator<Item = Near> {
        (0..self.len()).map(|i| self.at(i))
    }

    /// The elements at these places, as rows of `cols`.
    pub(crate) fn pick(&self, cols: usize, places: impl Iterator<Item = usize>) -> Matrix {
        match self.spread {
            None => Matrix::exact(cols, places.map(|i| self.data[i]).collect()),
            Some(_) => Matrix::collect(cols, places.map(|i| self.at(i))),
        }
    }

    /// Mean squares of what the roundings of elements that came from without add up to; infinite where nothing is
    /// known.
    fn variances(&self) -> Vec<f64> {
        self.elements().map(Near::variance).collect()
    }

    /// Squares; infinite elements count 0: their readers get the same infinity.
    fn squares(&self) -> Vec<f64> {
        self.data.iter().map(|x| if x.is_finite() { x * x } else { 0.0 }).collect()
    }

    /// `self * right`, of shapes `[rows, k]` and `[k, n]`, accumulated in f32 in whatever order.
    pub(crate) fn product(&self, right: &Matrix, rows: usize, k: usize, narrow: bool) -> Matrix {
        let n = right.cols;
        let size = rows * n;
        let (mut data, mut sums) = (vec![0.0; size], vec![0.0; size]);
        math::matmul(&mut data, &self.data, &right.data, k, n);
        // The sum of |a b| is at most this times the root of the sum of (a b)^2.
        let root_k = (k as f64).sqrt();
        // Additions one after the other round either way, those of tensor cores are cut off, 16 terms at a time.
        let accumulation = U32 * (4.0 * root_k + k as f64 / 4.0 + 8.0) * root_k / LAMBDA;
        // Tensor cores add products of eight bits to some 14 bits, within a step of 128: 132 terms are cut off by up to
        // 2^-13 of a sum that is three deviations large.
        let narrow = if narrow { 3.0 * 132f64.sqrt() / 8192.0 } else { 0.0 };
        let own = accumulation * accumulation + narrow * narrow;
        let squares = self.squares();
        let left: Vec<f64> = match self.spread {
            None => squares.iter().map(|s| own * s).collect(),
            Some(_) => squares.iter().zip(self.variances()).map(|(s, v)| own * s + v).collect(),
        };
        math::matmul(&mut sums, &left, &right.squares(), k, n);
        if right.spread.is_some() {
            math::matmul(&mut sums, &squares, &right.variances(), k, n);
        }
        let near = |(x, variance): (&f64, &f64)| {
            // Of infinite elements with both signs, whatever the others are.
            if x.is_nan() && right.spread.is_none() {
                return Near::exact(*x);
            }
            let sd = variance.sqrt();
            // A partial sum may be beyond the range where the whole is not.
            if sd.is_nan() || sd / accumulation * root_k >= end(DType::F32) {
                return Near::unknown(*x);
            }
            Near { x: *x, hard: 0.0, sd }.within(DType::F32)
        };
        Matrix::collect(n, data.iter().zip(&sums).map(near))
    }
}

/// A value of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The same for all ranks, or sharded: its global rows.
    Whole(Matrix),
    /// A sum over the ranks, by rank.
    Contributions(Vec<Matrix>),
}

impl Value {
    pub(super) fn zip(&self, other: &Value, op: impl Fn(Near, Near) -> Near) -> Value {
        let both = |x: &Matrix, y: &Matrix| {
            Matrix::collect(x.cols, x.elements().zip(y.elements()).map(|(x, y)| op(x, y)))
        };
        match (self, other) {
            (x, Value::Whole(y)) => x.each(|x| both(x, y)),
            (Value::Whole(x), y) => y.each(|y| both(x, y)),
            (Value::Contributions(x), Value::Contributions(y)) => {
                Value::Contributions(x.iter().zip(y).map(|(x, y)| both(x, y)).collect())
            }
        }
    }

    pub(super) fn map(&self, op: impl Fn(usize, Near) -> Near) -> Value {
        self.each(|x| Matrix::collect(x.cols, x.elements().enumerate().map(|(i, x)| op(i, x))))
    }

    /// As memory of a type holds it.
    pub(super) fn stored(self, dtype: DType) -> Value {
        self.map(|_, x| x.stored(dtype))
    }

    /// The value, with contributions of this type reduced as ranks along an axis do it; `partial` if there are others
    /// along another one.
    pub(super) fn sum(&self, dtype: DType, (stride, n): (usize, usize), partial: bool) -> Value {
        let Value::Contributions(all) = self else { return self.clone() };
        let along = |place: usize| {
            let first = place - place / stride % n * stride;
            let of: Vec<&Matrix> = (0..n).filter_map(|i| all.get(first + i * stride)).collect();
            let (cols, len) = of.first().map_or((0, 0), |m| (m.cols, m.len()));
            let at = |i| of.iter().map(|m| m.at(i)).collect::<Vec<_>>();
            Matrix::collect(cols, (0..len).map(|i| over_ranks(&at(i), dtype)))
        };
        match partial {
            true => Value::Contributions((0..all.len()).map(along).collect()),
            false => Value::Whole(along(0)),
        }
    }

    /// Of a matrix of which all rows are there, the rows `chosen` of its transpose.
    pub(super) fn transposed(&self, chosen: &[usize]) -> Value {
        let one = |x: &Matrix| {
            let rows = x.len().checked_div(x.cols).unwrap_or(0);
            let places = chosen.iter().flat_map(|&c| (0..rows).map(move |r| r * x.cols + c));
            x.pick(rows, places)
        };
        self.each(one)
    }

    /// `silu(gate) * up`, of rows of which the first half is the gate.
    pub(super) fn swiglu(&self) -> Value {
        self.each(|x| {
            let cols = x.cols / 2;
            let rows = 0..x.len().checked_div(x.cols).unwrap_or(0);
            let pairs = rows.flat_map(|row| (0..cols).map(move |c| row * 2 * cols + c));
            Matrix::collect(cols, pairs.map(|i| x.at(i).curve(Curve::Silu).mul(x.at(i + cols))))
        })
    }

    /// Of rows of gradients, the gradients of the gates and ups of `gates`, side by side.
    pub(super) fn swiglu_grad(&self, gates: &Value) -> Value {
        let both = |d: &Matrix, x: &Matrix| {
            let (cols, n) = (d.cols, d.len());
            let rows = 0..n.checked_div(cols).unwrap_or(0);
            let places = rows.flat_map(|row| (0..2 * cols).map(move |c| (row, c)));
            let one = |(row, c): (usize, usize)| {
                let at = row * 2 * cols + c % cols;
                let d = d.at(row * cols + c % cols);
                match c < cols {
                    true => d.mul(x.at(at + cols)).slope(Curve::Silu, x.at(at)),
                    false => d.mul(x.at(at).curve(Curve::Silu)),
                }
            };
            Matrix::collect(2 * cols, places.map(one))
        };
        match (self, gates) {
            (Value::Whole(d), Value::Whole(x)) => Value::Whole(both(d, x)),
            // The checker refuses it on sums.
            (d, _) => d.clone(),
        }
    }

    fn each(&self, one: impl Fn(&Matrix) -> Matrix) -> Value {
        match self {
            Value::Whole(x) => Value::Whole(one(x)),
            Value::Contributions(all) => Value::Contributions(all.iter().map(one).collect()),
        }
    }

    /// What `rank` holds of it.
    pub(crate) fn on(&self, rank: usize) -> Option<&Matrix> {
        match self {
            Value::Whole(x) => Some(x),
            Value::Contributions(all) => all.get(rank),
        }
    }
}
