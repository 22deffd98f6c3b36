//! Recognises what one kernel can be made of.
//!
//! Assumes fused epilogues. Leaves a [`Kernel`]: an optional gather, matrix products one after the other, an optional
//! reduction; or a collective alone. Everything else is refused by name, with what works instead.

use super::{Config, LowerError};
use crate::graph::{Extent, Kind, OpGraph, Value};
use crate::ir::EpilogueOp;
use mk_abi::DType;
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

/// What the kernel computes.
pub(super) struct Kernel {
    pub name: String,
    pub axis: String,
    /// `x` is sharded by rows and gathered first.
    pub gathered: bool,
    /// The caller's first operand: left matrix, or what a collective alone works on.
    pub x: Tensor,
    /// Matrix products; each multiplies the result of the one before, the first `x`.
    pub gemms: Vec<Gemm>,
    /// The result is summed over ranks.
    pub reduce: Option<Reduce>,
    pub out: Tensor,
}

/// Where the sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduce {
    /// Each rank gets its rows.
    Scatter,
    /// Each rank gets all rows.
    All,
}

/// A caller's tensor, or a result.
#[derive(Clone)]
pub(super) struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Global.
    pub shape: Vec<Extent>,
    pub placement: Placement,
}

/// One product with its elementwise tail.
pub(super) struct Gemm {
    pub b: Tensor,
    pub out: Tensor,
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of the epilogue, in order.
    pub extras: Vec<Tensor>,
}

fn unsupported(op: &str, why: impl Into<String>, help: &str) -> LowerError {
    LowerError::Unsupported { op: op.into(), why: why.into(), help: help.into() }
}

const CATALOGUE: &str = "one kernel holds an optional `gather`, matrix products with elementwise operations after each, \
                         and an optional `reduce_scatter` or `all_reduce`";

/// Runs the pass.
///
/// # Errors
/// For every pipeline that is not in the catalogue.
pub(super) fn kernel(g: &OpGraph, config: &Config) -> Result<Kernel, LowerError> {
    let [axis] = g.axes.as_slice() else {
        let why = format!("the mesh has the axes {}", g.axes.join(", "));
        return Err(unsupported("mesh", why, "use one axis"));
    };
    let [result] = g.results.as_slice() else {
        return Err(unsupported("pipeline", "it has several results", "return one value"));
    };
    let out = Tensor { name: "out".into(), ..tensor(&g.graph[*result]) };
    let (reduce, mut at) = reduction(g, *result)?;
    let mut gemms = Vec::new();
    while let Kind::Gemm { epilogue } = &g.graph[at].kind {
        let (gemm, left) = product(g, at, epilogue)?;
        gemms.push(gemm);
        at = left;
    }
    gemms.reverse();
    let (gathered, x) = match &g.graph[at].kind {
        Kind::Gather { dim } => (true, gathered(g, at, *dim)?),
        Kind::Param => (false, tensor(&g.graph[at])),
        Kind::Elementwise(_) => {
            return Err(unsupported(&g.graph[at].name, "no matrix product precedes it", CATALOGUE));
        }
        _ => {
            return Err(unsupported(
                &g.graph[at].name,
                "it is not the first or last operation",
                CATALOGUE,
            ));
        }
    };
    if !gathered && gemms.is_empty() && reduce.is_none() {
        return Err(unsupported(&x.name, "it is returned as it came", CATALOGUE));
    }
    if gathered && gemms.is_empty() && reduce.is_some() {
        return Err(unsupported(
            "gather",
            "nothing is computed between the collectives",
            CATALOGUE,
        ));
    }
    let params = g.graph.node_weights().filter(|v| v.kind == Kind::Param).count();
    if params != 1 + gemms.iter().map(|g| 1 + g.extras.len()).sum::<usize>() {
        return Err(unsupported("pipeline", "a parameter is used twice or not at all", CATALOGUE));
    }
    let kernel =
        Kernel { name: g.name.clone(), axis: axis.clone(), gathered, x, gemms, reduce, out };
    check(&kernel, config)?;
    Ok(kernel)
}

/// The reduction that ends the pipeline, and the value that it reduces.
fn reduction(g: &OpGraph, result: NodeIndex) -> Result<(Option<Reduce>, NodeIndex), LowerError> {
    let reduce = match &g.graph[result].kind {
        Kind::ReduceScatter { dim: 0 } => Reduce::Scatter,
        Kind::ReduceScatter { .. } => {
            return Err(unsupported("reduce_scatter", "it does not scatter rows", "use `dim = 0`"));
        }
        Kind::AllReduce => Reduce::All,
        _ => return Ok((None, result)),
    };
    let operands = g.operands(result);
    match operands.as_slice() {
        [x] if g.uses(*x) == 1 && g.graph[*x].shape.len() == 2 => Ok((Some(reduce), *x)),
        _ => Err(unsupported(
            &g.graph[result].name,
            "it does not reduce a matrix of its own",
            CATALOGUE,
        )),
    }
}

fn tensor(v: &Value) -> Tensor {
    // `kernel` has checked that there is one axis.
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: v.name.clone(), dtype: v.dtype, shape: v.shape.clone(), placement }
}

/// The parameter behind a gather of its rows.
fn gathered(g: &OpGraph, node: NodeIndex, dim: usize) -> Result<Tensor, LowerError> {
    let source = g.operands(node).first().map(|n| &g.graph[*n]);
    match source {
        Some(_) if g.uses(node) != 1 => {
            Err(unsupported("gather", "its result is used more than once", CATALOGUE))
        }
        Some(v) if v.kind == Kind::Param && dim == 0 && v.shape.len() == 2 => Ok(tensor(v)),
        Some(v) if v.kind != Kind::Param => {
            Err(unsupported("gather", format!("it gathers the result of `{}`", v.name), CATALOGUE))
        }
        _ => {
            let why = "it does not gather the rows of a matrix";
            Err(unsupported("gather", why, "use `[M, K] @ shard(0)`"))
        }
    }
}

fn param(g: &OpGraph, node: NodeIndex, what: &str) -> Result<Tensor, LowerError> {
    let v = &g.graph[node];
    if v.kind != Kind::Param {
        let why = format!("its {what} is the result of `{}`", v.name);
        return Err(unsupported("gemm", why, CATALOGUE));
    }
    Ok(tensor(v))
}

/// A product and its left operand.
fn product(
    g: &OpGraph,
    node: NodeIndex,
    epilogue: &[EpilogueOp],
) -> Result<(Gemm, NodeIndex), LowerError> {
    let operands = g.operands(node);
    let [a, b, extras @ ..] = operands.as_slice() else {
        return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
    };
    if g.uses(*a) != 1 {
        return Err(unsupported("gemm", "its left operand is used more than once", CATALOGUE));
    }
    let b = param(g, *b, "right operand")?;
    let extras =
        extras.iter().map(|x| param(g, *x, "epilogue operand")).collect::<Result<Vec<_>, _>>()?;
    if extras.len() > 4 {
        let why = "more than four epilogue operands follow it";
        return Err(unsupported("gemm", why, "fuse fewer operations"));
    }
    Ok((Gemm { b, out: tensor(&g.graph[node]), epilogue: epilogue.to_vec(), extras }, *a))
}

fn check(k: &Kernel, config: &Config) -> Result<(), LowerError> {
    let ranks = config.ranks as i32;
    let mut left = Tensor {
        placement: if k.gathered { Placement::Replicate } else { k.x.placement },
        ..k.x.clone()
    };
    for g in &k.gemms {
        if g.out.dtype == DType::F32 || k.out.dtype == DType::F32 {
            return Err(unsupported(
                "cast",
                "results are stored as bf16 or f16",
                "leave out `cast(f32)`",
            ));
        }
        if g.extras.iter().any(|x| x.dtype != left.dtype) || g.out.dtype != left.dtype {
            let why = "operands and result of one matrix product have several dtypes";
            return Err(unsupported("gemm", why, "use bf16 or f16 throughout"));
        }
        let depth = left.shape.get(1).map_or(0, |e| e.value);
        if left.placement == Placement::Shard(1)
            && depth % ranks != 0
            && (depth + ranks - 1) / ranks * (ranks - 1) >= depth
        {
            let why = format!("a depth of {depth} leaves some of {ranks} ranks without work");
            return Err(unsupported("gemm", why, "use a depth that every rank has a part of"));
        }
        left = g.out.clone();
    }
    if k.x.dtype == DType::F32 {
        return Err(unsupported(
            &k.x.name,
            "kernels move and multiply bf16 and f16",
            "use bf16 or f16",
        ));
    }
    Ok(())
}
