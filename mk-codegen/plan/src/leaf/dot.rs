//! Dot products of rows, or elements that already are such.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Point, Proxy},
};

/// At each iteration of the inner loop `dst[each]` is the dot product of each row of `src[each]` with `w`, in f32; 0
/// for a row that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DotTile {
    /// `src` has the dot products already, in f32: there is no `w`.
    pub plain: bool,
}

impl DotTile {
    /// What it reads.
    pub fn reads(&self) -> &'static [Operand] {
        if self.plain { &[Operand::Src] } else { &[Operand::Src, Operand::W] }
    }
}

impl Record for DotTile {
    fn name(&self) -> &'static str {
        if self.plain { "pick_tile" } else { "dot_tile" }
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let reads = self.reads().iter().map(|o| op(*o, Mode::Read));
        let rest = [op(Operand::Dst, Mode::Write), OperandSpec::tab(Copier)];
        Contract::of_one(Copier, reads.chain(rest).collect())
    }

    fn allowed(&self, _: bool) -> Allowed {
        let mut allowed =
            Allowed::in_loop(&self.contract(), &[self.reads(), &[Operand::Dst]].concat());
        allowed.waits.push((Copier, Point::Inner));
        allowed
    }

    fn types(&self) -> Vec<OneType> {
        match self.plain {
            true => vec![OneType::new(&[Operand::Src, Operand::Dst], Elements::F32)],
            false => vec![
                OneType::new(self.reads(), Elements::Half),
                OneType::new(&[Operand::Dst], Elements::F32),
            ],
        }
    }
}
