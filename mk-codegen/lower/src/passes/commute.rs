//! Moves row-wise operations before the gathers of their rows: each rank computes its own rows, once, before the send.
//!
//! Precondition: fused epilogues. Postcondition: a row-wise operation reads a gather of rows only if its other operand
//! is not gathered.

use crate::graph::{Group, Kind, OpGraph, Value};
use petgraph::stable_graph::NodeIndex;

/// Runs the pass.
pub(super) fn gathers(g: &mut OpGraph) {
    // Chains are as long as the user wrote them: each operation moves past one gather, and the next then reads that.
    for node in g.in_order() {
        if g.graph[node].kind.group() == Group::Rows {
            move_before(g, node);
        }
    }
}

/// The operand and the axis of a gather of rows.
fn gathered(g: &OpGraph, node: NodeIndex) -> Option<(NodeIndex, usize)> {
    match g.graph[node].kind {
        Kind::Gather { dim: 0, axis } => Some((g.operands(node).first().copied()?, axis)),
        _ => None,
    }
}

fn move_before(g: &mut OpGraph, node: NodeIndex) -> Option<()> {
    let operands = g.operands(node);
    let (first, axis) = gathered(g, *operands.first()?)?;
    // A vector is the same for all rows; what has rows must come from a gather, too.
    let rows = g.graph[node].shape.len();
    let own = |x: &NodeIndex| match g.graph[*x].shape.len() < rows {
        true => Some(*x),
        false => gathered(g, *x).filter(|of| of.1 == axis).map(|of| of.0),
    };
    let own: Vec<NodeIndex> = operands.iter().map(own).collect::<Option<_>>()?;
    let Value { name, kind, .. } = g.graph[node].clone();
    let gather = g.graph[operands[0]].clone();
    let placement = g.graph[first].placement.clone();
    let made = Value { name, kind, placement, ..g.graph[node].clone() };
    let made = g.graph.add_node(made);
    for (i, x) in own.into_iter().enumerate() {
        g.graph.add_edge(x, made, i);
    }
    g.detach(node);
    let value = &mut g.graph[node];
    (value.name, value.kind) = (gather.name, gather.kind);
    g.graph.add_edge(made, node, 0);
    for x in operands {
        if g.graph.contains_node(x) && gathered(g, x).is_some() && g.uses(x) == 0 {
            g.graph.remove_node(x);
        }
    }
    Some(())
}
