//! Claims exchanges of parts of the sequence for heads, and of heads for parts of the sequence, that stand alone.

use super::{axes::uneven, builder::Claims};
use crate::{
    graph::{Kind, OpGraph},
    passes::{
        error::{LowerError, unsupported},
        shape::{
            ids::Param,
            kernel::{AllToAll, Op},
            tensor::Cut,
        },
    },
};
use petgraph::stable_graph::NodeIndex;

const HELP: &str = "exchange the caller's `[B, S, H, D]`: `all_to_all(split = 2, concat = 1)` makes heads of parts of \
    the sequence, `all_to_all(split = 1, concat = 2)` turns it back; a function (`mk.compile`) cuts a pipeline into \
    kernels where one cannot hold it";

fn exchanges(kind: &Kind) -> bool {
    matches!(kind, Kind::AllToAll { .. })
}

/// Whether nothing stands beside exchanges.
///
/// # Errors
/// The first operation that does.
pub(super) fn together(g: &OpGraph) -> Result<(), LowerError> {
    let values = || g.graph.node_weights();
    let Some(first) = values().find(|v| exchanges(&v.kind)) else { return Ok(()) };
    let beside = values().find(|v| v.kind != Kind::Param && !exchanges(&v.kind));
    beside.map_or(Ok(()), |other| {
        let why = format!("an `{}` is in the same pipeline", first.name);
        Err(unsupported(&other.name, why, HELP))
    })
}

/// All of them.
///
/// # Errors
/// For operands that are not the caller's, results that are given twice, and as [`add`].
pub(super) fn claim(claims: &mut Claims<'_>) -> Result<(), LowerError> {
    let g = claims.g;
    for node in claims.all(exchanges) {
        let name = &claims.value(node).name;
        let of = g.operands(node).first().copied();
        let Some((of, param)) = of.and_then(|of| Some((of, claims.param(of)?))) else {
            return Err(unsupported(name, "its operand is not the caller's", HELP));
        };
        let mut given = g.results.iter().enumerate().filter(|(_, n)| **n == node);
        let (Some((result, _)), None) = (given.next(), given.next()) else {
            return Err(unsupported(name, "it is no result, or one twice", HELP));
        };
        add(claims, node, of, param, result)?;
    }
    Ok(())
}

/// An exchange of value `of`, which is a parameter.
///
/// # Errors
/// For other dimensions, and for sizes that ranks do not share evenly.
pub(super) fn add(
    claims: &mut Claims<'_>,
    node: NodeIndex,
    of: NodeIndex,
    param: Param,
    result: usize,
) -> Result<(), LowerError> {
    let (value, before) = (claims.value(node), claims.value(of));
    let name = &value.name;
    let Kind::AllToAll { axis, split, concat } = value.kind else { return Ok(()) };
    let dims = value.shape.len();
    if dims != 4 || ![[1, 2], [2, 1]].contains(&[split, concat]) {
        let why = format!("it exchanges dimensions {concat} and {split} of {dims}");
        return Err(unsupported(name, why, HELP));
    }
    if value.shape.iter().any(|e| e.runtime_max.is_some()) {
        let why = "a dimension comes with each launch, and ranks exchange parts of it";
        return Err(unsupported(name, why, "let it be fixed"));
    }
    let mut shared = claims.kernel.params[param].clone();
    for (other, (p, ranks)) in before.placement.iter().zip(&claims.sizes).enumerate() {
        let Some(dim) = p.cut().filter(|_| other != axis) else { continue };
        if before.shape[dim].value % ranks != 0 {
            return Err(uneven(before, dim, before.shape[dim].value, *ranks));
        }
        shared.within_axis(other);
    }
    let ranks = claims.sizes.get(axis).copied().unwrap_or(1);
    let heads = shared.shape[2].value;
    if heads % ranks != 0 {
        let why = format!("{heads} heads over {ranks} ranks");
        return Err(unsupported(name, why, "let them be a multiple of the ranks"));
    }
    shared.cuts = vec![Cut { dim: 1, axis, ranks, zigzag: false }];
    let back = split == 1;
    claims.add(Op::AllToAll(AllToAll { param, shared, axis, back, result }), [result]);
    Ok(())
}
