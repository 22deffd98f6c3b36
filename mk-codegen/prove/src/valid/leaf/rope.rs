//! Heads of rows, turned.

use super::Rules;
use crate::valid::touched::{Touched, made_of, matrix, of, one_place, text};
use mk_plan::{Family, Operand, RopeTile};

impl Rules for RopeTile {
    /// What is read and written has the same rows, of whole heads; so have the angles, of one head.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let Some(made) = of(touched, Operand::Dst).find(|t| t.extents.is_some()) else {
            return Ok(());
        };
        one_place(touched, &RopeTile::READS)?;
        made_of(touched, &RopeTile::READS)?;
        let Some([rows, columns]) = matrix(made)? else { return Ok(()) };
        for t in touched {
            let fits = match (t.operand, matrix(t)?) {
                (Operand::E0, Some([m, d])) => m == rows && d > 0 && d % 2 == 0 && columns % d == 0,
                (_, found) => found == Some([rows, columns]),
            };
            if !fits {
                let [a, b] = [made, t].map(|t| text(t.extents.unwrap_or(&[(0, 0)])));
                return Err(format!("`dst` is {a}, and `{}` {b}", t.operand));
            }
        }
        Ok(())
    }
}
