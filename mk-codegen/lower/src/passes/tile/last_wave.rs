//! Last-wave tiles: smaller tiles for a GEMM's last rows.

use super::{
    product::{Cut, Product},
    tiler::Tiler,
};
use crate::passes::{
    draft::TileRows,
    error::LowerError,
    shape::{ids::OpId, rows::Rows},
    strategies::{split_k, sum::Contributions},
};
use crate::settings::{LastWave, Reduction};
use mk_plan::{Operand, Store};

/// The tiles of GEMM `op`, whose result is `r`. The last rows have smaller tiles, which run last.
///
/// # Errors
/// As [`Tiler::tiles`].
pub(super) fn tiles<'k>(
    tiler: &mut Tiler<'k>,
    op: OpId,
    r: usize,
    product: &mut Product<'k>,
    last_wave: LastWave,
) -> Result<Vec<TileRows>, LowerError> {
    let all = product.rows.clone();
    let walked = i32::try_from(last_wave.blocks).unwrap_or(i32::MAX).min(all.blocks);
    let first = all.blocks - walked;
    let last = Rows { from: first, walked, ..all.clone() };
    product.rows = Rows { walked: first, ..all };
    let mut by = if first > 0 { tiler.tiles(product)? } else { Vec::new() };
    let columns = product.set_columns(last_wave.columns);
    product.name += ".last";
    product.rows = last.clone();
    // Tiles of the local shard are complete: only peers' rows are left.
    let mut rows = last;
    if first > 0 || product.own.is_none() {
        product.own = None;
        if tiler.gathered(product.g).is_some_and(|g| !g.own_rows) {
            rows = rows.peers();
        }
    }
    let out = &tiler.kernel.results[r].out;
    product.cut = tiler.cut(op, out, &product.rows, last_wave.parts)?;
    if product.cut.is_some() {
        product.tile.store = Store::Tma;
    }
    let tiles = tiler.tiles(product)?;
    by.extend(tiles.iter().cloned());
    if let Some(Cut { into, parts, .. }) = product.cut {
        let block = [rows.height, columns];
        let tiles = Contributions { rows, block, together: 1, by: tiles, operand: Operand::C };
        let (draft, after) = (&mut tiler.draft, Reduction::AfterLastWave);
        split_k::fold(draft, after, out, (parts, into), product.destination, tiles);
    }
    Ok(by)
}
