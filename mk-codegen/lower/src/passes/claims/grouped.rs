//! Claims rows of experts, the GEMMs of them, and their way back to tokens.

use super::builder::{Claims, tensor};
use crate::{
    graph::{Extent, Kind, OpGraph},
    passes::{
        error::{LowerError, uneven_extent, unsupported},
        shape::{
            grouped::{Combine, Combined, Grads, Grouped, Ragged, Route, Rows, Wgrad},
            ids::{Extra, OpId, Param, Reduce},
            kernel::{Kernel, Op},
            tensor::{Tensor, aligned},
        },
    },
};
use mk_abi::DType;
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, gated, mma_step, quantized};
use mk_syntax::{RAGGED_BLOCK, SCALE_BLOCK};
use petgraph::stable_graph::NodeIndex;

const CATALOGUE: &str = "one kernel holds `grouped_gemm`s of the same `ragged` or dispatched rows, one after the \
     other, with elementwise operations behind each, and `combine` behind the last";

/// Rows of experts that were claimed, and what is made of them.
pub(super) struct Claimed {
    ragged: OpId,
    gemms: Vec<NodeIndex>,
    wgrads: Vec<NodeIndex>,
    dispatch: Option<NodeIndex>,
    factors: Option<NodeIndex>,
    dropped: Option<NodeIndex>,
    combine: Option<NodeIndex>,
    grads: Option<NodeIndex>,
    weighed: Option<NodeIndex>,
    slots: Option<NodeIndex>,
}

fn refuse(claims: &Claims<'_>, node: NodeIndex, why: impl Into<String>) -> LowerError {
    unsupported(&claims.value(node).name, why, CATALOGUE)
}

/// The rows of a pipeline's grouped GEMMs; `None` for one that has none.
///
/// # Errors
/// For rows of several routings, and for what does not begin or end with the caller's tensors.
pub(super) fn rows(claims: &mut Claims<'_>) -> Result<Option<Claimed>, LowerError> {
    let g = claims.g;
    let gemms = claims.all(|k| matches!(k, Kind::GroupedGemm { .. }));
    let wgrads = claims.all(|k| matches!(k, Kind::GroupedWgrad { .. }));
    let Some(first) = gemms.first().or(wgrads.first()).copied() else { return Ok(None) };
    if let (Some(wgrad), false) = (wgrads.first(), gemms.is_empty()) {
        return Err(refuse(claims, *wgrad, "products of the same rows stand beside it"));
    }
    let only = |kind: fn(&Kind) -> bool| match claims.all(kind)[..] {
        [_, more, ..] => Err(refuse(claims, more, "there is another one")),
        [one] => Ok(Some(one)),
        [] => Ok(None),
    };
    let dispatch = only(|k| matches!(k, Kind::Dispatch { .. }))?;
    let factors = only(|k| matches!(k, Kind::DispatchFactors))?;
    let dropped = only(|k| matches!(k, Kind::Dropped))?;
    let combine = only(|k| matches!(k, Kind::Combine { .. } | Kind::CombineGrad))?;
    let grads = only(|k| *k == Kind::Grads)?;
    let weighed = only(|k| *k == Kind::GradsWeighed)?;
    let slots = only(|k| *k == Kind::GradsSlots)?;
    let operands = g.operands(first);
    let [_, b, counts, ..] = operands[..] else {
        return Err(refuse(claims, first, "an operand is missing"));
    };
    let drops = g.dropped.contains(&counts);
    let returned = |n: Option<NodeIndex>| g.results.iter().position(|r| Some(*r) == n);
    let (Some(_), Some(counts)) = (claims.param(b), claims.param(counts)) else {
        let what = if wgrads.is_empty() { "matrices" } else { "rows and their gradients" };
        return Err(refuse(claims, first, format!("its {what} are not the caller's")));
    };
    // Counts have one dimension, and a route two.
    let routed = claims.kernel.params[counts].shape.len() == 2;
    let route = match dispatch.is_some() || routed {
        true => Some(Route {
            x: tokens(claims, dispatch)?,
            factors: tokens(claims, factors)?,
            weights: weights(claims, dispatch)?,
            result: returned(dispatch),
            result_factors: returned(factors),
            dropped: returned(dropped),
            experts: match wgrads.is_empty() {
                true => claims.value(b).shape[0].value,
                false => claims.value(first).shape[0].value,
            },
            drops,
            combines: combine.is_some() || slots.is_some(),
        }),
        false => None,
    };
    let rows = match wgrads.is_empty() {
        true => made(claims, first),
        false => tensor(claims.value(b), "rows", &claims.sizes),
    };
    let results = route.as_ref().map(|r| [r.result, r.result_factors, r.dropped]);
    let results = results.into_iter().flatten().flatten();
    let ragged = claims.add(Op::Ragged(Ragged { counts, rows, route }), results);
    let made = Claimed {
        ragged,
        gemms,
        wgrads,
        dispatch,
        factors,
        dropped,
        combine,
        grads,
        weighed,
        slots,
    };
    Ok(Some(made))
}

/// What a grouped GEMM makes, under the name of its result.
fn made(claims: &Claims<'_>, node: NodeIndex) -> Tensor {
    let result = claims.g.results.iter().position(|r| *r == node);
    let name = result.map_or("h", |r| &claims.g.result_names[r]);
    tensor(claims.value(node), name, &claims.sizes)
}

/// The tokens that are dispatched.
fn tokens(claims: &Claims<'_>, dispatch: Option<NodeIndex>) -> Result<Option<Param>, LowerError> {
    let Some(dispatch) = dispatch else { return Ok(None) };
    let x = claims.g.operands(dispatch).first().and_then(|x| claims.param(*x));
    x.map(Some).ok_or_else(|| refuse(claims, dispatch, "its tokens are not the caller's"))
}

/// What dispatched rows are multiplied by.
fn weights(claims: &Claims<'_>, dispatch: Option<NodeIndex>) -> Result<Option<Param>, LowerError> {
    let Some(dispatch) = dispatch else { return Ok(None) };
    let Some(weights) = claims.g.operands(dispatch).get(2).copied() else { return Ok(None) };
    let given = claims.param(weights);
    given.map(Some).ok_or_else(|| refuse(claims, dispatch, "its weights are not the caller's"))
}

/// The GEMMs of claimed rows, and the way back to tokens.
///
/// # Errors
/// For operands that are neither the caller's nor made of these rows, and for sizes and placements that no pass lowers.
pub(super) fn claim(claims: &mut Claims<'_>, rows: Option<Claimed>) -> Result<(), LowerError> {
    let Some(rows) = rows else { return Ok(()) };
    let mut ids: Vec<OpId> = Vec::new();
    let g = claims.g;
    let mut made = None;
    for node in &rows.gemms {
        let gemm = gemm(claims, &rows, *node, (&ids, made))?;
        let result = gemm.result;
        let id = claims.add(Op::Grouped(gemm), result);
        ids.push(id);
        let grads_of = rows.grads.filter(|grads| g.operands(*grads).first() == Some(node));
        if let Some(node) = grads_of {
            made = Some(grads(claims, &rows, node, id)?);
        }
    }
    if let (Some(node), None) = (rows.grads, made) {
        return Err(refuse(claims, node, "its rows are those of no product before it"));
    }
    let returned = |n: &NodeIndex| g.results.iter().filter(|r| *r == n).count();
    for node in &rows.wgrads {
        let wgrad = wgrad(claims, &rows, *node)?;
        let result = wgrad.result;
        claims.add(Op::Wgrad(wgrad), [result]);
    }
    let own = |n: &NodeIndex| {
        rows.gemms.contains(n)
            || rows.wgrads.contains(n)
            || rows.combine == Some(*n)
            || rows.dispatch == Some(*n)
            || rows.factors == Some(*n)
            || rows.dropped == Some(*n)
            || [rows.grads, rows.weighed, rows.slots].contains(&Some(*n))
    };
    let wrong = |n: &NodeIndex| claims.param(*n).is_some() || own(n) && returned(n) > 1;
    if let Some(n) = g.results.iter().find(|n| wrong(n)) {
        return Err(refuse(claims, *n, "it is a result twice, or a parameter is one"));
    }
    if let (Some(node), Some(of)) = (rows.slots, made) {
        let Some(result) = g.results.iter().position(|r| *r == node) else {
            return Err(refuse(claims, node, "it is no result"));
        };
        let out = tensor(claims.value(node), &g.result_names[result], &claims.sizes);
        let how = Combined::Elements;
        let slots = Combine { of, how, addend: None, out, result, summed: None };
        claims.add(Op::Combine(slots), [result]);
    }
    if let Some(node) = rows.combine {
        let combine = combine(claims, &rows, node, &ids)?;
        let result = combine.result;
        claims.add(Op::Combine(combine), [result]);
    }
    let first = rows.gemms.first().or(rows.wgrads.first());
    let name = first.map_or("grouped_gemm", |n| &claims.value(*n).name);
    match &claims.kernel.ops[rows.ragged] {
        Op::Ragged(ragged) => check(&claims.kernel, ragged, name, claims.sizes[0]),
        _ => Ok(()),
    }
}

fn gemm(
    claims: &Claims<'_>,
    claimed: &Claimed,
    node: NodeIndex,
    (before, grads): (&[OpId], Option<OpId>),
) -> Result<Grouped, LowerError> {
    let g = claims.g;
    let operands = g.operands(node);
    let [x, b, counts, ref extras @ ..] = operands[..] else {
        return Err(refuse(claims, node, "an operand is missing"));
    };
    let (Some(b), Some(counts)) = (claims.param(b), claims.param(counts)) else {
        return Err(refuse(claims, node, "its matrices are not the caller's"));
    };
    let same = matches!(&claims.kernel.ops[claimed.ragged], Op::Ragged(r) if r.counts == counts);
    if !same {
        return Err(refuse(claims, node, "its rows are not those of the product before it"));
    }
    let rows = match (claims.param(x), claimed.gemms.iter().position(|n| *n == x)) {
        (Some(param), _) => Rows::Given(param),
        (None, Some(i)) if i < before.len() => Rows::Made(before[i]),
        _ if Some(x) == claimed.dispatch => Rows::Dispatched,
        _ => match grads.filter(|_| Some(x) == claimed.grads) {
            Some(made) => Rows::Made(made),
            None => return Err(refuse(claims, node, "its rows come from elsewhere")),
        },
    };
    let beside = |n: &NodeIndex| {
        g.graph[*n].kind == Kind::Factor && g.operands(*n).first() == Some(&x)
            || claimed.factors == Some(*n)
    };
    let extra = |x: &NodeIndex| match g.results.iter().position(|r| r == x) {
        Some(r) if g.graph[*x].kind == Kind::Saved => Some(Extra::Result(r)),
        _ if g.graph[*x].kind == Kind::OwnHalf => Some(Extra::OwnHalf),
        _ if claims.param(*x).is_none() && beside(x) => Some(Extra::Arriving),
        _ => claims.param(*x).map(Extra::Param),
    };
    let Some(mut extras) = extras.iter().map(extra).collect::<Option<Vec<_>>>() else {
        return Err(refuse(claims, node, "an operand of its epilogue is not the caller's"));
    };
    let epilogue = claims.value(node).kind.epilogue().unwrap_or_default().to_vec();
    // Factors that are no result.
    let operands = epilogue.iter().filter(|op| op.operand().is_some()).count();
    if quantized(&epilogue).is_some() && extras.len() < operands {
        extras.push(Extra::OwnFactors);
    }
    if extras.len() > EPILOGUE_OPERANDS.len() {
        return Err(refuse(claims, node, "more than four epilogue operands follow it"));
    }
    let Kind::GroupedGemm { transposed, .. } = claims.value(node).kind else {
        return Err(refuse(claims, node, "it is no product of rows"));
    };
    let of_combine = claimed.combine.and_then(|n| g.operands(n).first().copied());
    Ok(Grouped {
        ragged: claimed.ragged,
        rows,
        b,
        transposed,
        epilogue,
        extras,
        out: made(claims, node),
        result: g.results.iter().position(|r| *r == node),
        read: g.graph.neighbors(node).next().is_some(),
        combined: of_combine == Some(node),
    })
}

/// What follows from gradients that a GEMM made of rows of an activation.
fn grads(
    claims: &mut Claims<'_>,
    claimed: &Claimed,
    node: NodeIndex,
    of: OpId,
) -> Result<OpId, LowerError> {
    let g = claims.g;
    let &[_, gates, ids, weights] = g.operands(node).as_slice() else {
        return Err(refuse(claims, node, "an operand is missing"));
    };
    let given = [gates, ids, weights].map(|n| claims.param(n));
    let [Some(gates), Some(ids), Some(weights)] = given else {
        return Err(refuse(claims, node, "its gates and weights are not the caller's"));
    };
    let same = matches!(&claims.kernel.ops[claimed.ragged], Op::Ragged(r) if r.counts == ids);
    let out = tensor(claims.value(node), "grads", &claims.sizes);
    if !same || (1..3).any(|d| out.cut(d).is_some()) {
        let why = match same {
            true => "ranks along another axis share its columns",
            false => "its rows are not those of the product before it",
        };
        return Err(refuse(claims, node, why));
    }
    let returned = |n: Option<NodeIndex>| g.results.iter().position(|r| Some(*r) == n);
    let (result, weighed) = (returned(Some(node)), returned(claimed.weighed));
    let grads = Grads { ragged: claimed.ragged, of, gates, weights, out, result, weighed };
    Ok(claims.add(Op::Grads(grads), [result, weighed].into_iter().flatten()))
}

/// Gradients of matrices of experts.
fn wgrad(claims: &Claims<'_>, claimed: &Claimed, node: NodeIndex) -> Result<Wgrad, LowerError> {
    let g = claims.g;
    let operands = g.operands(node);
    let [x, dy, counts, ref extras @ ..] = operands[..] else {
        return Err(refuse(claims, node, "an operand is missing"));
    };
    let given = [x, dy, counts].map(|n| claims.param(n));
    let [Some(x), Some(dy), Some(counts)] = given else {
        return Err(refuse(claims, node, "its rows and their gradients are not the caller's"));
    };
    let same = matches!(&claims.kernel.ops[claimed.ragged], Op::Ragged(r) if r.counts == counts);
    if !same {
        return Err(refuse(claims, node, "its rows are not those of the product before it"));
    }
    let extras: Option<Vec<_>> = extras.iter().map(|x| claims.param(*x)).collect();
    let Some(extras) = extras.filter(|all| all.len() <= EPILOGUE_OPERANDS.len()) else {
        return Err(refuse(claims, node, "an operand of its epilogue is not the caller's"));
    };
    let Some(result) = g.results.iter().position(|r| *r == node) else {
        return Err(refuse(claims, node, "it is no result"));
    };
    let epilogue = claims.value(node).kind.epilogue().unwrap_or_default().to_vec();
    Ok(Wgrad { ragged: claimed.ragged, x, dy, epilogue, extras, result })
}

fn combine(
    claims: &Claims<'_>,
    claimed: &Claimed,
    node: NodeIndex,
    gemms: &[OpId],
) -> Result<Combine, LowerError> {
    let g = claims.g;
    let operands = g.operands(node);
    let summed = g.graph.neighbors(node).find_map(|sum| Some((sum, sum_of_tokens(claims, sum)?)));
    let of = operands.first().and_then(|y| claimed.gemms.iter().position(|p| p == y));
    let Some(of) = of.filter(|of| of + 1 == gemms.len()) else {
        return Err(refuse(claims, node, "its rows are not those of the last product"));
    };
    if g.results.contains(&claimed.gemms[of]) {
        return Err(refuse(claims, claimed.gemms[of], "its rows are a result, and are combined"));
    }
    let Some(given) = operands.get(2).and_then(|w| claims.param(*w)) else {
        return Err(refuse(claims, node, "its weights, or gradients, are not the caller's"));
    };
    let how = match claims.value(node).kind {
        Kind::CombineGrad if matches!(summed, Some((_, Ok(Reduce::Scatter)))) => {
            let why = "sums of its products are scattered";
            let help = "write `all_reduce`: gradients of weights are where their tokens are";
            return Err(unsupported(&claims.value(node).name, why, help));
        }
        Kind::CombineGrad => Combined::Products(given),
        _ => Combined::Sum(given),
    };
    let last = summed.as_ref().map_or(node, |(sum, _)| *sum);
    let Some(result) = g.results.iter().position(|r| *r == last) else {
        return Err(refuse(claims, node, "its tokens are no result"));
    };
    let summed = summed.map(|(_, how)| how).transpose()?;
    let added = match summed {
        None => operands.get(3).copied(),
        Some(_) if operands.len() > 3 => {
            return Err(refuse(claims, node, "something is added before ranks' sums are"));
        }
        Some(_) => g.operands(last).get(1).copied(),
    };
    let addend = match added.map(|x| claims.param(x)) {
        Some(None) => return Err(refuse(claims, node, "its addend is not a tensor of the caller")),
        given => given.flatten(),
    };
    let out = tensor(claims.value(last), &g.result_names[result], &claims.sizes);
    Ok(Combine { of: gemms[of], how, addend, out, result, summed })
}

/// The `combine` that a sum over ranks adds up, if it adds up one.
pub(super) fn tokens_of(g: &OpGraph, node: NodeIndex) -> Option<NodeIndex> {
    let sums = matches!(g.graph[node].kind, Kind::ReduceScatter { .. } | Kind::AllReduce { .. });
    let of = g.operands(node).first().copied().filter(|_| sums)?;
    matches!(g.graph[of].kind, Kind::Combine { .. } | Kind::CombineGrad).then_some(of)
}

/// How a sum of what tokens get back is shared; `None` of another operation.
fn sum_of_tokens(claims: &Claims<'_>, node: NodeIndex) -> Option<Result<Reduce, LowerError>> {
    tokens_of(claims.g, node)?;
    let refuse = |why: &str| Some(Err(refuse(claims, node, why)));
    let (how, epilogue) = match &claims.value(node).kind {
        Kind::ReduceScatter { dim: 0, epilogue, .. } => (Reduce::Scatter, epilogue),
        Kind::AllReduce { epilogue, .. } => (Reduce::All, epilogue),
        _ => return refuse("columns of tokens are scattered"),
    };
    if !matches!(epilogue[..], [] | [EpilogueOp::Add]) {
        return refuse("something other than an `add` follows the sum of tokens");
    }
    Some(Ok(how))
}

fn check(k: &Kernel, ragged: &Ragged, name: &str, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    let counts = &k.params[ragged.counts];
    // Tokens may, where they are dispatched here: their experts are in the order of ranks.
    let dispatches = ragged.route.as_ref().is_some_and(|route| route.x.is_some());
    let tokens = counts.shape.first().filter(|_| dispatches).and_then(|e| e.symbol.as_deref());
    // Factors of tokens lie below each other.
    let factors = ragged.route.as_ref().and_then(|route| route.factors).map(|f| &k.params[f]);
    let of = |t: &Tensor| {
        let dim = usize::from(factors.is_some_and(|f| std::ptr::eq(f, t)));
        let may = |(d, e): &(usize, &Extent)| *d == dim && e.symbol.as_deref() == tokens;
        let mut dims = t.shape.iter().enumerate().filter(|(_, e)| e.runtime_max.is_some());
        dims.find(|dim| !may(dim)).map(|(_, e)| e.clone())
    };
    let results = k.results.iter().map(|r| &r.out);
    if let Some(e) = k.params.iter().chain(results).find_map(of) {
        let name = e.symbol.as_deref().unwrap_or("a dimension");
        let help = "let all symbols be fixed but the number of tokens that `dispatch` takes";
        return refuse(format!("`{name}` comes with each launch"), help);
    }
    if let Some(route) = &ragged.route {
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
        let blocks = ragged.rows.widest(0) / RAGGED_BLOCK as i32;
        if let Some(Combined::Products(dy)) = k.combined().map(|c| c.how)
            && !k.params[dy].in_bulk()
        {
            let why = format!("gradients of {} elements", k.params[dy].shape[1].value);
            return refuse(why, "let their columns be multiples of 8");
        }
        if route.drops && blocks < least {
            let why = format!("a capacity of {blocks} blocks a rank, for {least} experts");
            return refuse(why, "let each expert keep a block of 128 rows at least");
        }
        if let Some(x) = route.x.map(|x| &k.params[x])
            && !x.in_bulk()
        {
            let why = format!("tokens of {} elements", x.shape[1].value);
            return refuse(why, "let their columns be multiples of 8");
        }
    }
    if ragged.route.is_none() && !counts.even(0) {
        let why = format!("{} experts over {world} ranks", counts.shape[0].value);
        let help = "let them be a multiple of the ranks, or let `dispatch(x, ids)` make the counts, which takes others";
        return refuse(why, help);
    }
    for w in k.wgrads() {
        let (x, dy, out) = (&k.params[w.x], &k.params[w.dy], &k.results[w.result].out);
        let (rows, block) = (x.widest(0), RAGGED_BLOCK as i32);
        if !x.even(0) || rows % block != 0 {
            let why = format!("{} rows over {world} ranks", x.shape[0].value);
            return refuse(why, "let every rank have whole blocks of 128 of them");
        }
        if dy.shape.len() != 2 {
            let why = "its gradients are of gates and ups, side by side".into();
            return refuse(why, "let a kernel behind read them, as `[R, 2 N]`");
        }
        let shared = [1, 2].into_iter().find(|d| !out.even(*d));
        if let Some((d, cut)) = shared.and_then(|d| Some((d, out.cut(d)?))) {
            let n = out.shape[d].value;
            return Err(uneven_extent(&out.name, 3, d, n, cut.ranks));
        }
        let wide = [(1, x.dtype, x), (1, dy.dtype, dy), (2, out.dtype, out)];
        for (n, dtype) in wide.map(|(d, dtype, t)| (t.widest(d), dtype)) {
            if aligned(n, dtype.size_bytes()) != n {
                let why = format!("rows of {n} elements");
                return refuse(why, "let K and N be multiples of 8");
            }
        }
        if out.dtype.is_storage() {
            let why = format!("results of {}", out.dtype);
            return refuse(why, "let `cast` be to 16 bits, or `f32`");
        }
    }
    for p in k.grouped() {
        let b = &k.params[p.b];
        let (of_depth, of_columns) = p.dims(b);
        if let Some(d) = [of_depth, of_columns].into_iter().find(|d| !b.even(*d)) {
            let (n, ranks) = (b.shape[d].value, b.cut(d).map_or(1, |cut| cut.ranks));
            return Err(uneven_extent(&b.name, b.shape.len(), d, n, ranks));
        }
        if b.dtype.is_narrow() && (b.cut(of_depth).is_some() || b.cut(of_columns).is_some()) {
            let why = "ranks along another axis share matrices of eight bits".into();
            return refuse(why, "use 16 bits, or let each rank have whole matrices");
        }
        let (rows, block) = (p.out.widest(0), RAGGED_BLOCK as i32);
        if !p.out.even(0) || rows % block != 0 {
            let why = format!("{} rows over {world} ranks", p.out.shape[0].value);
            return refuse(why, "let every rank have whole blocks of 128 of them");
        }
        let b = &k.params[p.b];
        let (depth, columns) = p.depth_and_columns(b);
        for (n, dtype) in [(depth, b.dtype), (columns, b.dtype), (columns, p.out.dtype)] {
            if aligned(n, dtype.size_bytes()) != n {
                let why = format!("rows of {n} elements");
                return refuse(why, "let K and N be multiples of 8");
            }
        }
        let stacked = b.shape.len() == 4;
        let narrow = b.dtype.is_narrow();
        if let Rows::Given(x) = p.rows
            && x >= k.given
        {
            let why = "its rows are made in the same kernel".into();
            let help =
                "give it rows that another kernel made, or quantise tokens before `dispatch`";
            return refuse(why, help);
        }
        if k.grouped().any(|other| k.params[other.b].dtype.is_narrow() != narrow) {
            let why = "matrices of 16 bits, and of eight, are in one kernel".into();
            return refuse(why, "use eight bits for all products of the rows, or for none");
        }
        let step = mma_step(b.dtype) as i32;
        if p.sums_halves(b) && depth % step != 0 {
            let why = format!("it sums over gates and ups of {depth} columns");
            let help = format!(
                "let them be a multiple of {step}, or let a kernel behind read its rows, as `[R, 2 N]`"
            );
            return refuse(why, &help);
        }
        if p.halves() && p.result.is_none() && !p.read {
            let why = "gradients of gates and ups are no result".into();
            return refuse(why, "return what `swiglu_grad` makes, or let a product read it");
        }
        if p.epilogue.contains(&EpilogueOp::Swiglu) && !gated(&p.epilogue) {
            let why = "something stands between `swiglu` and its product".into();
            return refuse(why, "put `swiglu` directly behind `grouped_gemm`");
        }
        if stacked != gated(&p.epilogue) && !p.sums_halves(b) {
            let why = "gates and ups are results of their own".into();
            return refuse(why, "write `swiglu` behind `grouped_gemm(w)` with `w: [E, K, 2, N]`");
        }
        if quantized(&p.epilogue).is_some() && columns % SCALE_BLOCK as i32 != 0 && p.read {
            let why = format!("{columns} columns in blocks of {SCALE_BLOCK}, each with a factor");
            return refuse(why, "let the width between two products be a multiple of 128");
        }
        if p.out.dtype.is_storage() && quantized(&p.epilogue).is_none() {
            let why = format!("results of {}", p.out.dtype);
            return refuse(why, "let `cast` be to 16 bits, or `f32`; or write `quantize`");
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
