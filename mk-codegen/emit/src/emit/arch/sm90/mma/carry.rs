//! The partial sum that a tile of a GEMM goes on with.
//!
//! It has C's columns, in a buffer of C's type whose rows begin at multiples of 16 bytes. The loader brings it in the
//! second half of the tile's steps along k, so that the sum has had the time of the first half to arrive; or behind all
//! of them, where the GEMM goes through an elementwise chain first.

use super::operands::rows_of;
use crate::emit::{EmitError, Result, context::Emitter, maps::View};
use minijinja::{Value, context};
use mk_plan::{
    Access, EpilogueOp, Expr, FamId, Leaf, MmaTile, Operand, Point, Store, Var, carry_last, gated,
};

/// Its template values, for a GEMM whose epilogue carries.
///
/// # Errors
/// [`EmitError::Refused`] for sums that the loader cannot bring.
pub(in crate::emit) fn carry(
    e: &mut Emitter<'_>,
    id: FamId,
    c: &Access,
    box_dims: &[u32],
) -> Result<Value> {
    let f = &e.plan.families[id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let mut all = f.accesses.iter().filter(|a| a.operand == Operand::AccIn);
    let (Some(x), None) = (all.next(), all.next()) else {
        return refuse("`carry` reads one access, `acc_in`");
    };
    let epilogue = f.leaf.epilogue();
    let tma = matches!(f.leaf, Leaf::MmaTile(MmaTile { store: Store::Tma, .. }));
    if epilogue.contains(&EpilogueOp::Save) {
        return refuse("a product with `carry` saves nothing");
    }
    if gated(epilogue) || !tma || epilogue.last() != Some(&EpilogueOp::Carry) {
        return refuse(
            "`carry` is the last operation of an epilogue without a gate, and its tiles leave by TMA",
        );
    }
    if x.each.is_some() {
        return refuse("`carry` reads one partial sum, without `each`");
    }
    in_time(e, id, x, carry_last(epilogue))?;
    let last = |a: &Access| a.region[a.region.len() - 1].clone();
    let dtype = |a: &Access| e.plan.buffers[a.buffer].dtype;
    let pitches = &e.layout.buffers[x.buffer].pitch;
    let spaced = pitches.iter().all(|n| n * dtype(x).size_bytes() as i64 % 16 == 0);
    let here = x.rank == Expr::Var(Var::RANK) && x.region.len() > 1;
    if !here || !spaced || last(x) != last(c) {
        return refuse("the partial sum of `carry` does not lie as C does");
    }
    if rows_of(e, id, x)? + 2 != x.region.len() {
        return refuse("rows of the partial sum of `carry` are contiguous");
    }
    e.check_starts(id, x)?;
    let rows = &x.region[x.region.len() - 2].1;
    let (row, rows) = (e.c(f, None, &e.row(x)), e.c(f, None, rows));
    let map = e.maps.index(e.plan, x.buffer, &View::rows(x.region.len()), box_dims)?;
    Ok(context! { row, rows, map })
}

/// Every task reads the sum exactly once, in an iteration that has begun when half of the steps along k are made: then
/// the loader, which brings it in the second half, is behind the waits that protect it. If it comes `last`, any
/// iteration will do, and the task's end.
fn in_time(e: &Emitter<'_>, id: FamId, x: &Access, last: bool) -> Result<()> {
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(id, rank, 1)? {
            let iterations = e.points.inner(&task)?;
            let mut reads = Vec::new();
            for i in 0..iterations {
                e.points.for_each::<EmitError>(&task, i, None, x.when.as_ref(), |_| {
                    reads.push(i);
                    Ok(())
                })?;
                if x.at != Point::Inner {
                    break;
                }
            }
            let early = last || x.at != Point::End;
            if !matches!(reads.as_slice(), [i] if early && (last || 2 * i <= iterations)) {
                let what = format!(
                    "task {:?} of rank {rank} reads the partial sum of `carry` at {}, in iterations {reads:?} of \
                     {iterations}: it is read once, in an iteration that begins in the first half of the steps along \
                     k, or with the second; or at any point behind elementwise operations",
                    task.domain(),
                    x.at.name()
                );
                return EmitError::refuse(e.plan.families[id].name.clone(), what);
            }
        }
    }
    Ok(())
}
