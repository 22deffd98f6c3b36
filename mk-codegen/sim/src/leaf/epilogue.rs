//! Operations of an epilogue, with their operands.

use crate::{
    context::{Context, Phase, misfit},
    error::Result,
    math::{Tile, apply},
};
use mk_plan::{EpilogueOp, Operand};

/// Applies an operation, with the next operand if it has one.
pub(super) fn apply_to<'o>(
    tile: &mut Tile,
    op: EpilogueOp,
    tails: &mut impl Iterator<Item = &'o Operand>,
    context: &Context,
    phase: Phase,
) -> Result<()> {
    let mut other = None;
    if op.operand().is_some() {
        let want = match op.vector() {
            Some(0) => tile.rows,
            Some(_) => tile.cols,
            None => tile.data.len(),
        };
        let found = tails.next().and_then(|o| context.latest(*o, phase));
        other = found.filter(|t| t.data.len() == want);
        if other.is_none() {
            return Err(misfit(format!(
                "the operand of {op:?} must have {want} elements, and has {:?}",
                found.map(|t| t.data.len())
            )));
        }
    }
    apply(op, tile, other);
    Ok(())
}
