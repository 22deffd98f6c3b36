//! Normalised rows.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place, text};
use mk_plan::{Family, NormTile, Operand};

impl Rules for NormTile {
    /// What is read and written has the same rows; a weight is one row.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let read = self.rows();
        let Some(made) = of(touched, Operand::Dst).find(|t| t.extents.is_some()) else {
            return Ok(());
        };
        one_place(touched, read)?;
        made_of(touched, read)?;
        let wanted = matrix(made)?;
        for t in touched {
            let fits = match t.operand {
                Operand::E0 => matrix(t)? == wanted.map(|[_, n]| [1, n]) && area(t) > 0,
                _ => matrix(t)? == wanted,
            };
            if !fits {
                let [a, b] = [made, t].map(|t| text(t.extents.unwrap_or(&[(0, 0)])));
                return Err(format!("`dst` is {a}, and `{}` {b}", t.operand));
            }
        }
        Ok(())
    }
}
