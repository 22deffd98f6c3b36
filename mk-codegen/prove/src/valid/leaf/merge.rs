//! Parts of an attention put together.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place};
use mk_plan::{Family, MergeTile, Operand};

impl Rules for MergeTile {
    /// Each part has results, a maximum and a sum of all rows.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let parts = [Operand::AccIn, Operand::StatIn];
        one_place(touched, &parts)?;
        if of(touched, Operand::O).all(|t| t.extents.is_none()) {
            return Ok(());
        }
        made_of(touched, &parts)?;
        let [acc, stat] = parts.map(|o| {
            let there = of(touched, o).filter(|t| t.extents.is_some());
            there.map(|t| t.step).collect::<Vec<_>>()
        });
        if acc != stat {
            return Err("`acc_in` and `stat_in` are not read at the same steps".into());
        }
        tile_of_queries(self.block, touched, (Operand::StatIn, 2))?;
        match of(touched, Operand::Sinks).map(area).find(|n| *n != 1) {
            Some(n) => Err(format!("`sinks` has {n} elements, and a tile is of one head")),
            None => Ok(()),
        }
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::AccIn, Operand::StatIn]
    }
}

/// What a tile of queries touches has the same rows, with as many statistics each, and one logarithm.
pub(super) fn tile_of_queries(
    [tile, depth]: [u32; 2],
    touched: &[Touched<'_>],
    (statistics, n): (Operand, u32),
) -> Result<(), String> {
    let mut rows = None;
    for t in touched.iter().filter(|t| t.operand != Operand::Sinks) {
        let Some([x, y]) = matrix(t)? else { continue };
        let (x, y, wide) = match t.operand {
            Operand::Lse => (area(t), 1, 1),
            o if o == statistics => (x, y, n),
            _ => (x, y, depth),
        };
        let wanted = *rows.get_or_insert(x);
        if x != wanted || x > i64::from(tile) || y != i64::from(wide) {
            let text = format!("`{}` is {x} x {y}, and a tile {wanted} x {wide}", t.operand);
            return Err(format!("{text}, of up to {tile} rows"));
        }
    }
    Ok(())
}
