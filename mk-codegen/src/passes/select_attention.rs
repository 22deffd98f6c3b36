//! Recognises a pipeline that is one attention, and refuses what no pass lowers.

use super::error::{LowerError, unsupported};
use super::shape::{attention::Attention, tensor::Tensor};
use crate::graph::{Kind, OpGraph, Value};
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

const CATALOGUE: &str = "one kernel holds one `attention` of the caller's tensors, whose result, with its `lse` where wanted, the caller gets";

/// The attention of a pipeline; `None` for one that has none.
///
/// # Errors
/// For a pipeline that has more than one attention, or other operations, and for sizes and placements that no pass lowers.
pub(super) fn attention(g: &OpGraph, ranks: u32) -> Result<Option<Attention>, LowerError> {
    let is = |n: &NodeIndex| matches!(g.graph[*n].kind, Kind::Attention { .. });
    let Some(node) = g.graph.node_indices().find(is) else { return Ok(None) };
    let [axis] = g.axes.as_slice() else {
        let why = format!("the mesh has the axes {}", g.axes.join(", "));
        return Err(unsupported("mesh", why, "use one axis"));
    };
    let other = g
        .graph
        .node_indices()
        .find(|n| *n != node && !matches!(g.graph[*n].kind, Kind::Param | Kind::Lse));
    if let Some(other) = other {
        let name = &g.graph[other].name;
        return Err(unsupported(name, "an `attention` is in the same pipeline", CATALOGUE));
    }
    let params: Vec<NodeIndex> =
        g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    let place = |n: NodeIndex| params.iter().position(|p| *p == n);
    let found: Option<Vec<usize>> = g.operands(node).into_iter().map(place).collect();
    let (Kind::Attention { causal, scale, ring }, Some([q, k, v])) =
        (&g.graph[node].kind, found.as_deref().and_then(|x| <[usize; 3]>::try_from(x).ok()))
    else {
        return Err(unsupported("attention", "its operands are not the caller's", CATALOGUE));
    };
    if params.len() != 3 {
        let why = "it attends to a tensor twice, or the pipeline has others";
        return Err(unsupported("attention", why, CATALOGUE));
    }
    let results = g.results.iter().zip(&g.result_names);
    let mut attention = Attention {
        name: g.name.clone(),
        axis: axis.clone(),
        params: params.iter().map(|n| tensor(&g.graph[*n], &g.graph[*n].name)).collect(),
        operands: [q, k, v],
        results: results.map(|(n, name)| tensor(&g.graph[*n], name)).collect(),
        o: None,
        lse: None,
        causal: *causal,
        scale: *scale,
        ring: *ring,
    };
    for (i, n) in g.results.iter().enumerate() {
        let slot = match g.graph[*n].kind {
            Kind::Lse => &mut attention.lse,
            _ => &mut attention.o,
        };
        if slot.replace(i).is_some() || params.contains(n) {
            let why = "it is a result twice, or a parameter is one";
            return Err(unsupported("attention", why, CATALOGUE));
        }
    }
    check(&attention, ranks as i32)?;
    Ok(Some(attention))
}

fn check(a: &Attention, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported("attention", why, help));
    if a.o.is_none() {
        return refuse("its result is no result of the pipeline".into(), CATALOGUE);
    }
    let all = a.params.iter().flat_map(|t| &t.shape);
    if let Some(e) = all.clone().find(|e| e.runtime_max.is_some()) {
        let name = e.symbol.as_deref().unwrap_or("a dimension");
        return refuse(format!("`{name}` comes with each launch"), "let all symbols be fixed");
    }
    let [q, k, _] = a.operands.map(|i| &a.params[i]);
    let (heads, groups, depth) = (q.shape[2].value, k.shape[2].value, q.shape[3].value);
    if !matches!(depth, 64 | 128) {
        let why = format!("its heads have {depth} elements");
        return refuse(why, "use 64 or 128; 192 and 256 are not supported yet");
    }
    if heads % groups != 0 {
        let why = format!("{heads} heads of queries cannot share {groups} of keys evenly");
        return refuse(why, "let the heads of queries be a multiple of those of keys");
    }
    if q.placement == Placement::Shard(2) && (heads % world != 0 || groups % world != 0) {
        let why = format!("{heads} heads of queries and {groups} of keys over {world} ranks");
        return refuse(why, "let both be multiples of the ranks");
    }
    Ok(())
}

fn tensor(v: &Value, name: &str) -> Tensor {
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: name.into(), dtype: v.dtype, shape: v.shape.clone(), placement }
}
