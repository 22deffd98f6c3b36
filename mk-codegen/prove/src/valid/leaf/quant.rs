//! Rows in eight bits, with factors.

use super::Rules;
use crate::valid::touched::{Touched, made_of, matrix, of, one_place, text};
use mk_plan::{Family, Operand, QuantTile};

impl Rules for QuantTile {
    /// Both types have the same rows; a factor belongs to each block of a row.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let Some(made) = of(touched, Operand::Dst).find(|t| t.extents.is_some()) else {
            return Ok(());
        };
        one_place(touched, &[Operand::Src, Operand::E0, Operand::Dst])?;
        made_of(touched, &[Operand::Src, Operand::E0])?;
        let Some([rows, columns]) = matrix(made)? else { return Ok(()) };
        let block = i64::from(QuantTile::BLOCK);
        for t in touched {
            let wanted = match t.operand {
                Operand::E0 => [(columns + block - 1) / block, rows],
                _ => [rows, columns],
            };
            let whole = |t: &Touched<'_>| {
                let first = t.extents.and_then(|d| d.last()).map_or(0, |d| d.0);
                t.operand == Operand::E0 || first % block == 0
            };
            if matrix(t)? != Some(wanted) || !whole(t) {
                let [a, b] = [made, t].map(|t| text(t.extents.unwrap_or(&[(0, 0)])));
                let name = if self.back { "blocks of 128 with factors" } else { "blocks of 128" };
                return Err(format!("`dst` is {a}, and `{}` {b}, of {name}", t.operand));
            }
        }
        Ok(())
    }
}
