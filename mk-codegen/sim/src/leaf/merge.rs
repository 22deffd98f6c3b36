//! Parts of an attention put together.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::{
    context::{Context, misfit},
    error::Result,
    math::Attention,
};
use mk_plan::{MergeTile, Operand};

impl Compute for MergeTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let mut state = merged(context)?;
        if let Some(sink) = context.latest(Operand::Sinks, to.phase).and_then(|t| t.data.first()) {
            state.sink(*sink);
        }
        broadcast(regions, |_| {
            Ok(match to.operand {
                Operand::Lse => state.logarithms(),
                _ => state.output().data,
            })
        })
    }
}

/// All parts of a task, in the order of its steps.
fn merged(context: &Context) -> Result<Attention> {
    let of = |operand: Operand| {
        let mut all: Vec<_> = context.pieces.iter().filter(|p| p.operand == operand).collect();
        all.sort_by_key(|p| p.phase);
        all
    };
    let (parts, sums) = (of(Operand::AccIn), of(Operand::StatIn));
    let mut state: Option<Attention> = None;
    for (acc, stat) in parts.iter().zip(&sums) {
        let (acc, stat) = (acc.tile.clone(), stat.tile.clone());
        if stat.cols != 2 || stat.rows != acc.rows {
            return Err(misfit("`acc_in` is [rows, d], and `stat_in` [rows, 2]"));
        }
        match &mut state {
            Some(state) if state.acc.rows != acc.rows || state.acc.cols != acc.cols => {
                return Err(misfit("parts of other sizes"));
            }
            Some(state) => state.merge(&Attention { acc, stat }),
            None => state = Some(Attention { acc, stat }),
        }
    }
    match state {
        Some(state) if parts.len() == sums.len() => Ok(state),
        _ => Err(misfit("results have parts, with a maximum and a sum of each row")),
    }
}
