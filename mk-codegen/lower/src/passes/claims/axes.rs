//! Refuses what no kernel does over several axes of a mesh.

use crate::{
    graph::{Kind, OpGraph, Value},
    passes::error::{LowerError, unsupported},
};
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

const HELP: &str = "let one kernel place its tensors over one axis, and leave out the others: along those, ranks do the same with tensors of their own";

/// Whether a kernel is over one axis, or dense, of sizes that are known, and its rows are shared as passes share them.
///
/// # Errors
/// The first operation that is not.
pub(super) fn check(g: &OpGraph, sizes: &[i32]) -> Result<(), LowerError> {
    if sizes.len() < 2 {
        return Ok(());
    }
    let values = || g.in_order().into_iter().map(|node| (node, &g.graph[node]));
    if let Some((_, value)) = values().find(|(_, v)| !is_dense(&v.kind)) {
        let why = "the pipeline places tensors over several axes of the mesh";
        return Err(unsupported(&value.name, why, HELP));
    }
    let mut extents = values().flat_map(|(_, v)| &v.shape);
    if extents.any(|e| e.runtime_max.is_some()) {
        let why = "a dimension comes with each launch, and tensors are placed over several axes";
        return Err(unsupported("dyn", why, "let it be fixed, or use one axis"));
    }
    values().try_for_each(|(node, value)| sum(g, node, value, sizes))
}

fn is_dense(kind: &Kind) -> bool {
    !matches!(
        kind,
        Kind::GroupedGemm { .. }
            | Kind::Dispatch { .. }
            | Kind::Combine
            | Kind::Attention { .. }
            | Kind::Lse
            | Kind::AttentionStats
            | Kind::AttentionGrad { .. }
            | Kind::AttentionDv
    )
}

/// Owners of a sum share the rows that a rank has: as many on each, where ranks along another axis share them already.
fn sum(g: &OpGraph, node: NodeIndex, value: &Value, sizes: &[i32]) -> Result<(), LowerError> {
    let (Kind::AllReduce { .. } | Kind::ReduceScatter { .. }) = value.kind else { return Ok(()) };
    let Some(of) = g.operands(node).first().map(|of| &g.graph[*of]) else { return Ok(()) };
    let rows = of.placement.iter().position(|p| *p == Placement::Shard(0));
    let (Some(axis), Some(rows)) = (rows, of.shape.first()) else { return Ok(()) };
    if rows.value % sizes[axis] == 0 {
        return Ok(());
    }
    let why = format!(
        "{} rows are not as many on each of {} ranks that share them",
        rows.value, sizes[axis]
    );
    Err(unsupported(&value.name, why, "use a number of rows that these ranks divide"))
}
