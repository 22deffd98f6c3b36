//! Statistics of queries.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::{
    context::{Context, Phase, misfit},
    error::Result,
    math::statistics,
};
use mk_plan::{Operand, StatsTile};

impl Compute for StatsTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let stats = counted(context, to.phase)?;
        broadcast(regions, |_| Ok(stats.clone()))
    }
}

/// Statistics of a task's queries.
fn counted(context: &Context, phase: Phase) -> Result<Vec<f32>> {
    let all = [Operand::O, Operand::Do, Operand::Lse].map(|o| context.latest(o, phase));
    let [Some(o), Some(d_o), Some(lse)] = all else { return Ok(Vec::new()) };
    if (o.rows, o.cols) != (d_o.rows, d_o.cols) || lse.data.len() != o.rows {
        return Err(misfit("results, their gradients and logarithms have as many rows"));
    }
    Ok(statistics(o, d_o, &lse.data))
}
