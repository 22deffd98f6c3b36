//! Recognises a pipeline of products of ragged rows, and refuses what no pass lowers.

use super::error::{LowerError, unsupported};
use super::shape::{
    grouped::{Grouped, Product, Route, Rows},
    tensor::{Tensor, aligned},
};
use crate::graph::{Kind, OpGraph, Value};
use crate::ir::EpilogueOp;
use mk_abi::DType;
use mk_syntax::{Placement, RAGGED_BLOCK};
use petgraph::stable_graph::NodeIndex;

const CATALOGUE: &str = "one kernel holds `grouped_gemm`s of the same `ragged` rows, or of the same `dispatch`, one after the other, with elementwise \
     operations behind each";

/// Most experts that a token has.
const MAX_SLOTS: i32 = 8;

/// The products of a pipeline; `None` for one that has none.
///
/// # Errors
/// For a pipeline that has other operations, too, and for sizes and placements that no pass lowers.
pub(super) fn grouped(g: &OpGraph, ranks: u32) -> Result<Option<Grouped>, LowerError> {
    let is_product = |n: &NodeIndex| matches!(g.graph[*n].kind, Kind::GroupedGemm { .. });
    let nodes: Vec<NodeIndex> = g.graph.node_indices().filter(is_product).collect();
    let sends = |n: &NodeIndex| g.graph[*n].kind == Kind::Dispatch;
    let sent: Vec<NodeIndex> = g.graph.node_indices().filter(sends).collect();
    let Some(first) = nodes.first().copied() else {
        let Some(n) = sent.first() else { return Ok(None) };
        let why = "no product reads the rows of experts that it makes";
        return Err(unsupported(
            &g.graph[*n].name,
            why,
            "write `dispatch(x, ids) -> grouped_gemm(w)`",
        ));
    };
    let name = g.graph[first].name.clone();
    let refuse = |n: NodeIndex, why: String| unsupported(&g.graph[n].name, why, CATALOGUE);
    let [axis] = g.axes.as_slice() else {
        let why = format!("the mesh has the axes {}", g.axes.join(", "));
        return Err(unsupported("mesh", why, "use one axis"));
    };
    let known = |n: &NodeIndex| is_product(n) || sends(n) || g.graph[*n].kind == Kind::Param;
    if let Some(other) = g.graph.node_indices().find(|n| !known(n)) {
        return Err(refuse(other, format!("a `{name}` is in the same pipeline")));
    }
    let params: Vec<NodeIndex> =
        g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    let place = |n: NodeIndex| params.iter().position(|p| *p == n);
    if let Some(other) = sent.get(1) {
        return Err(refuse(*other, "another `dispatch` is in the same pipeline".into()));
    }
    let sent = sent.first().copied();
    let route = match sent.map(|n| (n, g.operands(n))) {
        None => None,
        Some((n, of)) => match of.iter().map(|x| place(*x)).collect::<Vec<_>>()[..] {
            [Some(tokens), Some(ids)] => Some(Route::Ids { tokens, ids }),
            _ => return Err(refuse(n, "its tokens are made by the pipeline".into())),
        },
    };
    let mut products = Vec::new();
    let mut counts = None;
    for node in &nodes {
        let operands = g.operands(*node);
        let [x, b, rows, ref extras @ ..] = operands[..] else {
            return Err(refuse(*node, "an operand is missing".into()));
        };
        let (Some(b), Some(rows)) = (place(b), place(rows)) else {
            return Err(refuse(*node, "its matrices are not the caller's".into()));
        };
        if *counts.get_or_insert(rows) != rows {
            return Err(refuse(*node, "its rows are not those of the product before it".into()));
        }
        let rows = match (place(x), nodes.iter().position(|n| *n == x)) {
            (Some(param), _) => Rows::Given(param),
            (None, Some(i)) if i < products.len() => Rows::Made(i),
            (None, None) if Some(x) == sent => Rows::Dispatched,
            _ => return Err(refuse(*node, "its rows come from elsewhere".into())),
        };
        let Some(extras) = extras.iter().map(|x| place(*x)).collect() else {
            return Err(refuse(*node, "an operand of its epilogue is not the caller's".into()));
        };
        let result = g.results.iter().position(|r| r == node);
        let out = tensor(&g.graph[*node], result.map_or("h", |r| &g.result_names[r]));
        let read = g.graph.neighbors(*node).next().is_some();
        let epilogue = g.graph[*node].kind.epilogue().unwrap_or_default().to_vec();
        products.push(Product { rows, b, epilogue, extras, out, result, read });
    }
    let returned = |n: &NodeIndex| g.results.iter().filter(|r| *r == n).count();
    if let Some(n) = g.results.iter().find(|n| params.contains(n) || returned(n) > 1) {
        return Err(refuse(*n, "it is a result twice, or a parameter is one".into()));
    }
    if let Some(n) = g.results.iter().find(|n| Some(**n) == sent) {
        return Err(refuse(*n, "its rows are a result, and kept for products only".into()));
    }
    let results = g.results.iter().zip(&g.result_names);
    let grouped = Grouped {
        name: g.name.clone(),
        axis: axis.clone(),
        params: params.iter().map(|n| tensor(&g.graph[*n], &g.graph[*n].name)).collect(),
        route: route.unwrap_or(Route::Counts(counts.unwrap_or(0))),
        experts: products.first().map_or(0, |p| g.graph[params[p.b]].shape[0].value),
        products,
        results: results.map(|(n, name)| tensor(&g.graph[*n], name)).collect(),
    };
    check(&grouped, &name, ranks as i32)?;
    Ok(Some(grouped))
}

fn check(g: &Grouped, name: &str, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    let all = g.params.iter().flat_map(|t| &t.shape);
    if let Some(e) = all.clone().find(|e| e.runtime_max.is_some()) {
        let name = e.symbol.as_deref().unwrap_or("a dimension");
        return refuse(format!("`{name}` comes with each launch"), "let all symbols be fixed");
    }
    let experts = g.experts;
    let of_experts = match g.route {
        Route::Counts(counts) => &g.params[counts],
        Route::Ids { ids, .. } => {
            dispatched(g, ids, world)?;
            &g.params[g.products[0].b]
        }
    };
    if !of_experts.even(0, world) {
        let why = format!("{experts} experts over {world} ranks");
        return refuse(why, "let them be a multiple of the ranks");
    }
    for p in &g.products {
        let (rows, block) = (p.out.widest(0, world), RAGGED_BLOCK as i32);
        if !p.out.even(0, world) || rows % block != 0 {
            let why = format!("{} rows over {world} ranks", p.out.shape[0].value);
            return refuse(why, "let every rank have whole blocks of 128 of them");
        }
        let b = &g.params[p.b];
        let depth = b.shape[1].value;
        let columns = b.shape.last().map_or(0, |e| e.value);
        for (n, dtype) in [(depth, b.dtype), (columns, b.dtype), (columns, p.out.dtype)] {
            if aligned(n, dtype.size_bytes()) != n {
                let why = format!("rows of {n} elements");
                return refuse(why, "let depth and columns be multiples of 8");
            }
        }
        let stacked = b.shape.len() == 4;
        if stacked != (p.epilogue.first() == Some(&EpilogueOp::Swiglu)) {
            let why = "gates and ups are results of their own".into();
            return refuse(why, "write `swiglu` behind `grouped_gemm(w)` with `w: [E, K, 2, N]`");
        }
        if p.read && p.out.dtype == DType::F32 {
            return refuse(
                "a product reads f32 rows".into(),
                "leave out the `cast(f32)` before it",
            );
        }
    }
    Ok(())
}

/// Tokens and the experts that they name.
fn dispatched(g: &Grouped, ids: usize, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported("dispatch", why, help));
    let ids = &g.params[ids];
    if world > 1 && ids.placement != Placement::Replicate {
        let why = "tokens go to experts of other ranks".into();
        return refuse(why, "no pass lowers that yet: use one rank, or `@ replicate` everywhere");
    }
    let [tokens, slots] = [0, 1].map(|d| ids.shape[d].value);
    if slots > MAX_SLOTS || slots > g.experts {
        let why = format!("{slots} experts of each token, of {}", g.experts);
        return refuse(why, "let a token have 1 to 8 experts, and no more than there are");
    }
    if i64::from(tokens) * i64::from(slots) > 1 << 24 {
        let why = format!("{tokens} tokens of {slots} experts each");
        return refuse(why, "a table has at most 2^24 entries: give each launch fewer tokens");
    }
    Ok(())
}

fn tensor(v: &Value, name: &str) -> Tensor {
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: name.into(), dtype: v.dtype, shape: v.shape.clone(), placement }
}
