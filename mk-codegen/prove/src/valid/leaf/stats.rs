//! Statistics of queries.

use super::{Rules, merge::tile_of_queries};
use crate::valid::touched::{Touched, made_of, of, one_place};
use mk_plan::{Family, Operand, STATS, StatsTile};

impl Rules for StatsTile {
    /// Results and gradients are as large as each other; a logarithm and four statistics belong to each row.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let read = [Operand::O, Operand::Do, Operand::Lse];
        if of(touched, Operand::Dst).all(|t| t.extents.is_none()) {
            return Ok(());
        }
        one_place(touched, &read)?;
        made_of(touched, &read)?;
        tile_of_queries(self.block, touched, (Operand::Dst, STATS))
    }
}
