//! Tiles of ragged rows, as they were measured: what they cost is what the cache makes of their order, which the cost
//! model does not know.

use super::{config::Config, facts::Facts, values::Returns};
use mk_plan::FEW_BLOCKS;

/// Tokens of a rank from which on sums of ranks' rows go back: of fewer, a further hop takes longer than their bytes.
const MANY_TOKENS: u64 = 256;

/// The tiles for ragged rows; nothing for other kernels.
///
/// A matrix that is read once comes from memory: tiles side by side, which read the same lines of it, follow each
/// other. Where blocks share matrices, those of a group follow each other, as by default.
pub fn of_ragged(config: &Config, facts: &Facts) -> Option<Config> {
    if !facts.ragged {
        return None;
    }
    let combine = match facts.returns {
        // A token has two rows on each rank, or more.
        Some([tokens, slots]) if config.nodes <= 1 && tokens >= MANY_TOKENS => {
            let several = facts.ranks > 1 && slots >= 2 * u64::from(facts.ranks);
            if several { Returns::Sums } else { config.combine }
        }
        _ => config.combine,
    };
    let config = &Config { combine, ..config.clone() };
    // Those of a GEMM, for all its readers.
    let rows = facts.products.iter().map(|p| p.extents[0]).max().unwrap_or(0);
    if rows > 128 * u64::from(FEW_BLOCKS) * facts.groups.max(1) {
        return Some(config.clone());
    }
    let block = if facts.gated() { [128, 256, 64] } else { [128, 128, 64] };
    Some(Config { block, group_m: Some(1), ..config.clone() })
}
