//! Parts of an attention put together.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place};
use mk_plan::{Family, MergeTile, Operand};

impl Rules for MergeTile {
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Option<String> {
        merged(self.block, touched).err()
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::AccIn, Operand::StatIn]
    }
}

/// Each part has results, a maximum and a sum of all rows.
fn merged([tile, depth]: [u32; 2], touched: &[Touched<'_>]) -> Result<(), String> {
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
    let mut rows = None;
    for t in touched.iter().filter(|t| t.operand != Operand::Sinks) {
        let Some([x, y]) = matrix(t)? else { continue };
        let (x, y, wide) = match t.operand {
            Operand::Lse => (area(t), 1, 1),
            Operand::StatIn => (x, y, 2),
            _ => (x, y, depth),
        };
        let wanted = *rows.get_or_insert(x);
        if x != wanted || x > i64::from(tile) || y != i64::from(wide) {
            let text = format!("`{}` is {x} x {y}, and a tile {wanted} x {wide}", t.operand);
            return Err(format!("{text}, of up to {tile} rows"));
        }
    }
    match of(touched, Operand::Sinks).map(area).find(|n| *n != 1) {
        Some(n) => Err(format!("`sinks` has {n} elements, and a tile is of one head")),
        None => Ok(()),
    }
}
