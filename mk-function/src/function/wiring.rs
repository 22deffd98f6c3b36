//! Which tensor of which part is which of a call's, and which lie between parts.

use super::sizes::Signature;
use crate::choice::Part;
use mk_abi::DType;
use mk_syntax::{Bound, Program, ValueId};

/// Where a tensor of a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A parameter of the pipeline, by position.
    Input(usize),
    /// A result of the pipeline, by position.
    Output(usize),
    /// A part's result for later parts, by position in [`Wiring::between`].
    Between(usize),
}

/// The tensors of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wires {
    /// Of each parameter.
    pub inputs: Vec<Place>,
    /// Of each result.
    pub outputs: Vec<Place>,
}

/// The tensors of all parts of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring {
    /// By part.
    pub parts: Vec<Wires>,
    /// The values that are neither parameters nor results of the pipeline: the caller of the parts allocates
    /// them.
    pub between: Vec<ValueId>,
}

impl Wiring {
    /// Of the [`parts`](crate::choice::parts) of a pipeline; `None` for parts of another one.
    pub fn new(program: &Program, parts: &[Part]) -> Option<Wiring> {
        let mut wiring = Wiring::default();
        for part in parts {
            let inputs = part.inputs.iter().map(|id| wiring.place(program, *id));
            let inputs = inputs.collect::<Option<Vec<_>>>()?;
            for result in &part.results {
                if wiring.place(program, *result).is_none() {
                    wiring.between.push(*result);
                }
            }
            let outputs = part.results.iter().map(|id| wiring.place(program, *id));
            let outputs = outputs.collect::<Option<Vec<_>>>()?;
            wiring.parts.push(Wires { inputs, outputs });
        }
        Some(wiring)
    }

    /// The parameter that result `i` may replace: one that the part with that result alone reads, once, and `replaces`
    /// in its own parameter of that position.
    pub fn replaced(&self, i: usize, replaces: impl Fn(usize, usize) -> bool) -> Option<usize> {
        let part = self.parts.iter().position(|p| p.outputs.contains(&Place::Output(i)))?;
        let inputs = self.parts.get(part)?.inputs.iter().enumerate();
        let mut found = inputs.filter_map(|(at, place)| match place {
            Place::Input(input) if replaces(part, at) => Some(*input),
            _ => None,
        });
        let input = found.next()?;
        let readers = self.parts.iter().flat_map(|p| &p.inputs);
        (readers.filter(|place| **place == Place::Input(input)).count() == 1).then_some(input)
    }

    fn place(&self, program: &Program, id: ValueId) -> Option<Place> {
        if id.index() < program.tensors().len() {
            return Some(Place::Input(id.index()));
        }
        let output = program.results().iter().position(|r| *r == id).map(Place::Output);
        output.or_else(|| self.between.iter().position(|b| *b == id).map(Place::Between))
    }

    /// Element type and local shape of each value between parts, on a rank.
    pub fn tensors(&self, of: &Signature, bound: &Bound, rank: u32) -> Vec<(DType, Vec<u64>)> {
        let program = of.program();
        let all = self.between.iter().filter_map(|id| Some((id, program.ty(*id)?)));
        all.map(|(id, ty)| (ty.dtype, of.local_shape(bound, *id, rank))).collect()
    }
}
