//! Gradients of gated rows.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Point, Proxy},
};

/// Of a row at each iteration of the inner loop, which has a weight `w`: `src` has gradients of what `silu(gate) * up`
/// makes, without the weight, `e0` gates, then ups. `dst` has gradients of both, times the weight; `e1` what the
/// activation makes, times the weight; `e2` the gradient of the weight, the sum over columns of
/// `src * silu(gate) * up`. In f32, each rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SwigluGradTile;

impl SwigluGradTile {
    /// What it reads.
    pub const READS: [Operand; 3] = [Operand::Src, Operand::E0, Operand::W];
    /// What it writes.
    pub const WRITES: [Operand; 3] = [Operand::Dst, Operand::E1, Operand::E2];
}

impl Record for SwigluGradTile {
    fn name(&self) -> &'static str {
        "swiglu_grad_tile"
    }

    fn contract(&self) -> Contract {
        let op =
            |mode| move |o: Operand| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let reads = Self::READS.map(op(Mode::Read)).into_iter();
        let writes = Self::WRITES.map(op(Mode::Write));
        let operands = reads.chain(writes).chain([OperandSpec::tab(Copier)]);
        Contract::of_one(Copier, operands.collect())
    }

    fn allowed(&self, _: bool) -> Allowed {
        let rows = [Self::READS, Self::WRITES].concat();
        let mut allowed = Allowed::in_loop(&self.contract(), &rows);
        allowed.waits.push((Copier, Point::Inner));
        allowed
    }

    fn types(&self) -> Vec<OneType> {
        let rows = [Operand::Src, Operand::E0, Operand::Dst, Operand::E1];
        vec![
            OneType::new(&rows, Elements::Half),
            OneType::new(&[Operand::W, Operand::E2], Elements::F32),
        ]
    }
}
