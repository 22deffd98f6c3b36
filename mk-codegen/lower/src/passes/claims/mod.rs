//! Which operations one kernel takes, and as what.
//!
//! Assumes fused epilogues. Each kind of operation has a file, which claims the nodes of that kind: it says what stands
//! in the way, or adds operations to the [`Kernel`], each behind those that it reads. The kernel's families follow from
//! the operations, one by one (`passes/tile`), and its settings from their facts. Whole pipelines have no names here:
//! what [`together`] does not refuse may stand side by side.

mod attention;
mod axes;
mod builder;
mod exchange;
mod facts;
mod gemm;
mod gemm_rules;
mod grouped;
mod own;
mod rows;

use super::{
    error::{LowerError, unsupported},
    shape::kernel::Kernel,
};
use crate::graph::{Kind, OpGraph};
use builder::Claims;
use petgraph::stable_graph::NodeIndex;

pub(super) use facts::facts;
pub(super) use own::share_tokens;

/// Runs the pass.
///
/// # Errors
/// The first operation that no kernel takes, or not beside the others.
pub(super) fn kernel(g: &OpGraph, sizes: &[i32]) -> Result<Kernel, LowerError> {
    let mut claims = Claims::new(g, sizes);
    axes::check(g, sizes)?;
    together(g)?;
    attention::claim(&mut claims)?;
    rows::claim(&mut claims)?;
    // Dense operations stand between rows of experts and their GEMMs: they need none of the rows that are under way.
    let experts = grouped::rows(&mut claims)?;
    gemm::claim(&mut claims)?;
    grouped::claim(&mut claims, experts)?;
    own::check(&claims.kernel)?;
    let mut results = g.results.iter().zip(&claims.kernel.results);
    let unclaimed = results.find(|(n, r)| r.of.is_none() && g.graph[**n].kind != Kind::Saved);
    if let Some((n, _)) = unclaimed {
        let why = "it is not the first or last operation";
        return Err(unsupported(&g.graph[*n].name, why, gemm_rules::CATALOGUE));
    }
    Ok(claims.kernel)
}

/// Whether operations of these kinds have room in one kernel.
///
/// # Errors
/// A `view`; anything beside an attention: the registers of its consumers leave none to another leaf's.
fn together(g: &OpGraph) -> Result<(), LowerError> {
    if g.graph.node_weights().any(|v| v.kind == Kind::View) {
        let why = "a kernel ends before it, and another one begins behind it";
        return Err(unsupported(
            "view",
            why,
            "run the kernels in turn: `mk grad --kernels` shows them, and `mk.compile` in Python runs them",
        ));
    }
    let mut nodes = g.graph.node_indices();
    let Some(first) = nodes.find(|n| attention::is_core(&g.graph[*n].kind)) else {
        return exchange::together(g);
    };
    let beside = |n: &NodeIndex| {
        let kind = &g.graph[*n].kind;
        *n != first && *kind != Kind::Param && !attention::goes_with(kind, &g.graph[first].kind)
    };
    match g.graph.node_indices().find(beside) {
        Some(other) => {
            let why = format!("an `{}` is in the same pipeline", g.graph[first].name);
            Err(unsupported(&g.graph[other].name, why, attention::CATALOGUE))
        }
        None => Ok(()),
    }
}
