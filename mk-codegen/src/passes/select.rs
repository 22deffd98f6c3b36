//! Recognises what one kernel can be made of.
//!
//! Assumes fused epilogues. Leaves a [`Kernel`]: either a gather alone, or a matrix product whose left operand may come
//! through a gather; everything else is refused by name, with what works instead.

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
    pub body: Body,
}

pub(super) enum Body {
    Gather { x: Tensor },
    Gemm(Box<Gemm>),
}

/// A caller's tensor, or the result.
#[derive(Clone)]
pub(super) struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Global.
    pub shape: Vec<Extent>,
    pub placement: Placement,
}

pub(super) struct Gemm {
    pub a: Tensor,
    /// `a` is sharded by rows, and every rank multiplies all of it.
    pub gathered: bool,
    pub b: Tensor,
    pub out: Tensor,
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of the epilogue, in order.
    pub extras: Vec<Tensor>,
}

fn unsupported(op: &str, why: impl Into<String>, help: &str) -> LowerError {
    LowerError::Unsupported { op: op.into(), why: why.into(), help: help.into() }
}

const CATALOGUE: &str = "one kernel holds `gather(a)`, `gemm(a, b)` or `gather(a) -> gemm(b)`, followed by elementwise operations";

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
    let value = &g.graph[*result];
    let body = match &value.kind {
        Kind::Gather { dim } => Body::Gather { x: gathered(g, *result, *dim)? },
        Kind::Gemm { epilogue } => Body::Gemm(Box::new(gemm(g, *result, epilogue, config)?)),
        Kind::Param => {
            return Err(unsupported(&value.name, "it is returned as it came", CATALOGUE));
        }
        Kind::Elementwise(_) => {
            return Err(unsupported(&value.name, "no matrix product precedes it", CATALOGUE));
        }
        Kind::ReduceScatter { .. } | Kind::AllReduce => {
            return Err(unsupported(&value.name, "no pass lowers it yet", CATALOGUE));
        }
    };
    let params = g.graph.node_weights().filter(|v| v.kind == Kind::Param).count();
    let operands = match &body {
        Body::Gather { .. } => 1,
        Body::Gemm(g) => 2 + g.extras.len(),
    };
    if params != operands {
        return Err(unsupported("pipeline", "a parameter is used twice or not at all", CATALOGUE));
    }
    Ok(Kernel { name: g.name.clone(), axis: axis.clone(), body })
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
        Some(v) if v.kind == Kind::Param && dim == 0 && v.shape.len() == 2 => Ok(tensor(v)),
        Some(v) if v.kind != Kind::Param => {
            Err(unsupported("gather", format!("it gathers the result of `{}`", v.name), CATALOGUE))
        }
        _ => Err(unsupported(
            "gather",
            "it does not gather the rows of a matrix",
            "use `[M, K] @ shard(0)`",
        )),
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

fn gemm(
    g: &OpGraph,
    node: NodeIndex,
    epilogue: &[EpilogueOp],
    config: &Config,
) -> Result<Gemm, LowerError> {
    let operands = g.operands(node);
    let [a, b, extras @ ..] = operands.as_slice() else {
        return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
    };
    let (a, gathered) = match g.graph[*a].kind {
        Kind::Gather { dim } if g.uses(*a) == 1 => (gathered(g, *a, dim)?, true),
        Kind::Gather { .. } => {
            return Err(unsupported("gather", "its result is used more than once", CATALOGUE));
        }
        _ => (param(g, *a, "left operand")?, false),
    };
    let b = param(g, *b, "right operand")?;
    let extras =
        extras.iter().map(|x| param(g, *x, "epilogue operand")).collect::<Result<Vec<_>, _>>()?;
    if extras.len() > 4 {
        return Err(unsupported(
            "gemm",
            "more than four epilogue operands follow it",
            "fuse fewer operations",
        ));
    }
    let out = Tensor { name: "out".into(), ..tensor(&g.graph[node]) };
    if out.dtype == DType::F32 {
        return Err(unsupported(
            "cast",
            "results are stored as bf16 or f16",
            "leave out `cast(f32)`",
        ));
    }
    if extras.iter().any(|x| x.dtype != a.dtype) || out.dtype != a.dtype {
        let why = "operands and result of one matrix product have several dtypes";
        return Err(unsupported("gemm", why, "use bf16 or f16 throughout"));
    }
    let k = a.shape.get(1).map_or(0, |k| k.value);
    let split_k = a.placement == Placement::Shard(1) && !gathered;
    if split_k && k < config.ranks as i32 {
        let why = format!("K = {k} leaves some of {} ranks without work", config.ranks);
        return Err(unsupported("gemm", why, "use at least one column of `a` per rank"));
    }
    Ok(Gemm { a, gathered, b, out, epilogue: epilogue.to_vec(), extras })
}
