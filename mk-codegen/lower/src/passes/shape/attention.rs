//! Attention, and the parts of its backward.

use super::{extents::Extents, ids::Param, tensor::Tensor};
use crate::graph::Scored;
use mk_plan::{Expr, GradOf, Mask, Operand};

/// What the operation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Makes {
    /// `o = softmax(scale q k^T) v`, and the logarithms of the softmax's sums.
    Results,
    /// Statistics of queries, which gradients are made of.
    Statistics,
    Gradients(GradOf),
}

impl Makes {
    /// Its operands, in the order of the operation.
    pub fn reads(self) -> Vec<Operand> {
        match self {
            Makes::Results => vec![Operand::Q, Operand::K, Operand::V],
            Makes::Statistics => vec![Operand::O, Operand::Do, Operand::Lse],
            Makes::Gradients(of) => [of.held(), of.moving()].concat(),
        }
    }
}

/// The dimension of an operand that the sequence is.
pub(in crate::passes) fn along(operand: Operand) -> usize {
    if matches!(operand, Operand::Lse | Operand::Stats) { 2 } else { 1 }
}

/// An attention, or a part of its backward.
pub(in crate::passes) struct Attention {
    pub makes: Makes,
    /// Its operands' parameters, and their tensors.
    pub operands: Vec<(Operand, Param, Tensor)>,
    /// Where documents begin, of packed sequences: the parameter, and its tensor.
    pub documents: Option<(Param, Tensor)>,
    /// What it makes, and which results these are.
    pub made: Vec<(Operand, usize)>,
    /// What an exchange behind it reads, and which parameters of the kernel these are.
    pub passed: Vec<(Operand, Param)>,
    /// Operands and results by heads, between exchanges, and their places among the results.
    pub kept: Vec<(Operand, usize)>,
    pub scores: Scored,
    /// The axis of the ring: blocks are passed on along it, from rank to rank.
    pub ring: Option<usize>,
    pub exchange: Option<Exchange>,
}

/// Ranks exchange parts of the sequence for heads: queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) struct Exchange {
    /// The axis that they are along.
    pub axis: usize,
    /// And results the other way.
    pub back: bool,
}

impl Attention {
    /// The parameter that an operand is; of an operand that the attention does not have, the first.
    pub fn param(&self, operand: Operand) -> Param {
        self.operands[self.place(operand)].1
    }

    /// The tensor of an operand.
    pub fn tensor(&self, operand: Operand) -> &Tensor {
        &self.operands[self.place(operand)].2
    }

    fn place(&self, operand: Operand) -> usize {
        self.operands.iter().position(|(o, ..)| *o == operand).unwrap_or(0)
    }

    /// Elements of a head of queries and keys, and of values and results.
    pub fn heads(&self) -> [i32; 2] {
        let of = |o: Operand| self.tensor(o).shape[3].value;
        match self.makes {
            Makes::Statistics => [of(Operand::O); 2],
            _ => [of(Operand::Q), of(Operand::V)],
        }
    }

    /// Elements of a head of values, where they are not as many as of queries.
    pub fn values(&self) -> Option<u32> {
        let [keys, values] = self.heads();
        (keys != values).then_some(values as u32)
    }

    /// Whether queries see no key behind their own position.
    pub fn causal(&self) -> bool {
        self.scores.mask != Mask::Full
    }

    /// Places in the sequence of the first query, and of the first key: the last of both have one place.
    pub fn begins(&self, extents: &mut Extents) -> [Expr; 2] {
        let [q, k] = [Operand::Q, Operand::K].map(|o| &self.tensor(o).shape[along(o)]);
        let [queries, keys] = [q, k].map(|e| extents.dim(e));
        if queries == keys || (q.runtime_max.or(k.runtime_max).is_none() && q.value == k.value) {
            return [0.into(), 0.into()];
        }
        match (q.runtime_max, k.runtime_max) {
            (None, None) => [k.value - q.value, q.value - k.value].map(|n| n.max(0).into()),
            _ => {
                let apart = |a: &Expr, b: &Expr| Expr::Const(0).max(a.clone() - b.clone());
                [apart(&keys, &queries), apart(&queries, &keys)]
            }
        }
    }

    /// The first of `keys`, of a chunk that begins at `first`, that some query from `place` on sees; and how many of
    /// them there are up to number `end`. All of them without a window.
    pub fn window(&self, place: &Expr, first: &Expr, end: Expr) -> (Expr, Expr) {
        let Some(keys) = self.scores.mask.window() else { return (Expr::Const(0), end) };
        let from = Expr::Const(0).max(place.clone() - first.clone() - (keys as i32 - 1));
        (from.clone(), Expr::Const(0).max(end - from))
    }

    /// Floating-point operations of a rank, of so many that share the operands.
    pub fn flops(&self, world: i32) -> f64 {
        let [deep, wide] = self.heads().map(f64::from);
        let elements = match self.makes {
            Makes::Statistics => return 0.0,
            Makes::Results => deep + wide,
            Makes::Gradients(GradOf::Queries) => 2.0 * deep + wide,
            Makes::Gradients(_) => 2.0 * (deep + wide),
        };
        let q = &self.tensor(Operand::Q).shape;
        let keys = f64::from(self.tensor(Operand::K).shape[1].capacity());
        let all: f64 = q[..3].iter().map(|e| f64::from(e.capacity())).product();
        let seen = match self.scores.mask {
            Mask::Full | Mask::Bounds => 1.0,
            Mask::Causal => 0.5,
            // Of so many keys the first queries see half.
            Mask::Window(window) => {
                let part = f64::from(window) / keys.max(1.0);
                part * (1.0 - part / 2.0)
            }
        };
        2.0 * elements * all * keys * seen / f64::from(world)
    }

    /// The factor's f32 bits.
    pub fn factor(&self, depth: i32) -> u32 {
        self.scores.scale.unwrap_or_else(|| (1.0 / (depth as f32).sqrt()).to_bits())
    }
}
