//! Row-wise operations (normalisation, elementwise chains). A task computes a few rows; a signal word counts the tasks
//! of a block of rows.
//!
//! Postcondition: the result is a buffer that other families read like a parameter; the draft makes each reader wait
//! for the words of the rows that it reads ([`Draft::made`](crate::passes::draft::Draft)).

use super::tiler::{Tiler, Value};
use crate::passes::{
    draft::{Flow, Writer, read, write},
    shape::{
        ids::Param,
        map::{Map, RowWork},
        ranks::block_rows,
    },
};
use mk_plan::{
    EPILOGUE_OPERANDS, EpilogueOp, Expr, Leaf, Mode, NormTile, Operand, QuantTile, ReduceTile,
    RoleKind, RopeTile, SWIGLU_GRAD, Var,
};

/// Fewest and most rows of a task; a warp has at least one row.
const ROWS: [i32; 2] = [8, 64];
/// Rows of a task beside rows of experts: the same for any number of tokens, so that plans of few lead to those of
/// many.
const BESIDE_EXPERTS: i32 = 16;
/// Rows of a block in kernels without a GEMM.
const BLOCK: i32 = 128;

/// The task families of one row-wise operation.
pub(super) fn families<'k>(t: &mut Tiler<'k>, map: &Map) -> Value<'k> {
    let out = &t.kernel.params[map.out];
    let height = match t.kernel.products().next() {
        Some(_) => t.config.rows_of_task(),
        None => BLOCK,
    };
    let rows = out.widest(0).max(1);
    // Two tasks for each SM, where there are rows for them; a block has whole tasks.
    let wanted = i64::from(rows) / (2 * t.draft.sms()).max(1);
    let (wanted, least) = match t.kernel.grouped().next() {
        Some(_) => (0, BESIDE_EXPERTS),
        None => (wanted, ROWS[0]),
    };
    let mut each = height;
    while each % 2 == 0 && (each > ROWS[1] || i64::from(each) > wanted && each > least) {
        each /= 2;
    }
    let (blocks, parts) = ((rows + height - 1) / height, height / each);
    let i = Expr::from(Var::domain(0));
    let own = t.draft.own(out, 0);
    let len = block_rows(own, i.clone(), each);
    let columns = t.draft.own(out, out.shape.len() - 1);
    let region = [(i.clone() * each, len), (Expr::Const(0), columns)];
    let buffer = t.params[map.out];
    let name = match &map.how {
        RowWork::Norm { .. } => "norm",
        RowWork::Rope { .. } => "rope",
        RowWork::Quant { back: false, .. } => "quantize",
        RowWork::Quant { back: true, .. } => "dequantize",
        RowWork::Chain(_) => "map",
    };
    let pieces = pieces(t, map);
    let mut writers = Vec::new();
    for Piece { leaf, operands, half } in &pieces {
        let mut touched: Vec<_> = operands
            .iter()
            .map(|(operand, k, half)| {
                let param = map.operands[*k];
                let wide = t.kernel.params[param].shape.len();
                let mut of = part(&region, wide, *half);
                if let (RowWork::Rope { .. }, Operand::E0) = (&map.how, operand) {
                    of[1].1 = t.draft.own(&t.kernel.params[param], 1);
                }
                if let (RowWork::Quant { .. }, Operand::E0) = (&map.how, operand) {
                    of = all_blocks(t, param, &region);
                }
                read(*operand, t.params[param], of)
            })
            .collect();
        touched.push(write(Operand::Dst, buffer, part(&region, out.shape.len(), *half)));
        if let Some((factors, _)) = map.factors {
            let of = all_blocks(t, factors, &region);
            touched.push(write(Operand::E0, t.params[factors], of));
        }
        let domain = vec![("i", (blocks * parts).into())];
        let by = t.draft.family(name, RoleKind::Compute, leaf.clone(), domain, vec![], touched);
        writers.push(Writer::new(by, Operand::Dst, vec![i.clone() / parts]));
    }
    let posts = parts * pieces.len() as i32;
    let done = t.draft.flow(Flow::new("rows", vec![blocks.into()], posts.into(), writers));
    t.draft.made(buffer, 0, done, height, blocks);
    if let Some((factors, _)) = map.factors {
        t.draft.made(t.params[factors], 1, done, height, blocks);
    }
    Value::Result
}

/// The factors of all blocks of some rows.
fn all_blocks(
    t: &mut Tiler<'_>,
    factors: Param,
    [rows, _]: &[(Expr, Expr); 2],
) -> Vec<(Expr, Expr)> {
    let all = t.draft.own(&t.kernel.params[factors], 0);
    vec![(Expr::Const(0), all), rows.clone()]
}

/// A family's part of the work: what it reads, by the operation's operand, and which halves of what has gates and ups
/// side by side.
struct Piece {
    leaf: Leaf,
    operands: Vec<(Operand, usize, i32)>,
    half: i32,
}

fn pieces(t: &Tiler<'_>, map: &Map) -> Vec<Piece> {
    let n = map.operands.len();
    let epilogue = match &map.how {
        RowWork::Norm { eps, grad } => {
            let read: &[Operand] =
                if *grad { &[Operand::Do, Operand::Src] } else { &[Operand::Src] };
            let names = read.iter().copied().chain([Operand::E0]).take(n);
            let operands = names.zip(0..).map(|(operand, k)| (operand, k, 0)).collect();
            let leaf = Leaf::NormTile(NormTile { eps: *eps, grad: *grad });
            return vec![Piece { leaf, operands, half: 0 }];
        }
        RowWork::Rope { back } => {
            let operands = RopeTile::READS.into_iter().zip(0..).map(|(o, k)| (o, k, 0)).collect();
            let leaf = Leaf::RopeTile(RopeTile { back: *back });
            return vec![Piece { leaf, operands, half: 0 }];
        }
        RowWork::Quant { narrow, back } => {
            let leaf = QuantTile { narrow: *narrow, back: *back };
            let operands = leaf.reads().iter().zip(0..).map(|(o, k)| (*o, k, 0)).collect();
            return vec![Piece { leaf: Leaf::QuantTile(leaf), operands, half: 0 }];
        }
        RowWork::Chain(epilogue) => epilogue,
    };
    let split = epilogue.windows(SWIGLU_GRAD.len()).position(|ops| ops == SWIGLU_GRAD);
    let halves = if t.kernel.params[map.out].shape.len() == 3 { 2 } else { 1 };
    let mut pieces = Vec::new();
    for half in 0..halves {
        // The operations of this half, with the operands that they have, and which halves of these.
        let (mut ops, mut operands, mut next) = (Vec::new(), vec![(0, half)], 1);
        for (i, op) in epilogue.iter().enumerate() {
            let at = split.and_then(|s| i.checked_sub(s)).filter(|at| *at < SWIGLU_GRAD.len());
            let own = matches!((at, half), (None, _) | (Some(1), 1) | (Some(3 | 4), 0));
            let of = match at {
                None if halves == 1 => 1,
                None => half,
                Some(at) => i32::from(SWIGLU_GRAD[at] == EpilogueOp::Mul),
            };
            let reads = op.operand() == Some(Mode::Read);
            if own {
                ops.push(*op);
                operands.extend(reads.then_some((next, of)));
            }
            next += usize::from(reads);
        }
        // Of gates and ups that become one matrix the source is the gates.
        operands[0].1 = if halves == 1 { 0 } else { half };
        let names = [Operand::Src].into_iter().chain(EPILOGUE_OPERANDS);
        let operands = names.zip(operands).map(|(name, (k, half))| (name, k, half)).collect();
        let leaf = Leaf::ReduceTile(ReduceTile { epilogue: ops });
        pieces.push(Piece { leaf, operands, half });
    }
    pieces
}

/// A region of a tensor of so many dimensions: of a vector its columns, of gates and ups side by side one of the two.
fn part(region: &[(Expr, Expr); 2], wide: usize, half: i32) -> Vec<(Expr, Expr)> {
    let [rows, columns] = region.clone();
    match wide {
        1 => vec![columns],
        3 => vec![rows, (Expr::Const(half), Expr::Const(1)), columns],
        _ => vec![rows, columns],
    }
}
