//! Fuses elementwise operations into the matrix product before them.
//!
//! Assumes nothing. Leaves: a product whose result is read by one elementwise operation alone has taken it over, also where the
//! caller gets that result, too: then the product saves it on the way. The whole chain is computed in f32 and rounded once, where
//! the operations one by one would round after each.

use crate::graph::{Kind, OpGraph, Value};
use crate::ir::EpilogueOp;
use mk_syntax::Placement;
use petgraph::{Direction, stable_graph::NodeIndex, visit::EdgeRef};

/// Runs the pass.
pub(super) fn epilogues(g: &mut OpGraph) {
    let gemms: Vec<_> =
        g.graph.node_indices().filter(|n| matches!(g.graph[*n].kind, Kind::Gemm { .. })).collect();
    for gemm in gemms {
        while let Some((user, op)) = only_user(g, gemm) {
            if g.results.contains(&gemm) {
                save(g, gemm);
            }
            absorb(g, gemm, user, op);
        }
    }
}

/// The elementwise operation that alone reads `gemm`, if it can be taken over. A sum is finished for nobody before all ranks have
/// added theirs, so none is saved.
fn only_user(g: &OpGraph, gemm: NodeIndex) -> Option<(NodeIndex, EpilogueOp)> {
    let mut edges = g.graph.edges_directed(gemm, Direction::Outgoing);
    let (edge, None) = (edges.next()?, edges.next()) else { return None };
    let partial = g.graph[gemm].placement.contains(&Placement::Partial);
    if g.uses(gemm) > if partial { 1 } else { 2 } {
        return None;
    }
    let Kind::Elementwise(op) = g.graph[edge.target()].kind else { return None };
    let commutes = matches!(op, EpilogueOp::Mul | EpilogueOp::Add);
    (commutes || *edge.weight() == 0).then_some((edge.target(), op))
}

/// Has a product's epilogue write what it has so far to the caller.
fn save(g: &mut OpGraph, gemm: NodeIndex) {
    let n = g.operands(gemm).len();
    let value = &mut g.graph[gemm];
    if let Kind::Gemm { epilogue, .. } = &mut value.kind {
        epilogue.push(EpilogueOp::Save);
    }
    let saved = Value { kind: Kind::Saved, ..value.clone() };
    let saved = g.graph.add_node(saved);
    g.graph.add_edge(saved, gemm, n);
    g.results.iter_mut().filter(|r| **r == gemm).for_each(|r| *r = saved);
}

fn absorb(g: &mut OpGraph, gemm: NodeIndex, user: NodeIndex, op: EpilogueOp) {
    let n = g.operands(gemm).len();
    let extra: Vec<_> = g.operands(user).into_iter().filter(|x| *x != gemm).collect();
    for (i, x) in extra.into_iter().enumerate() {
        g.graph.add_edge(x, gemm, n + i);
    }
    let readers: Vec<_> = g
        .graph
        .edges_directed(user, Direction::Outgoing)
        .map(|e| (e.target(), *e.weight()))
        .collect();
    for (reader, position) in readers {
        g.graph.add_edge(gemm, reader, position);
    }
    if let Some(value) = g.graph.remove_node(user) {
        let gemm = &mut g.graph[gemm];
        gemm.dtype = value.dtype;
        gemm.shape = value.shape;
        gemm.placement = value.placement;
        gemm.name = format!("{}_{}", gemm.name, value.name);
        if let Kind::Gemm { epilogue, .. } = &mut gemm.kind {
            epilogue.push(op);
        }
    }
    for r in &mut g.results {
        if *r == user {
            *r = gemm;
        }
    }
}
