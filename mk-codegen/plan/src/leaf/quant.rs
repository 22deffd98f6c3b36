//! Rows in eight bits, with a factor for each block of 128 elements, and back.

use super::Record;
use crate::{
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
    text::{Cursor, Result},
};
use mk_abi::DType;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// `dst` is each element of `src` over the factor of its block, rounded once; `e0` has the factors, a row for each 128
/// columns and a column for each row: the largest magnitude of the block over the largest number of the type, 1 of
/// zeros. Backwards `dst` is `src` times the factors that `e0` has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantTile {
    /// The type of eight bits.
    pub narrow: DType,
    /// Whether from it to 16 bits.
    pub back: bool,
}

impl QuantTile {
    pub(super) fn read(c: &mut Cursor<'_>, back: bool) -> Result<QuantTile> {
        c.keyword("dtype")?;
        c.sign("=")?;
        let narrow = c.named(&DType::ALL.map(DType::name), DType::from_name)?;
        Ok(QuantTile { narrow, back })
    }

    /// Elements that share a factor.
    pub const BLOCK: i32 = 128;

    /// What it reads: rows, and backwards their factors.
    pub fn reads(&self) -> &'static [Operand] {
        if self.back { &[Operand::Src, Operand::E0] } else { &[Operand::Src] }
    }

    /// What it writes.
    pub fn writes(&self) -> &'static [Operand] {
        if self.back { &[Operand::Dst] } else { &[Operand::Dst, Operand::E0] }
    }
}

impl Record for QuantTile {
    fn name(&self) -> &'static str {
        if self.back { "dequantize_tile" } else { "quantize_tile" }
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " dtype={}", self.narrow)
    }

    fn contract(&self) -> Contract {
        let op = |mode| {
            move |o: &Operand| OperandSpec::new(*o, mode, Copier, Proxy::Generic, Arity::One)
        };
        let reads = self.reads().iter().map(op(Mode::Read));
        Contract::of_one(Copier, reads.chain(self.writes().iter().map(op(Mode::Write))).collect())
    }

    fn types(&self) -> Vec<OneType> {
        let (wide, narrow) = match self.back {
            true => (Operand::Dst, Operand::Src),
            false => (Operand::Src, Operand::Dst),
        };
        vec![
            OneType::new(&[wide], Elements::Half),
            OneType::new(&[narrow], Elements::Only(self.narrow)),
            OneType::new(&[Operand::E0], Elements::F32),
        ]
    }
}
