//! Rows of groups, cut into blocks.

use thiserror::Error;

/// Blocks that so many rows of each group take.
pub fn needed(counts: &[i32], rows: i32) -> i64 {
    let rows = i64::from(rows.max(1));
    counts.iter().map(|c| (i64::from((*c).max(0)) + rows - 1) / rows).sum()
}

/// Why rows of groups have no table of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BlocksError {
    /// A group cannot have so many rows.
    #[error("group {group} has {rows} rows: give it 0 or more")]
    Negative {
        /// The group.
        group: usize,
        /// Its rows.
        rows: i32,
    },
    /// They take more blocks than there is room for.
    #[error(
        "the rows of groups take {needed} blocks, and there is room for {blocks}: raise the capacity"
    )]
    Capacity {
        /// Blocks that are needed.
        needed: i64,
        /// Blocks that there are.
        blocks: usize,
    },
}

/// The table that [`Tabulation::Blocks`](super::Tabulation::Blocks) makes of the rows of groups: group and rows of each
/// of so many blocks.
///
/// # Errors
/// [`BlocksError`] where a kernel ends with a fault.
pub fn block_table(counts: &[i32], rows: i32, n: usize) -> Result<Vec<i32>, BlocksError> {
    if let Some((group, rows)) = counts.iter().enumerate().find(|(_, rows)| **rows < 0) {
        return Err(BlocksError::Negative { group, rows: *rows });
    }
    let needed = needed(counts, rows);
    if needed > n as i64 {
        return Err(BlocksError::Capacity { needed, blocks: n });
    }
    Ok(blocks(counts, rows, 2 * n))
}

/// Group and rows of each block. Blocks behind the last one are empty, and of the last group; more than there are, are
/// left out.
pub(super) fn blocks(counts: &[i32], rows: i32, n: usize) -> Vec<i32> {
    let mut out = Vec::with_capacity(n);
    for (group, count) in counts.iter().enumerate() {
        let mut left = *count;
        while left > 0 && out.len() < n {
            out.extend([group as i32, left.min(rows)]);
            left -= rows.max(1);
        }
    }
    let last = counts.len().saturating_sub(1) as i32;
    while out.len() + 1 < n {
        out.extend([last, 0]);
    }
    out
}
