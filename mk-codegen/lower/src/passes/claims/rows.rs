//! Claims row-wise operations: normalisation, and elementwise chains that are not the epilogue of a GEMM or a
//! reduction.
//!
//! Their results are written to memory before another operation reads them, so other claims see them as parameters of
//! the kernel.

use super::{
    builder::{Claims, tensor},
    gemm_rules,
};
use crate::{
    graph::Kind,
    passes::{
        error::{LowerError, unsupported},
        shape::{
            kernel::Op,
            map::{Map, RowWork},
            tensor::Tensor,
        },
    },
};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp};
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

const HELP: &str = "let it read parameters, gathered or not, or what other operations on rows make of them; \
     a function (`mk.compile`) cuts a pipeline into kernels where one cannot hold it";

/// Claims all of them, in dataflow order.
///
/// # Errors
/// For operands that another operation of the kernel makes, and rows that no leaf takes.
pub(super) fn claim(claims: &mut Claims<'_>) -> Result<(), LowerError> {
    for node in claims.g.in_order() {
        let how = match &claims.value(node).kind {
            Kind::RmsNorm { eps } => RowWork::Norm { eps: *eps, grad: false },
            Kind::RmsNormGrad { eps } => RowWork::Norm { eps: *eps, grad: true },
            Kind::Rope { back } => RowWork::Rope { back: *back },
            Kind::Quantize => RowWork::Quant { narrow: claims.value(node).dtype, back: false },
            Kind::Restore => {
                let values = claims.g.operands(node);
                let of = values.first().map_or(node, |x| *x);
                RowWork::Quant { narrow: claims.value(of).dtype, back: true }
            }
            Kind::Chain { epilogue } => RowWork::Chain(epilogue.clone()),
            _ => continue,
        };
        map(claims, node, how)?;
    }
    Ok(())
}

/// Why an operand is not in memory before the kernel's other operations.
fn why(claims: &Claims<'_>, how: &RowWork, operand: NodeIndex) -> String {
    let (g, value) = (claims.g, claims.value(operand));
    let fuses = matches!(how, RowWork::Chain(_)) && value.kind.epilogue().is_some();
    match &value.kind {
        _ if !fuses => format!("an operand of it is the result of `{}`", value.name),
        Kind::Gemm { .. } if g.graph.neighbors(operand).count() > 1 => {
            "another operation reads the GEMM before it, too".into()
        }
        Kind::Gemm { .. } if value.placement.contains(&Placement::Partial) => {
            "the caller gets the partial sums before it, too".into()
        }
        Kind::Gemm { .. } => "the caller gets the GEMM before it twice".into(),
        _ => "the caller, or another operation, gets the sum before it, too".into(),
    }
}

/// Both halves of a head are multiples of 16 bytes.
const HEAD: i32 = 16;

/// Whether every rank has whole heads of what `rope` turns.
fn heads(claims: &Claims<'_>, operands: &[NodeIndex], out: &Tensor) -> bool {
    let Some(head) = operands.get(1).and_then(|t| claims.value(*t).shape.last()) else {
        return false;
    };
    let head = head.value;
    out.even(1) && head > 0 && head % HEAD == 0 && out.widest(1) % head == 0
}

fn map(claims: &mut Claims<'_>, node: NodeIndex, how: RowWork) -> Result<(), LowerError> {
    let (g, value) = (claims.g, claims.value(node));
    let refuse = |why: String| Err(unsupported(&value.name, why, HELP));
    let operands = g.operands(node);
    let others = |n: &NodeIndex| claims.param(*n).is_none();
    if let Some(other) = operands.iter().find(|n| others(n)) {
        return refuse(why(claims, &how, *other));
    }
    let norm = matches!(how, RowWork::Norm { .. } | RowWork::Quant { .. });
    let halves = value.shape.len() == 3 && value.shape[1].value == 2;
    if norm && value.placement.contains(&Placement::Partial)
        || value.shape.len() != 2 && (norm || !halves)
    {
        return refuse("it is not of the rows of a matrix that a rank has".into());
    }
    let out = tensor(value, &value.name, &claims.sizes);
    let taken = match &how {
        RowWork::Norm { .. } => out.in_bulk() && out.dtype.multiplies(),
        RowWork::Quant { back, .. } => {
            let narrow = if *back { operands.first().copied() } else { Some(node) };
            let narrow =
                narrow.map(|n| tensor(claims.value(n), &claims.value(n).name, &claims.sizes));
            match narrow.as_ref().and_then(|t| gemm_rules::whole_blocks(t, 1).err()) {
                Some(error) => return Err(error),
                None => narrow.is_some_and(|t| t.in_bulk()),
            }
        }
        RowWork::Rope { .. } => out.dtype.multiplies() && heads(claims, &operands, &out),
        // Of gates and ups, each half of a gradient leaves out one.
        RowWork::Chain(epilogue) => {
            let out = usize::from(epilogue.contains(&EpilogueOp::Keep));
            operands.len() <= EPILOGUE_OPERANDS.len() + 1 + out
        }
    };
    if !taken {
        return match how {
            RowWork::Norm { .. } => {
                refuse("its rows are not of bf16 or f16, or no multiples of 16 bytes".into())
            }
            RowWork::Quant { .. } => {
                refuse("its rows of eight bits are no multiples of 16 bytes".into())
            }
            RowWork::Rope { .. } => refuse(format!(
                "its rows are not of bf16 or f16, or no whole heads on every rank, of multiples of {HEAD} elements"
            )),
            RowWork::Chain(_) => refuse("more than four operands follow it".into()),
        };
    }
    let returned =
        |n: NodeIndex| (0..g.results.len()).filter(|r| g.results[*r] == n).collect::<Vec<_>>();
    let beside = g.graph.neighbors(node).find(|n| g.graph[*n].kind == Kind::Factor);
    let all = [Some(node), beside].map(|n| n.map_or(Vec::new(), returned));
    if all.iter().any(|r| r.len() > 1) {
        return refuse("it is a result twice".into());
    }
    let [result, other] = all.map(|r| r.first().copied());
    let operands = operands.iter().filter_map(|n| claims.param(*n)).collect();
    let name = format!("{}_scale", value.name);
    let made = claims.made(node, out);
    let factors = beside.map(|n| {
        let factors = tensor(claims.value(n), &name, &claims.sizes);
        (claims.made(n, factors), other)
    });
    let map = Map { how, operands, out: made, result, factors };
    claims.add(Op::Map(map), [result, other].into_iter().flatten());
    Ok(())
}
