//! Last-wave tiles: those of a product's last rows, smaller than the others.

use super::Tiler;
use crate::ir::{Leaf, Operand, Store};
use crate::passes::{
    draft::Covers,
    fold,
    product::{Cut, Product},
    reduce::Summands,
    rows::Rows,
};
use crate::settings::{LastWave, Reduction};

impl<'k> Tiler<'k> {
    /// The tiles of a product that is result `r`, those of the last rows smaller and last.
    pub(super) fn with_tail(
        &mut self,
        n: usize,
        r: usize,
        product: &mut Product<'k>,
        tail: LastWave,
    ) -> Vec<Covers> {
        let all = product.rows.clone();
        let walked = i32::try_from(tail.blocks).unwrap_or(i32::MAX).min(all.blocks);
        let head = all.blocks - walked;
        let last = Rows { from: head, walked, ..all.clone() };
        product.rows = Rows { walked: head, ..all };
        let mut by = if head > 0 { self.tiles(product) } else { Vec::new() };
        let columns = product.set_columns(tail.columns, self.draft.world());
        product.name += ".tail";
        product.rows = last.clone();
        // The owner has multiplied all of its own.
        let mut rows = last;
        if head > 0 || product.own.is_none() {
            product.own = None;
            if self.gathered(n).is_some_and(|g| !g.own_rows) {
                rows = rows.peers();
            }
        }
        let out = &self.kernel.results[r].out;
        product.cut = self.cut(n, out, &product.rows, tail.parts);
        if let (Some(_), Leaf::MmaTile { store, .. }) = (product.cut, &mut product.leaf) {
            *store = Store::Tma;
        }
        let tiles = self.tiles(product);
        by.extend(tiles.iter().cloned());
        if let Some(Cut { into, parts, .. }) = product.cut {
            let block = [rows.height, columns];
            let (by, operand) = (tiles, Operand::C);
            let tiles = Summands { rows, block, together: 1, by, operand };
            fold::fold(
                &mut self.draft,
                Reduction::AfterLastWave,
                out,
                (parts, into),
                product.target,
                tiles,
            );
        }
        by
    }
}
