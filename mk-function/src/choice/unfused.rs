//! A pipeline taken apart: one operation each, as separate kernels would run it. Elementwise operations stay with the
//! GEMM before them.

use crate::cut;
use mk_syntax::{Bound, Def, Excerpt, Node, Op, Placement, Program, ValueId};
use std::{collections::BTreeSet, fmt};

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
    /// What its results are there: what its last operation makes, and then values before that others read, in their
    /// order.
    pub results: Vec<ValueId>,
}

/// Why a pipeline does not come apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Indivisible {
    /// It is one operation, or a GEMM with what follows it element by element.
    Single,
    /// Some of its sizes come with each launch; those of parts are constants.
    Runtime,
    /// An elementwise operation does not follow the operation before it, and has no kernel by itself.
    Elementwise,
    /// A result is a parameter, or is there twice.
    Results,
    /// An operation is none of a pipeline of its own.
    Unwritten,
    /// Ranks are along several axes.
    Mesh,
}

impl fmt::Display for Indivisible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Indivisible::Single => "it is one operation",
            Indivisible::Runtime => "some of its sizes come with each launch",
            Indivisible::Elementwise => "an elementwise operation has no kernel by itself",
            Indivisible::Results => "a result is a parameter, or is there twice",
            Indivisible::Unwritten => "an operation is no pipeline by itself",
            Indivisible::Mesh => "its ranks are along several axes of a mesh",
        })
    }
}

/// The pipeline as a sequence of kernels, in an order in which they can be launched.
///
/// # Errors
/// [`Indivisible`], for one that stays in one piece.
pub fn parts(program: &Program, bound: &Bound) -> Result<Vec<Part>, Indivisible> {
    let mut groups: Vec<Vec<&Node>> = Vec::new();
    for node in program.nodes().iter().filter(|n| !program.is_implied(n)) {
        let before = groups.last().and_then(|g| g.last()).map(|n| n.result);
        let read = program.written_inputs(node).first().copied();
        let follows = before.is_some() && read == before;
        match groups.last_mut() {
            // Rows that are dispatched stay in the kernel that multiplies them, and those of a sum in the one that adds
            // them up.
            Some(group) if follows && (fuses(&node.op) || joins(program, group, node)) => {
                group.push(node);
            }
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
    let mut seen = BTreeSet::new();
    if !program.results().iter().all(|id| id.index() >= program.tensors().len() && seen.insert(*id))
    {
        return Err(Indivisible::Results);
    }
    let all = groups.iter().enumerate();
    let one = |(i, group): (usize, &Vec<&Node>)| {
        let outside = groups.iter().enumerate().filter(|(other, _)| *other != i);
        let units = outside.flat_map(|(_, g)| g).flat_map(|node| program.unit(node));
        let nodes = units.filter_map(|id| match program.def(id) {
            Some(Def::Node(node)) => Some(node),
            _ => None,
        });
        let read = nodes.flat_map(|node| &node.inputs);
        let read: BTreeSet<ValueId> = read.chain(program.results()).copied().collect();
        part(program, bound, i, group, &read).ok_or(Indivisible::Unwritten)
    };
    all.map(one).collect()
}

/// Whether an operation has no kernel of its own.
fn joins(program: &Program, group: &[&Node], node: &Node) -> bool {
    match node.op {
        // No kernel gathers values with their factors alone.
        Op::Gemm { .. } => group.last().is_some_and(|n| {
            matches!(n.op, Op::Gather { .. }) && program.factors(n.result).is_some()
        }),
        // On the way, where nobody else gets what is quantised.
        Op::Quantize(_) => {
            let of = node.inputs[0];
            let readers = program.nodes().iter().filter(|n| n.inputs.contains(&of)).count();
            let own = readers == 1 && !program.results().contains(&of);
            own && group.iter().any(|n| matches!(n.op, Op::Gemm { .. }))
        }
        Op::GroupedGemm { .. } => group.iter().all(|n| matches!(n.op, Op::Dispatch { .. })),
        Op::Combine | Op::CombineGrad => {
            group.iter().any(|n| matches!(n.op, Op::GroupedGemm { .. }))
        }
        _ => false,
    }
}

fn fuses(op: &Op) -> bool {
    op.is_elementwise() || matches!(op, Op::Swiglu)
}

/// Part `i`, of whose values others `read` some; `None` where its text is not what it shall be. Factors of eight bits
/// are parameters and results beside their values.
fn part(
    program: &Program,
    bound: &Bound,
    i: usize,
    group: &[&Node],
    read: &BTreeSet<ValueId>,
) -> Option<Part> {
    // Which rows fit is not said behind it.
    if group.iter().any(|n| n.op == Op::Dispatch { drops: true }) {
        return None;
    }
    let mut nodes: Vec<ValueId> = group.iter().flat_map(|n| program.unit(n)).collect();
    nodes.sort_unstable();
    let last = group.last()?.result;
    let own = program.factors(last).map(|(id, _)| id);
    let is_last = |id: &ValueId| *id == last || Some(*id) == own;
    let (mut results, before): (Vec<_>, Vec<_>) =
        nodes.iter().filter(|id| is_last(id) || read.contains(id)).partition(|id| is_last(id));
    results.extend(before);
    let name = format!("{}_{}", program.name(), i + 1);
    let excerpt = Excerpt { program, name, nodes, results, flat: false, fixed: true };
    let made = Program::parse(&excerpt.text()).ok()?;
    let sizes = cut::bind(&excerpt, bound, &made)?;
    let (inputs, results) = (excerpt.inputs(), excerpt.results);
    // The text parsed to what it was written from: the same operations, and values and results of the same types.
    let op = |id: &ValueId| match program.def(*id) {
        Some(Def::Node(node)) => Some(node.op),
        _ => None,
    };
    let here = inputs.iter().chain(&results);
    let there = made.tensors().iter().map(|t| t.id).chain(made.results().iter().copied());
    let same = (made.tensors().len(), made.results().len()) == (inputs.len(), results.len())
        && made.nodes().iter().map(|n| Some(n.op)).eq(excerpt.nodes.iter().map(op))
        && here.zip(there).all(|(here, there)| {
            let types = (type_of(&made, &sizes, there), type_of(program, bound, *here));
            types.0.is_some() && types.0 == types.1
        });
    let ops: Vec<&str> = group.iter().map(|n| n.op.name()).collect();
    same.then_some(Part { name: ops.join(" -> "), program: made, bound: sizes, inputs, results })
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
