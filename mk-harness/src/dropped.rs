//! Rows that launches drop.

use super::{Inputs, routing::keep};
use std::collections::BTreeMap;

/// Rows of a rank's tokens in one launch of a pipeline that drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Rows beyond the capacity of their experts.
    pub dropped: u64,
    /// Rows that the tokens name.
    pub of: u64,
}

/// What a launch drops, by the rank of the tokens; `None` for a pipeline that drops nothing.
pub fn dropped(inputs: &Inputs<'_>, launch: u64) -> Option<Vec<Dropped>> {
    let case = inputs.case();
    let mut all: Option<Vec<Dropped>> = None;
    for tensor in case.program.tensors() {
        let sharing = inputs.sharing(tensor.id);
        let Some(keep) = keep(case, tensor.id, sharing.len()) else { continue };
        let sums = all.get_or_insert_with(|| vec![Dropped::default(); case.ranks]);
        let mut kept = BTreeMap::<i32, usize>::new();
        for rank in sharing {
            let Some(sum) = sums.get_mut(rank) else { continue };
            // A slot of no expert has no row.
            for expert in inputs.ids(launch, tensor, rank).into_iter().filter(|e| *e >= 0) {
                let n = kept.entry(expert).or_default();
                sum.of += 1;
                sum.dropped += u64::from(*n == keep);
                *n = keep.min(*n + 1);
            }
        }
    }
    all
}
