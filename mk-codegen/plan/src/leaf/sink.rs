//! Gradients of sinks.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy},
};

/// `dst = -sum of exp(sinks - lse) * delta` over the queries of a head, whose statistics `[rows, 4]` come at each step
/// of the inner loop: in f32, in an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SinkTile;

impl Record for SinkTile {
    fn name(&self) -> &'static str {
        "sink_tile"
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let operands = vec![
            op(Operand::Stats, Mode::Read),
            op(Operand::Sinks, Mode::Read),
            op(Operand::Dst, Mode::Write),
        ];
        Contract::of_one(Copier, operands)
    }

    fn allowed(&self, _: bool) -> Allowed {
        Allowed::in_loop(&self.contract(), &[Operand::Stats])
    }

    fn types(&self) -> Vec<OneType> {
        vec![OneType::new(&[Operand::Stats, Operand::Sinks, Operand::Dst], Elements::F32)]
    }

    fn computes(&self) -> bool {
        true
    }
}
