//! A pipeline taken apart: one operation each, as separate kernels would run it. Elementwise operations stay with the
//! product before them.

use crate::{Bound, Program};
use mk_syntax::{Node, Op, Placement, ValueId};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One kernel of the unfused alternative.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its operations.
    pub name: String,
    /// The pipeline.
    pub program: Program,
    /// Its sizes.
    pub bound: Bound,
}

/// The pipeline as a sequence of kernels; `None` for one that is a single kernel already, or whose operations are no
/// chain.
pub fn parts(program: &Program, bound: &Bound) -> Option<Vec<Part>> {
    let mut groups: Vec<Vec<&Node>> = Vec::new();
    for node in program.nodes() {
        let before = groups.last().and_then(|g| g.last()).map(|n| n.result);
        let follows = before.is_some() && node.inputs.first().copied() == before;
        match groups.last_mut() {
            Some(group) if fuses(&node.op) && follows => group.push(node),
            // An elementwise operation of its own would be a kernel of somebody else's.
            _ if fuses(&node.op) => return None,
            _ => groups.push(vec![node]),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    groups.iter().map(|group| part(program, bound, group)).collect()
}

fn fuses(op: &Op) -> bool {
    op.is_elementwise() || matches!(op, Op::Swiglu)
}

fn part(program: &Program, bound: &Bound, group: &[&Node]) -> Option<Part> {
    let inside: Vec<ValueId> = group.iter().map(|n| n.result).collect();
    let mut params = BTreeMap::new();
    for id in group.iter().flat_map(|n| &n.inputs).filter(|id| !inside.contains(id)) {
        params.insert(id.index(), declare(program, bound, *id)?);
    }
    let mut stages = Vec::new();
    for (i, node) in group.iter().enumerate() {
        let operands: Vec<String> = node
            .inputs
            .iter()
            .skip(usize::from(i > 0))
            .map(|id| format!("v{}", id.index()))
            .collect();
        stages.push(stage(&node.op, operands)?);
    }
    let params: Vec<String> = params.into_values().collect();
    let chain = stages.join(" -> ");
    let text = format!("pub fn part({}) {{ {chain} }}", params.join(", "));
    let program = Program::parse(&text).ok()?;
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).ok()?;
    let names: Vec<&str> = group.iter().map(|n| n.op.name()).collect();
    Some(Part { name: names.join(" -> "), program, bound })
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
    let mut text = format!("v{}: {}[{}] @ ", id.index(), ty.dtype, shape.join(", "));
    // Writing to a String cannot fail.
    let _ = match placement {
        Placement::Shard(d) => write!(text, "shard({d})"),
        Placement::Replicate => write!(text, "replicate"),
        Placement::Partial => write!(text, "partial"),
    };
    Some(text)
}
