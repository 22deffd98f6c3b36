//! Tiles of other sizes than most of a product's: of own rows, the first ones, and those of the last rows.

use super::Tiler;
use crate::ir::{Leaf, Operand, Store};
use crate::passes::{
    Head, Sums, Tail,
    draft::Covers,
    fold,
    product::{Cut, Product},
    reduce::{Narrow, Summands},
    rows::Rows,
};

impl<'k> Tiler<'k> {
    /// The tiles of a gathered operand's own rows, of so many columns; `product` keeps the others.
    pub(super) fn own_tiles(
        &mut self,
        n: usize,
        product: &mut Product<'k>,
        columns: u32,
    ) -> Option<Covers> {
        let world = self.draft.world();
        let shard = self.gathered(n).filter(|g| !g.own_rows)?.shard;
        let own = product.own.take()?;
        let mut narrow = Product { cut: None, ..product.clone() };
        narrow.set_columns(columns, world);
        Some(narrow.own_family(&mut self.draft, &own, shard))
    }

    /// The first tiles of the first group, narrower, and into `by` the others of these rows; `product` keeps the other rows.
    pub(super) fn head_tiles(
        &mut self,
        product: &mut Product<'k>,
        head: Head,
        by: &mut Vec<Covers>,
    ) -> Option<Narrow> {
        let (all, world) = (product.rows.clone(), self.draft.world());
        let whole = product.leaf.out_columns() as i32;
        let mut first = product.clone();
        first.name += ".head";
        let parts = whole / first.set_columns(head.columns, world);
        let (across, blocks) = (first.col_blocks, (product.group / all.count).clamp(1, all.walked));
        let of_column = all.count * blocks * parts;
        let tiles = i32::try_from(head.tiles).unwrap_or(i32::MAX);
        let columns =
            (tiles / of_column + i32::from(tiles % of_column > 0)).min(product.col_blocks);
        first.rows = Rows { walked: blocks, ..all.clone() };
        first.col_blocks = (columns * parts).min(across);
        let narrow = Narrow { by: self.tiles(&first), blocks, columns, across, parts };
        if columns < product.col_blocks {
            let mut rest = product.clone();
            rest.name += ".first";
            rest.rows = first.rows;
            (rest.first_column, rest.col_blocks) = (columns, product.col_blocks - columns);
            by.extend(self.tiles(&rest));
        }
        product.rows = Rows { from: all.from + blocks, walked: all.walked - blocks, ..all };
        Some(narrow)
    }

    /// The tiles of a product that is result `r`, those of the last rows smaller and last.
    pub(super) fn with_tail(
        &mut self,
        n: usize,
        r: usize,
        product: &mut Product<'k>,
        tail: Tail,
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
        product.cut = self.cut(n, out, &product.rows, tail.parts, true);
        if let (Some(_), Leaf::MmaTile { store, .. }) = (product.cut, &mut product.leaf) {
            *store = Store::Tma;
        }
        let tiles = self.tiles(product);
        by.extend(tiles.iter().cloned());
        if let Some(Cut { into: Some(into), parts, .. }) = product.cut {
            let block = [rows.height, columns];
            let (by, operand) = (tiles, Operand::C);
            let narrow = None;
            let tiles = Summands { rows, block, together: 1, by, narrow, operand, parts: 1 };
            fold::fold(&mut self.draft, Sums::After, out, (parts, into), product.target, tiles);
        }
        by
    }
}
