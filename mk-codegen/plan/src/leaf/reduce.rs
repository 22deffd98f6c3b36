//! Sums.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, Elements, OneType, OperandSpec},
    epilogue::{EPILOGUE_OPERANDS, EpilogueOp, epilogue_text, read_epilogue, write_epilogue},
    names::{Agent::Copier, Mode, Operand, Point, Proxy},
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// `dst = epilogue(sum of src, each times its w)`, in f32, in the order of `each`, then rounded once. In an inner
/// loop, a sum at each iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReduceTile {
    /// Elementwise tail: nothing that needs a GEMM, or saves.
    pub epilogue: Vec<EpilogueOp>,
}

impl ReduceTile {
    pub(super) fn read(c: &mut Cursor<'_>) -> Result<ReduceTile> {
        Ok(ReduceTile { epilogue: read_epilogue(c)? })
    }
}

impl Record for ReduceTile {
    fn name(&self) -> &'static str {
        "reduce_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_epilogue(f, &self.epilogue)
    }

    fn contract(&self) -> Contract {
        let op = |o, mode, arity| OperandSpec::new(o, mode, Copier, Proxy::Generic, arity);
        let mut operands = vec![
            op(Operand::Src, Mode::Read, Arity::Many),
            op(Operand::W, Mode::Read, Arity::Optional),
        ];
        operands.extend(OperandSpec::tails(&self.epilogue, Copier));
        operands.extend([op(Operand::Dst, Mode::Write, Arity::Many), OperandSpec::tab(Copier)]);
        Contract::of_one(Copier, operands)
    }

    /// In an inner loop, a sum at each iteration, of what is read in it.
    fn allowed(&self, inner: bool) -> Allowed {
        use Point::{End, Inner, Start};
        let (read, made): (&[Point], &[Point]) =
            if inner { (&[Inner], &[Inner]) } else { (&[Start], &[End]) };
        let others: &[Point] = if inner { &[Start, Inner] } else { &[Start, End] };
        let mut operands = vec![
            (Operand::Src, read),
            (Operand::W, read),
            (Operand::Dst, made),
            (Operand::Tab, &[Start]),
        ];
        operands.extend(EPILOGUE_OPERANDS.map(|operand| (operand, others)));
        let waits = vec![(Copier, Start), (Copier, Inner)];
        Allowed { operands, waits, posts: vec![(Copier, End)], inner: true }
    }

    fn types(&self) -> Vec<OneType> {
        let mut all = vec![
            OneType::new(&[Operand::Src], Elements::Float),
            OneType::new(&[Operand::Dst], Elements::Stored),
            OneType::new(&[Operand::W], Elements::F32),
        ];
        all.extend(EPILOGUE_OPERANDS.map(|e| OneType::new(&[e], Elements::Float)));
        all
    }

    fn epilogue(&self) -> &[EpilogueOp] {
        &self.epilogue
    }

    fn misuse(&self) -> Vec<String> {
        use EpilogueOp::{Carry, Keep, Quantize, Save, Swiglu};
        let other = |op: &&EpilogueOp| matches!(op, Swiglu | Save | Keep | Carry | Quantize(_));
        let other = self.epilogue.iter().find(other);
        other
            .map(|op| format!("a sum has no `{}` behind it", epilogue_text(op)))
            .into_iter()
            .collect()
    }

    fn has_dynamic_schedule(&self) -> bool {
        true
    }
}
