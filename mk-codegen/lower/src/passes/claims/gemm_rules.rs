//! Refuses dense operations that no pass lowers, by name, with what works instead.

use crate::{
    graph::OpGraph,
    passes::{
        error::{LowerError, unsupported},
        shape::{
            ids::Extra,
            kernel::{Kernel, Op, Operand, Product, Sum},
            tensor::Tensor,
        },
    },
};
use mk_plan::{EpilogueOp, quantized};
use mk_syntax::SCALE_BLOCK;
use std::collections::BTreeSet;

pub(super) const CATALOGUE: &str = "one kernel holds gathers of parameters, GEMMs with elementwise operations after \
                         each, and `reduce_scatter` or `all_reduce` of products, with elementwise operations after \
                         them, as results";

/// Whether passes lower it.
///
/// # Errors
/// The first operation that stands in the way.
pub(super) fn check(k: &Kernel, g: &OpGraph) -> Result<(), LowerError> {
    if g.graph.node_weights().any(|v| v.shape.iter().skip(1).any(|e| e.runtime_max.is_some())) {
        let why = "a run-time dimension is not the first of its tensor";
        return Err(unsupported(
            "dyn",
            why,
            "let it count rows of operands A, scaled by rows at most, and of results",
        ));
    }
    let runtime = g.graph.node_weights().flat_map(|v| &v.shape).filter(|e| e.runtime_max.is_some());
    let names: BTreeSet<_> = runtime.filter_map(|e| e.symbol.as_ref()).collect();
    if names.len() > 1 {
        let why = format!("{} of them come with each launch", names.len());
        return Err(unsupported("dyn", why, "let one symbol be `dyn`"));
    }
    for (i, r) in k.results.iter().enumerate() {
        if r.of.is_some() && k.results[..i].iter().any(|other| same_value(k, other.of, r.of)) {
            return Err(unsupported("pipeline", "it returns one value twice", "return it once"));
        }
    }
    k.results.iter().filter_map(|r| r.of).try_for_each(|of| collective(k, of))?;
    k.products().try_for_each(|(_, p)| product(k, p))
}

/// Whether two results are of one operation, or the same sum of one.
fn same_value(k: &Kernel, a: Option<usize>, b: Option<usize>) -> bool {
    match (a.map(|a| &k.ops[a]), b.map(|b| &k.ops[b])) {
        (Some(Op::Sum(a)), Some(Op::Sum(b))) => a.of == b.of && a.how == b.how,
        // Values and their factors.
        (Some(Op::Map(map)), Some(Op::Map(_))) if map.factors.is_some() => false,
        // Rows, and how many were dropped: that either is a result once is seen where they are claimed.
        (Some(Op::Ragged(_)), Some(Op::Ragged(_))) => false,
        _ => a == b,
    }
}

/// Whether a result is no operand as it came, nor one that is turned as it moves.
fn collective(k: &Kernel, of: usize) -> Result<(), LowerError> {
    let (operand, moves) = match &k.ops[of] {
        Op::Operand(operand) => (operand, operand.gathered.is_some()),
        Op::Sum(Sum { of, .. }) => match &k.ops[*of] {
            Op::Operand(operand) => (operand, true),
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    let x = &k.params[operand.param];
    if !moves {
        return Err(unsupported(&x.name, "it is returned as it came", CATALOGUE));
    }
    if operand.transposed {
        return Err(unsupported(&x.name, "a collective moves it as it lies", "leave out `.t`"));
    }
    Ok(())
}

fn product(k: &Kernel, p: &Product) -> Result<(), LowerError> {
    let b = &k.params[p.b];
    let left = k.value(p.left);
    if left.shape.len() != 2 {
        return Err(unsupported("gemm", "its operand A is not a matrix", CATALOGUE));
    }
    let along_k = match &k.ops[p.left] {
        Op::Operand(Operand { transposed: true, .. }) => Some(0),
        _ => Some(1),
    };
    let sharded = along_k.and_then(|d| left.cut(d));
    let depth = sharded.map(|cut| left.shape[cut.dim].value);
    let ranks = sharded.map_or(1, |cut| cut.ranks);
    let narrow = left.dtype.is_narrow() && b.dtype.is_narrow();
    if left.dtype != b.dtype && !narrow || !left.dtype.multiplies() {
        let why = "its operands are not of one 16-bit dtype, or of eight bits, both";
        return Err(unsupported("gemm", why, "use one 16-bit dtype, or `cast` between products"));
    }
    let saved = |x: &Extra| match x {
        Extra::Result(r) => Some(&k.results[*r].out).filter(|t| t.dtype.is_storage()),
        _ => None,
    };
    if let Some(t) = p.extras.iter().find_map(saved) {
        let why = format!("`{}` is {}, and more is computed with it", t.name, t.dtype);
        return Err(unsupported("cast", why, "let what is saved on the way have 16 or 32 bits"));
    }
    if b.shape.iter().any(|e| e.runtime_max.is_some()) {
        deep(k, p, sharded.is_some(), ranks)?;
    }
    if p.epilogue.contains(&EpilogueOp::ScaleSteps)
        && let Op::Operand(Operand { param, .. }) = &k.ops[p.left]
    {
        whole_blocks(&k.params[*param], 1)?;
    }
    if p.epilogue.contains(&EpilogueOp::ScaleBlocks) {
        whole_blocks(b, 0)?;
        whole_blocks(b, 1)?;
    }
    if quantized(&p.epilogue).is_some() {
        whole_blocks(&p.out, 1)?;
    }
    if p.gated() && p.b_transposed {
        let why = "its weights are transposed";
        return Err(unsupported("swiglu", why, "store them as `[K, 2, F]`"));
    }
    if let Some(depth) = depth
        && depth % ranks != 0
        && (depth + ranks - 1) / ranks * (ranks - 1) >= depth
    {
        let why = format!("K = {depth} leaves some of {ranks} ranks without work");
        return Err(unsupported("gemm", why, "use a K that every rank has a part of"));
    }
    Ok(())
}

/// Whether every rank has whole blocks of a dimension, each of which has a factor.
pub(super) fn whole_blocks(x: &Tensor, dim: usize) -> Result<(), LowerError> {
    let (n, ranks) = (x.shape[dim].value, x.cut(dim).map_or(1, |cut| cut.ranks));
    let block = SCALE_BLOCK as i32;
    if ranks == 1 || n % (block * ranks) == 0 {
        return Ok(());
    }
    let why = format!("shards of {ranks} ranks cut blocks of {block} of {n} in `{}`", x.name);
    let help = format!("use a multiple of {} there, or `scaled(1, K)`", block * ranks);
    Err(unsupported("scaled", why, &help))
}

/// A GEMM over rows that come with each launch, as a weight's gradient is: `x.t` and `dy`, all rows of both on every
/// rank, in memory that ends where they do, because what is read behind the last must be zeros.
fn deep(k: &Kernel, p: &Product, cut: bool, ranks: i32) -> Result<(), LowerError> {
    let b = &k.params[p.b];
    let refuse = |why: String, help| Err(unsupported("gemm", why, help));
    let left = match &k.ops[p.left] {
        Op::Operand(Operand { param, transposed: true, gathered: None, .. }) => &k.params[*param],
        _ => {
            let why = format!("the size of `{}` comes with each launch", b.name);
            let help = "let `dyn` count rows of operands A and results, or rows of both operands of `gemm(x.t, y)`";
            return refuse(why, help);
        }
    };
    if p.b_transposed || p.gated() {
        let why = format!("the size of `{}` comes with each launch", b.name);
        return refuse(why, "let `dyn` count rows of both factors of a plain `gemm(x.t, y)`");
    }
    if cut && ranks > 1 {
        let why =
            format!("ranks share the rows of `{}`, whose number comes with each launch", b.name);
        return refuse(why, "give every rank all of these rows, or let their number be fixed");
    }
    match [left, b].into_iter().find(|t| !t.tma_rows()) {
        None => Ok(()),
        Some(t) => refuse(
            format!(
                "rows of `{}` are no multiple of 16 bytes, and their number comes with each launch",
                t.name
            ),
            "let the number of rows be fixed, or pad their length",
        ),
    }
}
