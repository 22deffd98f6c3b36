//! Attention.

use super::{Attends, Compute, Regions, Values, Write, bounds, broadcast, matrix};
use crate::{
    context::{Context, Phase, misfit},
    error::Result,
    math::{Attention, AttentionStep},
    memory::within,
};
use mk_plan::{AttendTile, Operand, Side};

impl Compute for AttendTile {
    fn moving(&self) -> &'static [Operand] {
        &[Operand::K, Operand::V]
    }

    fn consume(&self, context: &mut Context, a: Attends, phase: Phase) -> Result<()> {
        let bounds = bounds(context, a, self.mask, Side::Queries, phase)?;
        let step = a.step(self.scale, self.mask, self.cap, bounds);
        attend(context, AttentionStep { heads: self.heads.max(1) as usize, ..step }, phase)
    }

    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let state = carried(context, to.phase)?;
        context.attention = state;
        broadcast(regions, |r| {
            let (rows, cols) = matrix(r);
            // A logarithm is one number of a row.
            let (rows, cols) =
                if to.operand == Operand::Lse { (r.len() as usize, 1) } else { (rows, cols) };
            let fresh = || Attention::new(rows, cols);
            let mut state = context.attention.clone().unwrap_or_else(fresh);
            let sink = context.latest(Operand::Sinks, to.phase).and_then(|t| t.data.first());
            if let (Some(sink), Operand::O | Operand::Lse) = (sink, to.operand) {
                state.sink(*sink);
            }
            Ok(match to.operand {
                Operand::AccOut => state.acc.data,
                Operand::StatOut => state.stat.data,
                Operand::Lse => state.logarithms(),
                _ => state.output().data,
            })
        })
    }
}

fn attend(context: &mut Context, step: AttentionStep, phase: Phase) -> Result<()> {
    let mut state = carried(context, phase)?;
    if let (Some(q), Some(k), Some(v)) = (
        context.latest(Operand::Q, phase),
        context.latest(Operand::K, phase),
        context.latest(Operand::V, phase),
    ) {
        within("elements of one tile", (q.rows * v.cols) as u64)?;
        let state = state.get_or_insert_with(|| Attention::new(q.rows, v.cols));
        let acc = (state.acc.rows, state.acc.cols);
        if q.cols != k.cols || k.rows != v.rows || acc != (q.rows, v.cols) {
            return Err(misfit(format!(
                "queries {}x{}, keys {}x{}, values {}x{}, accumulator {}x{}",
                q.rows, q.cols, k.rows, k.cols, v.rows, v.cols, acc.0, acc.1
            )));
        }
        state.step(q, k, v, &step);
    }
    context.attention = state;
    Ok(())
}

/// The state of attention before a step: that of the step before, or what was read from scratch, or none.
fn carried(context: &mut Context, phase: Phase) -> Result<Option<Attention>> {
    if let Some(state) = context.attention.take() {
        return Ok(Some(state));
    }
    match (context.latest(Operand::AccIn, phase), context.latest(Operand::StatIn, phase)) {
        (None, None) => Ok(None),
        (Some(acc), Some(stat)) if stat.cols == 2 && stat.rows == acc.rows => {
            Ok(Some(Attention { acc: acc.clone(), stat: stat.clone() }))
        }
        _ => Err(misfit("`acc_in` is [rows, d] and `stat_in` [rows, 2], or both are absent")),
    }
}
