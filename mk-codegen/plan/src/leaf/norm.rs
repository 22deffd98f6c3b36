//! Root mean square normalisation of rows, and its gradient.

use super::Record;
use crate::{
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// `dst = src * r * e0` of each row of `src`, with `r = 1 / sqrt(mean(src^2) + eps)`, in f32 and rounded once; without
/// `e0`, not times anything. Of a gradient, `dst = r * g - src * r^3 * mean(g * src)` with `g = do * e0`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NormTile {
    /// The bits of `eps`, an f32.
    pub eps: u32,
    /// Whether it is the gradient, from that of the result, `do`.
    pub grad: bool,
}

impl NormTile {
    pub(super) fn read(c: &mut Cursor<'_>, grad: bool) -> Result<NormTile> {
        Ok(NormTile { eps: c.setting("eps")?, grad })
    }

    /// What is added to the mean of squares.
    pub fn eps(&self) -> f32 {
        f32::from_bits(self.eps)
    }

    /// What it reads: rows, and their gradients.
    pub fn rows(&self) -> &'static [Operand] {
        if self.grad { &[Operand::Src, Operand::Do] } else { &[Operand::Src] }
    }
}

impl Record for NormTile {
    fn name(&self) -> &'static str {
        if self.grad { "norm_grad_tile" } else { "norm_tile" }
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " eps=0x{:08x}", self.eps)
    }

    fn contract(&self) -> Contract {
        let op = |o, mode, arity| OperandSpec::new(o, mode, Copier, Proxy::Generic, arity);
        let mut operands: Vec<_> =
            self.rows().iter().map(|o| op(*o, Mode::Read, Arity::One)).collect();
        operands.push(op(Operand::E0, Mode::Read, Arity::Optional));
        operands.push(op(Operand::Dst, Mode::Write, Arity::One));
        Contract::of_one(Copier, operands)
    }

    fn types(&self) -> Vec<OneType> {
        vec![OneType::new(&[Operand::Src, Operand::Do, Operand::E0, Operand::Dst], Elements::Half)]
    }
}
