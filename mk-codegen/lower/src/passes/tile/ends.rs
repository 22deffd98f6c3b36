//! Checks tiles of odd widths, and those with swapped operands, once the plan is made: their results leave in boxes
//! that end where rows do.

use crate::passes::error::LowerError;
use crate::settings::{self, Facts};
use crate::settings::{Config, Refusal, by_name};
use mk_plan::{ALayout, Leaf, MmaTile, Operand, Plan, Points, Store, TableSet, mma_swaps};

/// Whether tiles of odd widths, or with swapped operands, end where their rows do: rows that end elsewhere leave one by
/// one, in whole panels of 64 columns.
///
/// # Errors
/// [`LowerError::Setting`] with what would fit.
pub(in crate::passes) fn check(
    plan: &Plan,
    config: &Config,
    facts: &Facts,
) -> Result<(), LowerError> {
    let refused = |why: String, help: &str| {
        let value = by_name("block").map(|s| (s.get)(config)).unwrap_or_default();
        // Which these are never asked for.
        let whole =
            |[rows, columns]: [u32; 2]| columns.is_multiple_of(64) && !mma_swaps([rows, columns]);
        let instead = settings::other_tiles(config, facts, whole);
        let named = settings::set_one_of(&instead);
        let help = if named.is_empty() { help.into() } else { format!("{help}: {named}") };
        Err(Refusal { setting: "block", value, why, help, instead }.into())
    };
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    for (id, f) in plan.families.iter() {
        let columns = f.leaf.out_columns();
        let Leaf::MmaTile(MmaTile { block, store, a_layout, .. }) = f.leaf else {
            continue;
        };
        let swaps = mma_swaps([block[0], block[1]]);
        if swaps && a_layout == ALayout::Km {
            let why = format!("no tiles of {} x {} multiply these operands", block[0], block[1]);
            let help = "with other than 64, 128 or 256 rows, operand A is not transposed";
            return refused(why, help);
        }
        if store == Store::Direct || columns.is_multiple_of(64) && !swaps {
            continue;
        }
        for c in f.accesses.iter().filter(|a| a.operand == Operand::C) {
            // Without a value there, the plan is refused elsewhere, with the place.
            if let Ok(Some(_)) = points.clipped(id, c, [block[0], columns]) {
                let why = format!("rows end inside tiles of {} x {}", block[0], block[1]);
                let help = "use a multiple of 64 columns, and 64, 128 or 256 rows, where ranks have rows that are no \
                    multiple of a tile's, or rows come with each launch";
                return refused(why, help);
            }
        }
    }
    Ok(())
}
