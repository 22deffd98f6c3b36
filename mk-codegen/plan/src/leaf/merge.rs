//! Parts of an attention put together.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Results and logarithms of a block of queries, of what parts of their keys gave: at each step of the inner loop the
/// unnormalised results `[rows, d]` of one, and its maximum and sum of each row, `[rows, 2]`. With a sink sums have its
/// exponential, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeTile {
    /// Queries of a tile, elements of a head.
    pub block: [u32; 2],
}

impl Record for MergeTile {
    fn name(&self) -> &'static str {
        "merge_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [rows, depth] = self.block;
        write!(f, " block={rows}x{depth}")
    }

    fn contract(&self) -> Contract {
        use Arity::{One, Optional};
        let op = |o, mode, arity| OperandSpec::new(o, mode, Copier, Proxy::Generic, arity);
        let operands = vec![
            op(Operand::AccIn, Mode::Read, One),
            op(Operand::StatIn, Mode::Read, One),
            op(Operand::Sinks, Mode::Read, Optional),
            op(Operand::O, Mode::Write, One),
            op(Operand::Lse, Mode::Write, Optional),
        ];
        Contract::of_one(Copier, operands)
    }

    fn allowed(&self, _: bool) -> Allowed {
        Allowed::in_loop(&self.contract(), &[Operand::AccIn, Operand::StatIn])
    }

    fn types(&self) -> Vec<OneType> {
        use Operand::{AccIn, Lse, O, Sinks, StatIn};
        vec![
            OneType::new(&[O], Elements::Half),
            OneType::new(&[AccIn, StatIn, Lse, Sinks], Elements::F32),
        ]
    }
}
