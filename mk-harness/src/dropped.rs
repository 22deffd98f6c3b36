//! Rows that launches drop.

use super::{Inputs, routing::keep};
use mk_syntax::Tensor;
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
        let Some(of_ranks) = dropped_of(inputs, launch, tensor) else { continue };
        let sums = all.get_or_insert_with(|| vec![Dropped::default(); case.ranks]);
        for (rank, Dropped { dropped, of }) in of_ranks {
            let Some(sum) = sums.get_mut(rank) else { continue };
            sum.dropped += dropped;
            sum.of += of;
        }
    }
    all
}

/// What a launch drops of the tokens of each of the ranks that share these ids; `None` where it drops nothing.
pub(crate) fn dropped_of(
    inputs: &Inputs<'_>,
    launch: u64,
    ids: &Tensor,
) -> Option<Vec<(usize, Dropped)>> {
    let sharing = inputs.sharing(ids.id);
    let keep = keep(inputs.case(), ids.id, sharing.len())?;
    let mut kept = BTreeMap::<i32, usize>::new();
    let of_rank = |rank| {
        let mut sum = Dropped::default();
        // A slot of no expert has no row.
        for expert in inputs.ids(launch, ids, rank).into_iter().filter(|e| *e >= 0) {
            let n = kept.entry(expert).or_default();
            sum.of += 1;
            sum.dropped += u64::from(*n == keep);
            *n = keep.min(*n + 1);
        }
        (rank, sum)
    };
    Some(sharing.into_iter().map(of_rank).collect())
}
