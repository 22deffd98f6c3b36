//! A pipeline taken apart: one operation each, as separate kernels would run it. Elementwise operations stay with the
//! product before them.

use mk_syntax::{Bound, Node, Op, Placement, Program, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

/// One kernel of the unfused alternative.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its operations.
    pub name: String,
    /// The pipeline.
    pub program: Program,
    /// Its sizes.
    pub bound: Bound,
    /// What its parameters are in the whole pipeline, in their order: parameters there, or results of earlier parts.
    pub inputs: Vec<ValueId>,
    /// What its result is there.
    pub result: ValueId,
}

/// Why a pipeline does not come apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Indivisible {
    /// It is one operation, or a product with what follows it element by element.
    Single,
    /// Some of its sizes come with each launch; those of parts are constants.
    Runtime,
    /// An elementwise operation does not follow the operation before it, and has no kernel by itself.
    Elementwise,
    /// A value before an elementwise operation is a result, or is read elsewhere, too.
    Shared,
    /// A result is a parameter, or is there twice.
    Results,
    /// An operation is none of a pipeline of its own: a mesh of several axes, say.
    Unwritten,
}

impl fmt::Display for Indivisible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Indivisible::Single => "it is one operation",
            Indivisible::Runtime => "some of its sizes come with each launch",
            Indivisible::Elementwise => "an elementwise operation has no kernel by itself",
            Indivisible::Shared => "a value before an elementwise operation has other readers",
            Indivisible::Results => "a result is a parameter, or is there twice",
            Indivisible::Unwritten => "an operation is no pipeline by itself",
        })
    }
}

/// The pipeline as a sequence of kernels, in an order in which they can be launched.
///
/// # Errors
/// [`Indivisible`], for one that stays in one piece.
pub fn parts(program: &Program, bound: &Bound) -> Result<Vec<Part>, Indivisible> {
    let mut groups: Vec<Vec<&Node>> = Vec::new();
    for node in program.nodes() {
        let before = groups.last().and_then(|g| g.last()).map(|n| n.result);
        let follows = before.is_some() && node.inputs.first().copied() == before;
        match groups.last_mut() {
            Some(group) if fuses(&node.op) && follows => group.push(node),
            _ if fuses(&node.op) => return Err(Indivisible::Elementwise),
            _ => groups.push(vec![node]),
        }
    }
    if groups.len() < 2 {
        return Err(Indivisible::Single);
    }
    if !bound.runtime().is_empty() {
        return Err(Indivisible::Runtime);
    }
    sound(program, &groups)?;
    let all = groups.iter().enumerate();
    all.map(|(i, group)| part(program, bound, i, group).ok_or(Indivisible::Unwritten)).collect()
}

/// Whether the last values of groups, and the parameters, are all that is read by other groups and by the caller.
fn sound(program: &Program, groups: &[Vec<&Node>]) -> Result<(), Indivisible> {
    let n_params = program.tensors().len();
    let mut made = BTreeSet::new();
    for group in groups {
        let inside: Vec<ValueId> = group.iter().map(|n| n.result).collect();
        for (i, node) in group.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|b| inside.get(b));
            // Its first operand is what the node before it made; the others come from without.
            let others = node.inputs.iter().skip(usize::from(before.is_some()));
            if !others.into_iter().all(|id| id.index() < n_params || made.contains(id)) {
                return Err(Indivisible::Shared);
            }
        }
        made.extend(inside.last().copied());
    }
    let mut seen = BTreeSet::new();
    for id in program.results() {
        if id.index() < n_params || !seen.insert(*id) {
            return Err(Indivisible::Results);
        }
        if !made.contains(id) {
            return Err(Indivisible::Shared);
        }
    }
    Ok(())
}

fn fuses(op: &Op) -> bool {
    op.is_elementwise() || matches!(op, Op::Swiglu)
}

/// Part `i`; `None` where its text is not what it shall be.
fn part(program: &Program, bound: &Bound, i: usize, group: &[&Node]) -> Option<Part> {
    let inside: Vec<ValueId> = group.iter().map(|n| n.result).collect();
    let mut params = BTreeMap::new();
    for id in group.iter().flat_map(|n| &n.inputs).filter(|id| !inside.contains(id)) {
        params.insert(*id, declare(program, bound, *id)?);
    }
    let mut stages = Vec::new();
    for (i, node) in group.iter().enumerate() {
        let operands = node.inputs.iter().skip(usize::from(i > 0)).map(|id| name(program, *id));
        stages.push(stage(&node.op, operands.collect())?);
    }
    let inputs: Vec<ValueId> = params.keys().copied().collect();
    let params: Vec<String> = params.into_values().collect();
    let (chain, title) = (stages.join(" -> "), program.name());
    let text = format!("pub fn {title}_{}({}) {{ {chain} }}", i + 1, params.join(", "));
    let made = Program::parse(&text).ok()?;
    let sizes = made.bind(&BTreeMap::new(), &BTreeMap::new()).ok()?;
    let result = *inside.last()?;
    let [out] = made.results() else { return None };
    // What was read is what was written: the same operations, of the same values, with a result of the same type.
    let values: Vec<ValueId> = inputs.iter().chain(&inside).copied().collect();
    let origin = |id: &ValueId| values.get(id.index()).copied();
    let as_here = |(made, here): (&Node, &&Node)| {
        made.op == here.op
            && made.inputs.iter().map(origin).eq(here.inputs.iter().copied().map(Some))
    };
    let same = (made.tensors().len(), made.nodes().len()) == (inputs.len(), group.len())
        && made.nodes().iter().zip(group).all(as_here)
        && type_of(&made, &sizes, *out)? == type_of(program, bound, result)?;
    let ops: Vec<&str> = group.iter().map(|n| n.op.name()).collect();
    let name = ops.join(" -> ");
    same.then_some(Part { name, program: made, bound: sizes, inputs, result })
}

/// Dtype, global shape and placement.
fn type_of<'a>(
    program: &'a Program,
    bound: &'a Bound,
    id: ValueId,
) -> Option<(mk_syntax::DType, &'a [u64], &'a [Placement])> {
    let ty = program.ty(id)?;
    Some((ty.dtype, bound.shape(id)?, &ty.placement))
}

/// What parts call a value: as the pipeline does, or by its number.
fn name(program: &Program, id: ValueId) -> String {
    if let Some(tensor) = program.tensors().get(id.index()) {
        return tensor.name.clone();
    }
    let mut name = format!("v{}", id.index());
    while program.tensor(&name).is_some() {
        name.push('_');
    }
    name
}

fn stage(op: &Op, mut operands: Vec<String>) -> Option<String> {
    match op {
        Op::Gemm { a_transposed, b_transposed } => {
            for (operand, transposed) in operands.iter_mut().zip([a_transposed, b_transposed]) {
                if *transposed {
                    operand.push_str(".t");
                }
            }
        }
        Op::Scale(factor) => operands.push(format!("{factor:?}")),
        Op::Cast(to) => operands.push(to.name().into()),
        _ => {}
    }
    Some(match operands.is_empty() {
        true => op.name().to_string(),
        false => format!("{}({})", op.name(), operands.join(", ")),
    })
}

/// `v3: bf16[8192, 4096] @ shard(0)`.
fn declare(program: &Program, bound: &Bound, id: ValueId) -> Option<String> {
    let ty = program.ty(id)?;
    let [placement] = ty.placement.as_slice() else { return None };
    let shape: Vec<String> = bound.shape(id)?.iter().map(u64::to_string).collect();
    let mut text = format!("{}: {}[{}] @ ", name(program, id), ty.dtype, shape.join(", "));
    // Writing to a String cannot fail.
    let _ = match placement {
        Placement::Shard(d) => write!(text, "shard({d})"),
        Placement::Zigzag(d) => write!(text, "zigzag({d})"),
        Placement::Replicate => write!(text, "replicate"),
        Placement::Partial => write!(text, "partial"),
    };
    Some(text)
}
