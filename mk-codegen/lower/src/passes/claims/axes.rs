//! Refuses what no kernel does over several axes of a mesh.

use super::grouped;
use crate::{
    graph::{Group, Kind, OpGraph, Value},
    passes::error::{LowerError, uneven_extent, unsupported},
};
use petgraph::stable_graph::NodeIndex;

const HELP: &str = "let one kernel place its tensors over one axis, and leave out the others: along those, ranks do \
    the same with tensors of their own";

/// Whether a kernel is over one axis, or dense, of sizes that are known, and its rows are shared as passes share them.
///
/// # Errors
/// The first operation that is not.
pub(super) fn check(g: &OpGraph, sizes: &[i32]) -> Result<(), LowerError> {
    if sizes.len() < 2 {
        return Ok(());
    }
    let values = || g.in_order().into_iter().map(|node| (node, &g.graph[node]));
    let experts = values().find(|(_, v)| v.kind.group() == Group::Experts);
    if let (Some((_, value)), true) = (experts, sizes.len() > 2) {
        let why = format!("the pipeline places tensors over {} axes of the mesh", sizes.len());
        return Err(unsupported(&value.name, why, HELP));
    }
    let dense = |v: &Value| matches!(v.kind, Kind::Gemm { .. } | Kind::Gather { .. });
    if let (Some(_), Some((_, value))) = (experts, values().find(|(_, v)| dense(v))) {
        let why = "experts over two axes of the mesh are in the same kernel";
        return Err(unsupported(&value.name, why, "let a kernel of its own have it"));
    }
    let mut extents = values().flat_map(|(_, v)| &v.shape);
    if extents.any(|e| e.runtime_max.is_some()) {
        let why = "a dimension comes with each launch, and tensors are placed over several axes";
        return Err(unsupported("dyn", why, "let it be fixed, or use one axis"));
    }
    values().try_for_each(|(_, value)| nested(value, sizes))?;
    values().try_for_each(|(node, value)| collective(g, node, value, sizes))
}

/// Of axes that share a dimension, all but the innermost have shards of one size.
fn nested(value: &Value, sizes: &[i32]) -> Result<(), LowerError> {
    for (dim, extent) in value.shape.iter().enumerate() {
        let along = value.placement.iter().zip(sizes).filter(|(p, _)| p.cut() == Some(dim));
        let along: Vec<i32> = along.map(|(_, size)| *size).collect();
        let ranks: i32 = along.iter().rev().skip(1).product();
        if extent.value % ranks != 0 {
            return Err(uneven(value, dim, extent.value, ranks));
        }
    }
    Ok(())
}

pub(super) fn uneven(value: &Value, dim: usize, extent: i32, ranks: i32) -> LowerError {
    uneven_extent(&value.name, value.shape.len(), dim, extent, ranks)
}

/// Memory that a collective writes on other ranks has one extent on all of them: ranks along another axis share rows
/// and columns evenly.
fn collective(
    g: &OpGraph,
    node: NodeIndex,
    value: &Value,
    sizes: &[i32],
) -> Result<(), LowerError> {
    let own = match value.kind {
        Kind::Gather { axis, .. }
        | Kind::AllReduce { axis, .. }
        | Kind::ReduceScatter { axis, .. } => axis,
        _ => return Ok(()),
    };
    // Sums of what tokens get back are read, and not written, on other ranks.
    if grouped::tokens_of(g, node).is_some() {
        return Ok(());
    }
    let Some(of) = g.operands(node).first().map(|of| &g.graph[*of]) else { return Ok(()) };
    for (axis, dim) in of.placement.iter().enumerate().filter_map(|(i, p)| Some((i, p.cut()?))) {
        let Some(extent) = of.shape.get(dim).filter(|_| axis != own) else { continue };
        if extent.value % sizes[axis] != 0 {
            return Err(uneven(value, dim, extent.value, sizes[axis]));
        }
    }
    Ok(())
}
