//! Heads of rows, turned by the angles of their row.

use super::Record;
use crate::{
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
};
use serde::{Deserialize, Serialize};

/// `dst` is each head of `src` turned by the angles in `e0`, which has as many columns as a head: cosines, then sines.
/// Elements `i` and `i + D / 2` of a head are a pair: `(x, y)` becomes `(x cos - y sin, y cos + x sin)`, in f32 and
/// rounded once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RopeTile {
    /// Whether by the angles the other way.
    pub back: bool,
}

impl RopeTile {
    /// What it reads: rows, and their angles.
    pub const READS: [Operand; 2] = [Operand::Src, Operand::E0];
}

impl Record for RopeTile {
    fn name(&self) -> &'static str {
        if self.back { "rope_back_tile" } else { "rope_tile" }
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let mut operands = RopeTile::READS.map(|o| op(o, Mode::Read)).to_vec();
        operands.push(op(Operand::Dst, Mode::Write));
        Contract::of_one(Copier, operands)
    }

    fn types(&self) -> Vec<OneType> {
        vec![
            OneType::new(&[Operand::Src, Operand::Dst], Elements::Half),
            OneType::new(&[Operand::E0], Elements::F32),
        ]
    }
}
