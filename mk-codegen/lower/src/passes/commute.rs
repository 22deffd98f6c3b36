//! Moves row-wise operations before the gathers of their rows: each rank computes its own rows, once, before the send.
//!
//! Factors of blocks are `[K / 128, M]`: tokens are the last dimension, so that they are gathered along it.
//!
//! Precondition: fused epilogues. Postcondition: a row-wise operation reads a gather of rows only if its other operand
//! is not gathered.

use crate::graph::{Group, Kind, OpGraph, Value};
use mk_syntax::Placement;
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

/// The placement of factors of blocks, `[K / 128, M]`, beside one of their rows.
fn mirrored(rows: Placement) -> Placement {
    match rows {
        Placement::Shard(dim @ 0..=1) => Placement::Shard(1 - dim),
        other => other,
    }
}

fn move_before(g: &mut OpGraph, node: NodeIndex) -> Option<()> {
    let operands = g.operands(node);
    let (first, axis) = gathered(g, *operands.first()?)?;
    // A vector is the same for all rows; what has rows must come from a gather, too.
    let rows = g.graph[node].shape.len();
    let factors = |(i, x): (usize, &NodeIndex)| match g.graph[*x].kind {
        Kind::Gather { dim: 1, axis } if i == 1 && g.graph[node].kind == Kind::Restore => {
            Some((g.operands(*x).first().copied()?, axis))
        }
        _ => gathered(g, *x),
    };
    let own = |(i, x): (usize, &NodeIndex)| match g.graph[*x].shape.len() < rows {
        true => Some(*x),
        false => factors((i, x)).filter(|of| of.1 == axis).map(|of| of.0),
    };
    let own: Vec<NodeIndex> = operands.iter().enumerate().map(own).collect::<Option<_>>()?;
    let Value { name, kind, .. } = g.graph[node].clone();
    let mut gather = g.graph[operands[0]].clone();
    let mut placement = g.graph[first].placement.clone();
    if kind == Kind::Factor {
        gather.kind = Kind::Gather { dim: 1, axis };
        placement = placement.into_iter().map(mirrored).collect();
    }
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
        let unread =
            |n: NodeIndex| matches!(g.graph[n].kind, Kind::Gather { .. }) && g.uses(n) == 0;
        if g.graph.contains_node(x) && unread(x) {
            g.graph.remove_node(x);
        }
    }
    Some(())
}
