//! Statistics of queries.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place};
use mk_plan::{Family, Operand, STATS, StatsTile};

impl Rules for StatsTile {
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Option<String> {
        statistics(self.block, touched).err()
    }
}

/// Results and gradients are as large as each other; a logarithm and four statistics belong to each row.
fn statistics([tile, depth]: [u32; 2], touched: &[Touched<'_>]) -> Result<(), String> {
    let read = [Operand::O, Operand::Do, Operand::Lse];
    if of(touched, Operand::Dst).all(|t| t.extents.is_none()) {
        return Ok(());
    }
    one_place(touched, &read)?;
    made_of(touched, &read)?;
    let mut rows = None;
    for t in touched {
        let Some([x, y]) = matrix(t)? else { continue };
        let (x, y, wide) = match t.operand {
            Operand::Lse => (area(t), 1, 1),
            Operand::Dst => (x, y, STATS),
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
