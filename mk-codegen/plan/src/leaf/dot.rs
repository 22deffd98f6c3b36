//! Products of rows.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Point, Proxy},
};

/// `dst[each] = sum over columns of src[each] * w` at each iteration of the inner loop, in f32: an element for each row
/// of `src`, and 0 for one that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DotTile;

impl Record for DotTile {
    fn name(&self) -> &'static str {
        "dot_tile"
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::One);
        let operands = vec![
            op(Operand::Src, Mode::Read),
            op(Operand::W, Mode::Read),
            op(Operand::Dst, Mode::Write),
            OperandSpec::tab(Copier),
        ];
        Contract::of_one(Copier, operands)
    }

    fn allowed(&self, _: bool) -> Allowed {
        use Point::{End, Inner, Start};
        Allowed {
            operands: vec![
                (Operand::Src, &[Inner]),
                (Operand::W, &[Inner]),
                (Operand::Dst, &[Inner]),
                (Operand::Tab, &[Start]),
            ],
            waits: vec![(Copier, Start), (Copier, Inner)],
            posts: vec![(Copier, End)],
            inner: true,
        }
    }

    fn types(&self) -> Vec<OneType> {
        vec![
            OneType::new(&[Operand::Src, Operand::W], Elements::Half),
            OneType::new(&[Operand::Dst], Elements::F32),
        ]
    }
}
