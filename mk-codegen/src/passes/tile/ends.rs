//! Checks tiles of odd widths, once the plan is made: their results leave in boxes that end where rows do.

use crate::passes::error::LowerError;
use crate::{
    ir::{Leaf, Operand, Plan, Points, Store, TableSet},
    settings::{Config, Refusal, by_name},
};

/// Whether tiles of odd widths end where their rows do: rows that end elsewhere leave one by one, in whole panels of 64 columns.
///
/// # Errors
/// [`LowerError::Setting`] with what would fit.
pub(in crate::passes) fn check(plan: &Plan, config: &Config) -> Result<(), LowerError> {
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    for (id, f) in plan.families.iter() {
        let columns = f.leaf.out_columns();
        let Leaf::MmaTile { block, store: Store::Tma, .. } = f.leaf else { continue };
        if columns.is_multiple_of(64) {
            continue;
        }
        for c in f.accesses.iter().filter(|a| a.operand == Operand::C) {
            // Without a value there, the plan is refused elsewhere, with the place.
            if let Ok(Some(_)) = points.clipped(id, c, [block[0], columns]) {
                let why = format!("rows end inside tiles of {} x {}", block[0], block[1]);
                let help = "use a multiple of 64 columns where ranks have rows that are no multiple of a tile's, or rows come with each launch".into();
                let value = by_name("block").map(|s| (s.get)(config)).unwrap_or_default();
                return Err(Refusal { setting: "block", value, why, help }.into());
            }
        }
    }
    Ok(())
}
