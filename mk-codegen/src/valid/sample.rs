//! Contents for run-time tables: the cases on which proofs about all tables are tested.

use crate::ir::{Entity, Plan, TabId, TableSet, TableSource};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// A way to fill the run-time tables of a plan. Entries stay within their declared ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Every entry is its least value.
    Min,
    /// Every entry is its greatest value.
    Max,
    /// Entry `i` (modulo the number of entries) is the greatest, all others the least value.
    OneMax(usize),
    /// Least and greatest values take turns; odd ranks begin with the greatest.
    Alternate,
    /// Random entries, different on every rank.
    Random(u64),
}

impl TableKind {
    /// The kinds on which the verifier runs every plan that has run-time tables.
    pub const ALL: &'static [TableKind] = &[
        TableKind::Random(1),
        TableKind::Max,
        TableKind::Min,
        TableKind::Alternate,
        TableKind::OneMax(0),
        TableKind::Random(2),
        TableKind::OneMax(1),
        TableKind::Random(3),
    ];
}

/// Fills the run-time tables of a plan, on every rank.
pub fn sample_tables(plan: &Plan, kind: TableKind) -> TableSet {
    TableSet::new(plan, |rank, id| {
        let (n, min, max) = bounds(plan, id);
        let mut rng = match kind {
            TableKind::Random(seed) => {
                SmallRng::seed_from_u64(seed ^ (rank as u64) << 32 ^ (id.index() as u64) << 48)
            }
            _ => SmallRng::seed_from_u64(0),
        };
        let entry = |i: usize| match kind {
            TableKind::Min => min,
            TableKind::Max => max,
            TableKind::OneMax(at) => {
                if i == at % n.max(1) {
                    max
                } else {
                    min
                }
            }
            TableKind::Alternate => {
                if (i + rank).is_multiple_of(2) {
                    min
                } else {
                    max
                }
            }
            TableKind::Random(_) => rng.random_range(min..=max),
        };
        (0..n).map(entry).collect()
    })
}

/// Fills each run-time table with one value, chosen by `value`.
pub(super) fn uniform(plan: &Plan, mut value: impl FnMut(TabId) -> i32) -> TableSet {
    TableSet::new(plan, |_, id| vec![value(id); bounds(plan, id).0])
}

/// Entries of a table, and the range of a run-time table.
pub(super) fn bounds(plan: &Plan, id: TabId) -> (usize, i32, i32) {
    let table = &plan.tables[id];
    let n = table.shape.iter().map(|n| *n as usize).product();
    match table.source {
        TableSource::Runtime { min, max } => (n, min, max.max(min)),
        _ => (n, 0, 0),
    }
}
