//! Recognises a pipeline of products of ragged rows, and refuses what no pass lowers.

use super::error::{LowerError, unsupported};
use super::shape::{
    grouped::{Combine, Grouped, Product, Route, Rows},
    tensor::{Tensor, aligned},
};
use crate::graph::{Kind, OpGraph, Value};
use mk_abi::DType;
use mk_plan::EpilogueOp;
use mk_syntax::{Placement, RAGGED_BLOCK};
use petgraph::stable_graph::NodeIndex;

const CATALOGUE: &str = "one kernel holds `grouped_gemm`s of the same `ragged` or dispatched rows, one after the other, with elementwise \
     operations behind each, and `combine` behind the last";

/// The products of a pipeline; `None` for one that has none.
///
/// # Errors
/// For a pipeline that has other operations, too, and for sizes and placements that no pass lowers.
pub(super) fn grouped(g: &OpGraph, ranks: u32) -> Result<Option<Grouped>, LowerError> {
    let is_product = |n: &NodeIndex| matches!(g.graph[*n].kind, Kind::GroupedGemm { .. });
    let nodes: Vec<NodeIndex> = g.graph.node_indices().filter(is_product).collect();
    let Some(first) = nodes.first().copied() else { return Ok(None) };
    let name = g.graph[first].name.clone();
    let refuse = |n: NodeIndex, why: String| unsupported(&g.graph[n].name, why, CATALOGUE);
    let known = |n: &NodeIndex| {
        is_product(n)
            || matches!(g.graph[*n].kind, Kind::Param | Kind::Dispatch { .. } | Kind::Combine)
    };
    if let Some(other) = g.graph.node_indices().find(|n| !known(n)) {
        return Err(refuse(other, format!("a `{name}` is in the same pipeline")));
    }
    let params: Vec<NodeIndex> =
        g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    let place = |n: NodeIndex| params.iter().position(|p| *p == n);
    let mut products = Vec::new();
    let mut counts = None;
    let only = |kind: fn(&Kind) -> bool| {
        let mut all = g.graph.node_indices().filter(|n| kind(&g.graph[*n].kind));
        let (one, more) = (all.next(), all.next());
        more.map_or(Ok(one), |n| Err(refuse(n, "there is another one".into())))
    };
    let (dispatch, combine) =
        (only(|k| matches!(k, Kind::Dispatch { .. }))?, only(|k| *k == Kind::Combine)?);
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
            _ if Some(x) == dispatch => Rows::Dispatched,
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
    let results = g.results.iter().zip(&g.result_names);
    // Counts have one dimension, and a route two.
    let routed = counts.is_some_and(|i: usize| g.graph[params[i]].shape.len() == 2);
    let route = match dispatch.is_some() || routed {
        true => Some(route(g, &nodes, &params, dispatch, combine)?),
        false => None,
    };
    let grouped = Grouped {
        route,
        name: g.name.clone(),
        params: params.iter().map(|n| tensor(&g.graph[*n], &g.graph[*n].name)).collect(),
        counts: counts.unwrap_or(0),
        products,
        results: results.map(|(n, name)| tensor(&g.graph[*n], name)).collect(),
    };
    check(&grouped, &name, ranks as i32)?;
    Ok(Some(grouped))
}

/// Where dispatched rows come from, and go to.
fn route(
    g: &OpGraph,
    products: &[NodeIndex],
    params: &[NodeIndex],
    dispatch: Option<NodeIndex>,
    combine: Option<NodeIndex>,
) -> Result<Route, LowerError> {
    let refuse =
        |n: NodeIndex, why: &str| unsupported(&g.graph[n].name, why.to_string(), CATALOGUE);
    let place = |n: NodeIndex| params.iter().position(|p| *p == n);
    let operand = |n: NodeIndex, i: usize| g.operands(n).get(i).copied();
    let mut x = None;
    if let Some(dispatch) = dispatch {
        if g.results.contains(&dispatch) {
            return Err(refuse(dispatch, "its rows are a result"));
        }
        x = operand(dispatch, 0).and_then(place);
        if x.is_none() {
            return Err(refuse(dispatch, "its tokens are not the caller's"));
        }
    }
    let experts = operand(products[0], 1).map_or(0, |w| g.graph[w].shape[0].value);
    let drops = dispatch.is_some_and(|n| g.graph[n].kind == Kind::Dispatch { drops: true });
    let Some(combine) = combine else { return Ok(Route { x, experts, drops, combine: None }) };
    let of = operand(combine, 0).and_then(|y| products.iter().position(|p| *p == y));
    let Some(of) = of.filter(|of| of + 1 == products.len()) else {
        return Err(refuse(combine, "its rows are not those of the last product"));
    };
    if g.results.contains(&products[of]) {
        return Err(refuse(products[of], "its rows are a result, and are combined"));
    }
    let Some(weights) = operand(combine, 2).and_then(place) else {
        return Err(refuse(combine, "its weights are not the caller's"));
    };
    let Some(result) = g.results.iter().position(|r| *r == combine) else {
        return Err(refuse(combine, "its tokens are no result"));
    };
    let out = tensor(&g.graph[combine], &g.result_names[result]);
    Ok(Route { x, experts, drops, combine: Some(Combine { of, weights, out, result }) })
}

fn check(g: &Grouped, name: &str, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    let all = g.params.iter().flat_map(|t| &t.shape);
    if let Some(e) = all.clone().find(|e| e.runtime_max.is_some()) {
        let name = e.symbol.as_deref().unwrap_or("a dimension");
        return refuse(format!("`{name}` comes with each launch"), "let all symbols be fixed");
    }
    let counts = &g.params[g.counts];
    if let Some(route) = &g.route {
        let experts = route.experts;
        if counts.shape[1].value > experts {
            let why = format!("{} experts of each token, of {experts}", counts.shape[1].value);
            return refuse(why, "a token goes to each expert once");
        }
        let least = (experts + world - 1) / world;
        if (world - 1) * least >= experts {
            let why = format!(
                "{experts} experts over {world} ranks: of {least} each, and some have none"
            );
            return refuse(why, "let every rank have one, or ranks be fewer");
        }
        let blocks = g.products[0].out.widest(0, world) / RAGGED_BLOCK as i32;
        if route.drops && blocks < least {
            let why = format!("a capacity of {blocks} blocks a rank, for {least} experts");
            return refuse(why, "let each expert keep a block of 128 rows at least");
        }
        if let Some(x) = route.x.map(|x| &g.params[x])
            && !x.in_bulk()
        {
            let why = format!("tokens of {} elements", x.shape[1].value);
            return refuse(why, "let their columns be multiples of 8");
        }
    }
    if g.route.is_none() && !counts.even(0, world) {
        let why = format!("{} experts over {world} ranks", counts.shape[0].value);
        let help = "let them be a multiple of the ranks, or let `dispatch(x, ids)` make the counts, which takes others";
        return refuse(why, help);
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

fn tensor(v: &Value, name: &str) -> Tensor {
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: name.into(), dtype: v.dtype, shape: v.shape.clone(), placement }
}
