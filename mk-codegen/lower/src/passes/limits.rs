//! What no plan has more of, before anything is made as large as it.

use super::{
    draft::Draft,
    error::{LowerError, too_large},
};
use mk_plan::MAX_ENTRIES;

/// Entries of tables, which every reader of a plan fills on every rank.
///
/// # Errors
/// [`LowerError::TooLarge`], with the table that goes beyond them.
pub(super) fn check(draft: &Draft) -> Result<(), LowerError> {
    let ranks = u64::from(draft.plan.mesh.size());
    let mut entries = 0u64;
    for (id, t) in draft.plan.tables.iter() {
        let sizes = t.shape.iter().map(|n| u64::from(*n));
        entries = entries.saturating_add(sizes.fold(ranks, u64::saturating_mul));
        if entries > MAX_ENTRIES {
            let what = format!(
                "{id} {:?} has, with the tables before it and on all ranks together, {entries} entries, of at most \
                 {MAX_ENTRIES}",
                t.name
            );
            return Err(too_large(what));
        }
    }
    Ok(())
}
