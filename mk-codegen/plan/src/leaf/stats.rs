//! Statistics of queries, for gradients of attention.

use super::Record;
use crate::{
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Elements of a query's statistics: 16 bytes, so that bulk copies and TMA take any rows of them.
pub const STATS: u32 = 4;

/// `dst = [lse, sum of o * do, 0, 0]` of each query of a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsTile {
    /// Queries of a tile, elements of a head.
    pub block: [u32; 2],
}

impl Record for StatsTile {
    fn name(&self) -> &'static str {
        "stats_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [rows, depth] = self.block;
        write!(f, " block={rows}x{depth}")
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let read = [Operand::O, Operand::Do, Operand::Lse].map(|o| op(o, Mode::Read));
        Contract::of_one(Copier, [&read[..], &[op(Operand::Dst, Mode::Write)]].concat())
    }

    fn types(&self) -> Vec<OneType> {
        vec![
            OneType::new(&[Operand::O, Operand::Do], Elements::Half),
            OneType::new(&[Operand::Lse, Operand::Dst], Elements::F32),
        ]
    }
}
