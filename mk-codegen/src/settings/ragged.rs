//! Tiles of ragged rows, as they were measured: what they cost is what the cache makes of their order, which the cost model does not know.

use super::{config::Config, facts::Facts};
use crate::ir::FEW_BLOCKS;

/// The tiles for ragged rows; nothing for other kernels.
///
/// A matrix that is read once comes from memory: tiles side by side, which read the same lines of it, follow each other. Where blocks share matrices, those
/// of a group follow each other; and tiles of 192 columns fill whole waves better than those of 256, unless more than one column in twenty is beyond the matrix.
pub fn of_ragged(config: &Config, facts: &Facts) -> Option<Config> {
    if !facts.ragged {
        return None;
    }
    // Those of a product, whoever reads it.
    let rows = facts.products.iter().map(|p| p.extents[0]).max().unwrap_or(0);
    let few = rows <= 128 * u64::from(FEW_BLOCKS) * facts.groups.max(1);
    let wasted =
        |columns: u64| (columns.div_ceil(192) * 192).saturating_sub(columns) * 20 > columns;
    let block = match few {
        _ if facts.gated() => [128, 256, 64],
        true => [128, 128, 64],
        false if facts.products.iter().any(|p| wasted(p.extents[1])) => [128, 256, 64],
        false => [128, 192, 64],
    };
    let group_m = if few { 1 } else { Config::default().group_m };
    Some(Config { block, group_m, ..config.clone() })
}
