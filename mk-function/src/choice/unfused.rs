//! A pipeline taken apart: one operation each, as separate kernels would run it. Elementwise operations stay with the
//! GEMM before them.

use mk_syntax::{Bound, Def, Excerpt, Node, Op, Placement, Program, ValueId};
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
        let scaled =
            group.iter().any(|n| program.unit(n).len() > 1 || matches!(n.op, Op::Dequantize(_)));
        let made = match scaled {
            true => scaled_part(program, bound, i, group, &read),
            false => part(program, bound, i, group, &read),
        };
        made.ok_or(Indivisible::Unwritten)
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

/// Part `i`, of whose values others `read` some; `None` where its text is not what it shall be.
fn part(
    program: &Program,
    bound: &Bound,
    i: usize,
    group: &[&Node],
    read: &BTreeSet<ValueId>,
) -> Option<Part> {
    let inside: Vec<ValueId> = group.iter().map(|n| n.result).collect();
    let mut params = BTreeMap::new();
    for id in group.iter().flat_map(|n| &n.inputs).filter(|id| !inside.contains(id)) {
        params.insert(*id, declare(program, bound, *id)?);
    }
    let mut stages = Vec::new();
    for (i, node) in group.iter().enumerate() {
        let mut operands = node.inputs.iter().skip(usize::from(i > 0)).map(|id| name(program, *id));
        stages.push(match node.op {
            // Whose rows they are is said once, in front of the first product.
            // Which rows fit is not said behind it.
            Op::Dispatch { drops: true } => return None,
            Op::Dispatch { .. } => {
                let rows = bound.shape(node.result)?.first()?;
                let operands: Vec<String> = operands.collect();
                format!("dispatch({}, capacity = {rows})", operands.join(", "))
            }
            Op::GroupedGemm { transposed } => {
                let turned = if transposed { ".t" } else { "" };
                let x = if i == 0 { Some(operands.next()?) } else { None };
                let (w, of) = (operands.next()?, operands.next()?);
                match x {
                    Some(x) => format!("ragged({x}, {of}) -> grouped_gemm({w}{turned})"),
                    None => format!("grouped_gemm({w}{turned})"),
                }
            }
            Op::Combine | Op::CombineGrad => {
                format!("{}({})", node.op.name(), operands.nth(1)?)
            }
            _ => stage(&node.op, operands.collect())?,
        });
    }
    let inputs: Vec<ValueId> = params.keys().copied().collect();
    let params: Vec<String> = params.into_values().collect();
    let (last, before) = inside.split_last()?;
    let shared = before.iter().copied().filter(|id| read.contains(id));
    let results: Vec<ValueId> = std::iter::once(*last).chain(shared).collect();
    let again = group.iter().flat_map(|node| node.inputs.iter().skip(1));
    let named: BTreeSet<ValueId> =
        results.iter().filter(|_| results.len() > 1).chain(again).copied().collect();
    let (body, title) = (body(program, &inside, &results, &named, &stages), program.name());
    let text = format!("pub fn {title}_{}({}) {{ {body} }}", i + 1, params.join(", "));
    let made = Program::parse(&text).ok()?;
    let sizes = made.bind(&BTreeMap::new(), &BTreeMap::new()).ok()?;
    // What was read is what was written: the same operations, of the same values, with a result of the same type.
    let values: Vec<ValueId> = inputs.iter().chain(&inside).copied().collect();
    let origin = |id: &ValueId| values.get(id.index()).copied();
    let as_here = |(made, here): (&Node, &&Node)| {
        made.op == here.op
            && made.inputs.iter().map(origin).eq(here.inputs.iter().copied().map(Some))
    };
    let same = (made.tensors().len(), made.nodes().len()) == (inputs.len(), group.len())
        && made.nodes().iter().zip(group).all(as_here)
        && made.results().iter().map(origin).eq(results.iter().copied().map(Some))
        && results.iter().zip(made.results()).all(|(here, made_id)| {
            let types = (type_of(&made, &sizes, *made_id), type_of(program, bound, *here));
            types.0.is_some() && types.0 == types.1
        });
    let ops: Vec<&str> = group.iter().map(|n| n.op.name()).collect();
    let name = ops.join(" -> ");
    same.then_some(Part { name, program: made, bound: sizes, inputs, results })
}

/// The same of a part with values of eight bits that have factors, which are parameters and results beside them.
fn scaled_part(
    program: &Program,
    bound: &Bound,
    i: usize,
    group: &[&Node],
    read: &BTreeSet<ValueId>,
) -> Option<Part> {
    let mut nodes: Vec<ValueId> = group.iter().flat_map(|n| program.unit(n)).collect();
    nodes.sort_unstable();
    let last = group.last()?.result;
    let own = program.factors(last).map(|(id, _)| id);
    let wanted = |id: &ValueId| *id == last || Some(*id) == own || read.contains(id);
    let results: Vec<ValueId> = nodes.iter().copied().filter(wanted).collect();
    let name = format!("{}_{}", program.name(), i + 1);
    let excerpt = Excerpt { program, name, nodes, results, flat: false, fixed: true };
    let made = Program::parse(&excerpt.text()).ok()?;
    let (inputs, results) = (excerpt.inputs(), excerpt.results);
    let shapes = inputs.iter().zip(made.tensors());
    let shapes = shapes.map(|(id, t)| Some((t.name.clone(), bound.shape(*id)?.to_vec())));
    let sizes = made.bind(&BTreeMap::new(), &shapes.collect::<Option<_>>()?).ok()?;
    let here = inputs.iter().chain(&results);
    let there = made.tensors().iter().map(|t| t.id).chain(made.results().iter().copied());
    let same = (made.tensors().len(), made.results().len()) == (inputs.len(), results.len())
        && here.zip(there).all(|(here, there)| {
            let types = (type_of(&made, &sizes, there), type_of(program, bound, *here));
            types.0.is_some() && types.0 == types.1
        });
    let ops: Vec<&str> = group.iter().map(|n| n.op.name()).collect();
    same.then_some(Part { name: ops.join(" -> "), program: made, bound: sizes, inputs, results })
}

/// The body of a part: one chain, which the values that are `named` divide.
fn body(
    program: &Program,
    inside: &[ValueId],
    results: &[ValueId],
    named: &BTreeSet<ValueId>,
    stages: &[String],
) -> String {
    let (mut text, mut chain) = (String::new(), String::new());
    for (id, stage) in inside.iter().zip(stages) {
        chain = if chain.is_empty() { stage.clone() } else { format!("{chain} -> {stage}") };
        if named.contains(id) {
            let name = name(program, *id);
            // Writing to a String cannot fail.
            let _ = write!(text, "let {name} = {chain}; ");
            chain = name;
        }
    }
    match results {
        [_] => text + &chain,
        _ => {
            let names: Vec<String> = results.iter().map(|id| name(program, *id)).collect();
            format!("{text}({})", names.join(", "))
        }
    }
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
