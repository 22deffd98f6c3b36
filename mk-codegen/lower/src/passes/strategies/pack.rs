//! Repacks matrices that TMA cannot take as they are: rows and boxes begin at multiples of 16 bytes.
//!
//! Leaves: a copy in scratch with padded rows, and a flow of one word to its readers.

use crate::passes::{
    draft::{Draft, Flow, FlowId, Writer, read, write},
    shape::{
        ranks::block_rows,
        rows::Rows,
        tensor::{Tensor, aligned},
    },
};
use mk_plan::{BufId, CopyVia, Expr, FamId, Operand, RoleKind, Space, Var};

/// Most rows that one repacking task copies.
const MOST_ROWS: i32 = 64;
/// Fewest elements of a row that one task copies, where few rows are cut.
const LEAST_COLUMNS: i32 = 512;
/// Elements of 16 bits in a line of the cache.
const LINE: i32 = 64;

/// Rows that one task copies of so many: two tasks and more for each SM, where there are rows for them.
fn rows_of_task(draft: &Draft, rows: i32) -> i32 {
    let each = i64::from(rows) / (2 * draft.sms()).max(1);
    i32::try_from(each - each % 8).unwrap_or(MOST_ROWS).clamp(8, MOST_ROWS)
}

/// A repacked operand: where it is, and the one word that announces all of it.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Packed {
    pub buffer: BufId,
    pub done: FlowId,
}

/// Copies a matrix into rows that TMA can take, if its own cannot be taken on every rank. Of so many CTAs that share
/// tasks one copies.
pub(in crate::passes) fn matrix(
    draft: &mut Draft,
    t: &Tensor,
    from: BufId,
    operand: Operand,
    ctas_of_worker: u32,
) -> Option<Packed> {
    if t.tma_rows() {
        return None;
    }
    let last = t.shape.len() - 1;
    // Rows begin at lines: a step touches half as many.
    let widest = t.widest(last).max(1);
    let padded = aligned(widest, t.dtype.size_bytes());
    let padded = match widest < LINE {
        true => padded,
        false => (padded + LINE - 1) / LINE * LINE,
    };
    let shape = draft.extents.local_shape(t);
    let name = format!("{}_packed", t.name);
    let pitch = Some(Expr::Const(padded));
    let buffer = draft.buffer(&name, Space::Scratch, t.dtype, shape.clone(), pitch);
    let rows = rows_of_task(draft, t.widest(0));
    let blocks = (t.widest(0) + rows - 1) / rows;
    let i = Expr::from(Var::domain(0));
    let len = block_rows(shape[0].clone(), i.clone(), rows);
    let mut region = vec![(i * rows, len)];
    region.extend(shape[1..].iter().map(|n| (Expr::Const(0), n.clone())));
    let mut domain = vec![("i", blocks.into())];
    let columns = columns_of_task(draft, blocks, widest, ctas_of_worker);
    let parts = (widest + columns - 1) / columns;
    if parts > 1 {
        let j = Expr::from(Var::domain(1));
        region[last] = (j.clone() * columns, block_rows(shape[last].clone(), j, columns));
        domain.push(("j", parts.into()));
    }
    let by = draft.family(
        &format!("pack.{}", t.name),
        RoleKind::Compute,
        CopyVia::Ldst.leaf(1),
        domain,
        vec![],
        vec![read(Operand::Src, from, region.clone()), write(Operand::Dst, buffer, region)],
    );
    Some(Packed { buffer, done: done(draft, operand, by, blocks * parts) })
}

/// Columns that one task copies of so many blocks of rows: whole lines of some, where there are fewer blocks than
/// workers.
fn columns_of_task(draft: &Draft, blocks: i32, columns: i32, ctas_of_worker: u32) -> i32 {
    let workers = draft.sms() / i64::from(ctas_of_worker.max(1));
    let workers = i32::try_from(workers).unwrap_or(i32::MAX);
    let parts = (workers / blocks.max(1)).min(columns / LEAST_COLUMNS);
    match parts > 1 {
        true => ((columns + parts - 1) / parts + LINE - 1) / LINE * LINE,
        false => columns,
    }
}

/// Copies a matrix whose columns are cut by owner into one where every owner's columns begin at a multiple of 16 bytes,
/// as TMA wants: `[rows, shards, columns]`. `None` if they do as they are.
pub(in crate::passes) fn columns_by_owner(
    draft: &mut Draft,
    t: &Tensor,
    from: BufId,
    rows: &Rows,
) -> Option<Packed> {
    let padded = aligned(rows.capacity, t.dtype.size_bytes());
    if rows.shards == 1 || padded == rows.capacity {
        return None;
    }
    let height = draft.own(t, 0);
    let shape = vec![height.clone(), rows.shards.into(), rows.capacity.into()];
    let name = format!("{}_packed", t.name);
    let pitch = Some(Expr::Const(padded));
    let buffer = draft.buffer(&name, Space::Scratch, t.dtype, shape, pitch);
    let each = MOST_ROWS;
    let blocks = (t.widest(0) + each - 1) / each;
    let (i, s) = (Expr::from(Var::domain(0)), Expr::from(Var::domain(1)));
    let down = (i.clone() * each, block_rows(height, i, each));
    let cols = draft.extents.shard(&rows.of.shape[0], rows.shards, s.clone());
    let src = vec![down.clone(), (s.clone() * rows.capacity, cols.clone())];
    let dst = vec![down, (s, 1.into()), (0.into(), cols)];
    let by = draft.family(
        &format!("pack.{}", t.name),
        RoleKind::Compute,
        CopyVia::Ldst.leaf(1),
        vec![("i", blocks.into()), ("s", rows.shards.into())],
        vec![],
        vec![read(Operand::Src, from, src), write(Operand::Dst, buffer, dst)],
    );
    Some(Packed { buffer, done: done(draft, Operand::A, by, blocks * rows.shards) })
}

/// The flow of an operand that so many tasks repack.
fn done(draft: &mut Draft, operand: Operand, by: FamId, tasks: i32) -> FlowId {
    let name = if operand == Operand::A { "packed_a" } else { "packed_b" };
    let writer = Writer::new(by, Operand::Dst, vec![0.into()]);
    draft.flow(Flow::new(name, vec![1.into()], tasks.into(), vec![writer]))
}
