//! Row-wise operations (normalisation, elementwise chains). A task computes a few rows; a signal word counts the tasks
//! of a block of rows.
//!
//! Postcondition: the result is a buffer that other families read like a parameter; the draft makes each reader wait
//! for the words of the rows that it reads ([`Draft::made`](crate::passes::draft::Draft)).

use super::tiler::{Tiler, Value};
use crate::passes::{
    draft::{Flow, Writer, read, write},
    shape::{
        map::{Map, RowWork},
        ranks::block_rows,
    },
};
use mk_plan::{
    EPILOGUE_OPERANDS, Expr, Leaf, NormTile, Operand, ReduceTile, RoleKind, RopeTile, Var,
};

/// Fewest and most rows of a task; a warp has at least one row.
const ROWS: [i32; 2] = [8, 64];
/// Rows of a block in kernels without a GEMM.
const BLOCK: i32 = 128;

/// The task family of one row-wise operation.
pub(super) fn families<'k>(t: &mut Tiler<'k>, map: &Map) -> Value<'k> {
    let out = &t.kernel.params[map.out];
    let height = match t.kernel.products().next() {
        Some(_) => t.config.rows_of_task(),
        None => BLOCK,
    };
    let rows = out.widest(0).max(1);
    // Two tasks for each SM, where there are rows for them; a block has whole tasks.
    let wanted = i64::from(rows) / (2 * t.draft.sms()).max(1);
    let mut each = height;
    while each % 2 == 0 && (each > ROWS[1] || i64::from(each) > wanted && each > ROWS[0]) {
        each /= 2;
    }
    let (blocks, parts) = ((rows + height - 1) / height, height / each);
    let i = Expr::from(Var::domain(0));
    let own = t.draft.own(out, 0);
    let len = block_rows(own, i.clone(), each);
    let columns = t.draft.own(out, 1);
    let region = vec![(i.clone() * each, len), (Expr::Const(0), columns)];
    let (leaf, operands) = match &map.how {
        RowWork::Norm { eps, grad } => {
            let read: &[Operand] =
                if *grad { &[Operand::Do, Operand::Src] } else { &[Operand::Src] };
            let names = read.iter().copied().chain([Operand::E0]).collect::<Vec<_>>();
            (Leaf::NormTile(NormTile { eps: *eps, grad: *grad }), names)
        }
        RowWork::Rope { back } => {
            (Leaf::RopeTile(RopeTile { back: *back }), RopeTile::READS.to_vec())
        }
        RowWork::Chain(epilogue) => {
            let names = [Operand::Src].into_iter().chain(EPILOGUE_OPERANDS).collect();
            (Leaf::ReduceTile(ReduceTile { epilogue: epilogue.clone() }), names)
        }
    };
    let vector = |k: usize| t.kernel.params[map.operands[k]].shape.len() == 1;
    let mut touched = Vec::new();
    for (k, operand) in operands.into_iter().enumerate().take(map.operands.len()) {
        let mut of = if vector(k) { region[1..].to_vec() } else { region.clone() };
        if let (RowWork::Rope { .. }, Operand::E0) = (&map.how, operand) {
            of[1].1 = t.draft.own(&t.kernel.params[map.operands[k]], 1);
        }
        touched.push(read(operand, t.params[map.operands[k]], of));
    }
    let buffer = t.params[map.out];
    touched.push(write(Operand::Dst, buffer, region));
    let name = match &map.how {
        RowWork::Norm { .. } => "norm",
        RowWork::Rope { .. } => "rope",
        RowWork::Chain(_) => "map",
    };
    let domain = vec![("i", (blocks * parts).into())];
    let by = t.draft.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
    let writer = Writer::new(by, Operand::Dst, vec![i / parts]);
    let done = t.draft.flow(Flow::new("rows", vec![blocks.into()], parts.into(), vec![writer]));
    t.draft.made(buffer, done, height, blocks);
    Value::Result
}
