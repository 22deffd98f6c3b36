//! Fuses elementwise operations into the GEMM, or the sum over ranks, before them.
//!
//! What none of them takes over becomes chains of its own.
//!
//! Assumes nothing. Leaves: a GEMM, or a sum, whose result is read by one elementwise operation alone has taken it
//! over; a GEMM also where the caller gets that result, too, which it then saves on the way. The whole chain is
//! computed in f32 and rounded once, where the operations one by one would round after each.

use crate::graph::{Kind, OpGraph, Value};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, SWIGLU_GRAD, halves};
use mk_syntax::{Curve, Factors, Placement};
use petgraph::{Direction, stable_graph::NodeIndex, visit::EdgeRef};
use std::collections::BTreeMap;

/// Runs the pass.
pub(super) fn epilogues(g: &mut OpGraph) {
    scales(g);
    weighed(g);
    let takers: Vec<_> =
        g.graph.node_indices().filter(|n| g.graph[*n].kind.epilogue().is_some()).collect();
    for taker in takers {
        take(g, taker);
    }
    for node in g.in_order() {
        if !g.graph.contains_node(node) {
            continue;
        }
        if g.graph[node].kind == Kind::SwigluGrad {
            // The gradient, gates, gates again, and ups.
            let operands = g.operands(node);
            let halves = operands.get(1).map(|h| [(*h, 2), (*h, 3)]).into_iter().flatten();
            for (h, position) in halves {
                g.graph.add_edge(h, node, position);
            }
            g.graph[node].kind = Kind::Chain { epilogue: SWIGLU_GRAD.to_vec() };
            take(g, node);
        }
        let Kind::Elementwise(op) = g.graph[node].kind else { continue };
        let epilogue = match op {
            // Gates, then the ups that lie beside them.
            EpilogueOp::Swiglu => {
                let halves = g.operands(node);
                halves.first().map(|h| g.graph.add_edge(*h, node, 1));
                vec![EpilogueOp::Curve(Curve::Silu), EpilogueOp::Mul]
            }
            op => vec![op],
        };
        g.graph[node].kind = Kind::Chain { epilogue };
        take(g, node);
    }
    quantised(g);
}

/// Quantises the results of GEMMs on the way, with factors that are a result, too, or that a grouped GEMM reads beside
/// its rows.
fn quantised(g: &mut OpGraph) {
    let all = g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Quantize);
    for node in all.collect::<Vec<_>>() {
        let (&[of], narrow) = (g.operands(node).as_slice(), g.graph[node].dtype) else { continue };
        let value = &g.graph[of];
        let (Kind::Gemm { epilogue, .. } | Kind::GroupedGemm { epilogue, .. }) = &value.kind else {
            continue;
        };
        let grouped = matches!(value.kind, Kind::GroupedGemm { .. });
        let operands = epilogue.iter().filter(|op| op.operand().is_some()).count();
        let whole = !value.placement.contains(&Placement::Partial) && !halves(epilogue);
        if !whole || g.uses(of) > 1 || operands >= EPILOGUE_OPERANDS.len() {
            continue;
        }
        let readers: Vec<_> = g.graph.neighbors(node).collect();
        let is_factors = |n: &&NodeIndex| g.graph[**n].kind == Kind::Factor;
        let returned = |n: NodeIndex| g.results.iter().filter(|r| **r == n).count();
        match (readers.as_slice(), readers.iter().find(is_factors).copied()) {
            ([_], Some(factors)) if returned(node) == 1 && returned(factors) == 1 => {
                returned_with(g, node, of, factors);
            }
            ([_, _], Some(factors)) if grouped && returned(node) + returned(factors) == 0 => {
                let next = readers.iter().copied().find(|n| *n != factors);
                let reads = |n: &NodeIndex| matches!(g.graph[*n].kind, Kind::GroupedGemm { .. });
                let Some(next) = next.filter(|n| reads(n) && g.operands(*n).first() == Some(&node))
                else {
                    continue;
                };
                g.detach(factors);
                g.graph.add_edge(of, factors, 0);
                let edge = g.graph.find_edge(node, next);
                edge.map(|edge| g.graph.remove_edge(edge));
                g.graph.add_edge(of, next, 0);
            }
            _ => continue,
        }
        g.graph.remove_node(node);
        let value = &mut g.graph[of];
        value.name = format!("{}_quantize", value.name);
        value.dtype = narrow;
        if let Some(epilogue) = value.kind.epilogue_mut() {
            epilogue.push(EpilogueOp::Quantize(narrow));
        }
    }
}

/// A GEMM in the place of its quantised result, with a node for the factors that its epilogue saves.
fn returned_with(g: &mut OpGraph, node: NodeIndex, of: NodeIndex, factors: NodeIndex) {
    let place = g.operands(of).len();
    let saved = Value { kind: Kind::Saved, ..g.graph[factors].clone() };
    let saved = g.graph.add_node(saved);
    g.graph.add_edge(saved, of, place);
    for r in &mut g.results {
        *r = if *r == node {
            of
        } else if *r == factors {
            saved
        } else {
            *r
        };
    }
    g.graph.remove_node(factors);
}

/// Takes over what follows, as far as it can be.
fn take(g: &mut OpGraph, taker: NodeIndex) {
    while let Some((user, op)) = only_user(g, taker) {
        if g.results.contains(&taker) {
            save(g, taker);
        }
        absorb(g, taker, user, &[op]);
    }
    if let Some((user, h)) = swiglu_grad(g, taker) {
        absorb(g, taker, user, &SWIGLU_GRAD);
        // Of gates there is one operand so far: then what is saved, gates again, and ups.
        let n = g.operands(taker).len();
        if matches!(g.graph[taker].kind, Kind::Chain { .. }) {
            g.graph.add_edge(h, taker, n);
            g.graph.add_edge(h, taker, n + 1);
            return take(g, taker);
        }
        let saved = Value { kind: Kind::OwnHalf, ..g.graph[taker].clone() };
        let saved = g.graph.add_node(saved);
        for (i, x) in [saved, h, h].into_iter().enumerate() {
            g.graph.add_edge(x, taker, n + i);
        }
    }
}

/// Moves scales behind the GEMM, which multiplies the quantised values. The scale of a row of A scales that row of the
/// GEMM; the scale of a row of transposed B scales that column. Those of blocks scale what a step along K adds.
fn scales(g: &mut OpGraph) {
    let multiplies = |k: &Kind| matches!(k, Kind::Gemm { .. } | Kind::GroupedGemm { .. });
    let gemms = g.graph.node_indices().filter(|n| multiplies(&g.graph[*n].kind));
    for gemm in gemms.collect::<Vec<_>>() {
        for place in 0..2 {
            let operands = g.operands(gemm);
            let Some(x) = operands.get(place).copied() else { continue };
            let Kind::Dequantize(of) = g.graph[x].kind else { continue };
            let op = match (place, of) {
                (0, Factors::Rows) => EpilogueOp::ScaleRows,
                (0, Factors::Steps) => EpilogueOp::ScaleSteps,
                (1, Factors::Rows) => EpilogueOp::ScaleColumns,
                (1, Factors::Blocks) => EpilogueOp::ScaleBlocks,
                // The checker refuses these.
                _ => continue,
            };
            let &[values, factors] = g.operands(x).as_slice() else { continue };
            let edge = g.graph.edges_connecting(x, gemm).find(|e| *e.weight() == place);
            if let Some(edge) = edge.map(|e| e.id()) {
                g.graph.remove_edge(edge);
            }
            g.graph.add_edge(values, gemm, place);
            g.graph.add_edge(factors, gemm, operands.len());
            if let Some(epilogue) = g.graph[gemm].kind.epilogue_mut() {
                epilogue.push(op);
            }
        }
    }
    g.graph.retain_nodes(|graph, n| {
        !matches!(graph[n].kind, Kind::Dequantize(_)) || graph.neighbors(n).next().is_some()
    });
}

/// Makes one operation of what reads gradients `u` of rows of a `swiglu` that have weights behind it: the gradient of
/// its input by `u` times weights, its result times weights, and gradients of weights by `u` and its result.
fn weighed(g: &mut OpGraph) {
    let all = g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::SwigluGrad);
    for node in all.collect::<Vec<_>>() {
        let &[scaled, h] = g.operands(node).as_slice() else { continue };
        let &[u, ids, weights] = g.operands(scaled).as_slice() else { continue };
        // Of eight bits it has factors.
        let plain = matches!(&g.graph[u].kind, Kind::GroupedGemm { epilogue, .. }
            if epilogue.iter().all(|op| matches!(op, EpilogueOp::ScaleSteps | EpilogueOp::ScaleBlocks)));
        let alone = g.graph[scaled].kind == Kind::Weigh && g.uses(scaled) == 1;
        if !plain || !alone || g.graph[h].kind != Kind::Param || g.results.contains(&u) {
            continue;
        }
        let is_activation = |n: &NodeIndex| {
            g.graph[*n].kind == Kind::Elementwise(EpilogueOp::Swiglu) && !g.results.contains(n)
        };
        let activations: Vec<_> = g.graph.neighbors(h).filter(is_activation).collect();
        let of = |n: NodeIndex| (g.graph[n].kind.clone(), g.operands(n));
        let is_slots = |n: NodeIndex| {
            let (kind, x) = of(n);
            kind == Kind::WeighGrad && x[..2] == [u, ids] && activations.contains(&x[2])
        };
        let is_weighed = |n: NodeIndex| {
            let (kind, x) = of(n);
            kind == Kind::Weigh && x[1..] == [ids, weights] && activations.contains(&x[0])
        };
        let of_rows: Vec<_> = g.graph.neighbors(u).filter(|n| *n != scaled).collect();
        let of_made = activations.iter().flat_map(|a| g.graph.neighbors(*a));
        let readers: Vec<_> = of_rows.iter().copied().chain(of_made).collect();
        if !of_rows.iter().all(|n| is_slots(*n))
            || !readers.iter().all(|n| is_slots(*n) || is_weighed(*n))
        {
            continue;
        }
        let kinds: BTreeMap<_, _> = readers.iter().map(|n| (*n, is_slots(*n))).collect();
        for (reader, slots) in kinds {
            g.detach(reader);
            g.graph.add_edge(node, reader, 0);
            g.graph[reader].kind = if slots {
                g.graph.add_edge(ids, reader, 1);
                Kind::GradsSlots
            } else {
                Kind::GradsWeighed
            };
        }
        g.detach(node);
        for (i, x) in [u, h, ids, weights].into_iter().enumerate() {
            g.graph.add_edge(x, node, i);
        }
        g.graph[node].kind = Kind::Grads;
        activations.into_iter().chain([scaled]).for_each(|n| {
            g.graph.remove_node(n);
        });
    }
}

/// The `swiglu_grad` that alone reads a GEMM, and the values before the activation, where the caller has them in
/// memory.
fn swiglu_grad(g: &OpGraph, taker: NodeIndex) -> Option<(NodeIndex, NodeIndex)> {
    let value = &g.graph[taker];
    let plain = match &value.kind {
        Kind::Gemm { epilogue, .. } | Kind::GroupedGemm { epilogue, .. } => {
            !epilogue.contains(&EpilogueOp::Swiglu)
        }
        // A chain that the caller gets is written to memory before its gradient is made.
        Kind::Chain { epilogue } => {
            !epilogue.contains(&EpilogueOp::Keep) && !g.results.contains(&taker)
        }
        _ => false,
    };
    let mut users = g.graph.neighbors(taker);
    let (user, None) = (users.next()?, users.next()) else { return None };
    let taken = plain && g.graph[user].kind == Kind::SwigluGrad && g.uses(taker) == 1;
    let (&[d, h], true) = (g.operands(user).as_slice(), taken) else { return None };
    (d == taker && g.graph[h].kind == Kind::Param).then_some((user, h))
}

/// The elementwise operation that alone reads `taker`, if it can be taken over. A sum is finished for nobody before all
/// ranks have added theirs, and the owner of the reduction saves nothing.
fn only_user(g: &OpGraph, taker: NodeIndex) -> Option<(NodeIndex, EpilogueOp)> {
    let mut edges = g.graph.edges_directed(taker, Direction::Outgoing);
    let (edge, None) = (edges.next()?, edges.next()) else { return None };
    let value = &g.graph[taker];
    let product = matches!(value.kind, Kind::Gemm { .. } | Kind::GroupedGemm { .. });
    let saves = product && !value.placement.contains(&Placement::Partial);
    if g.uses(taker) > if saves { 2 } else { 1 } {
        return None;
    }
    let Kind::Elementwise(op) = g.graph[edge.target()].kind else { return None };
    if op == EpilogueOp::Swiglu && !product {
        return None;
    }
    // Behind tokens' sums a tensor may be added, once.
    if matches!(&value.kind, Kind::Combine { epilogue } if op != EpilogueOp::Add || !epilogue.is_empty())
    {
        return None;
    }
    let commutes = matches!(op, EpilogueOp::Mul | EpilogueOp::Add);
    (commutes || *edge.weight() == 0).then_some((edge.target(), op))
}

/// Adds a step to a GEMM's epilogue that writes the intermediate value to a result.
fn save(g: &mut OpGraph, gemm: NodeIndex) {
    let n = g.operands(gemm).len();
    let value = &mut g.graph[gemm];
    if let Some(epilogue) = value.kind.epilogue_mut() {
        epilogue.push(EpilogueOp::Save);
    }
    let saved = Value { kind: Kind::Saved, ..value.clone() };
    let saved = g.graph.add_node(saved);
    g.graph.add_edge(saved, gemm, n);
    g.results.iter_mut().filter(|r| **r == gemm).for_each(|r| *r = saved);
}

fn absorb(g: &mut OpGraph, taker: NodeIndex, user: NodeIndex, ops: &[EpilogueOp]) {
    let n = g.operands(taker).len();
    let extra: Vec<_> = g.operands(user).into_iter().filter(|x| *x != taker).collect();
    for (i, x) in extra.into_iter().enumerate() {
        g.graph.add_edge(x, taker, n + i);
    }
    let readers: Vec<_> = g
        .graph
        .edges_directed(user, Direction::Outgoing)
        .map(|e| (e.target(), *e.weight()))
        .collect();
    for (reader, position) in readers {
        g.graph.add_edge(taker, reader, position);
    }
    if let Some(value) = g.graph.remove_node(user) {
        let taker = &mut g.graph[taker];
        taker.dtype = value.dtype;
        taker.shape = value.shape;
        taker.placement = value.placement;
        taker.name = format!("{}_{}", taker.name, value.name);
        if let Some(epilogue) = taker.kind.epilogue_mut() {
            epilogue.extend(ops);
        }
    }
    for r in &mut g.results {
        if *r == user {
            *r = taker;
        }
    }
}
