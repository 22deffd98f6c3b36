//! Gradients of sinks.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place};
use mk_plan::{Family, Operand, STATS, SinkTile};

impl Rules for SinkTile {
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        gradient(touched)
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::Stats]
    }
}

/// A head has statistics of rows, a sink, and a gradient of that.
fn gradient(touched: &[Touched<'_>]) -> Result<(), String> {
    one_place(touched, &[Operand::Stats])?;
    // A rank may have no queries: their gradient is 0.
    made_of(touched, &[Operand::Sinks])?;
    for t in of(touched, Operand::Stats) {
        match matrix(t)? {
            Some([_, n]) if n != i64::from(STATS) => {
                return Err(format!("`stats` are {n} of a query, and not {STATS}"));
            }
            _ => {}
        }
    }
    for t in touched.iter().filter(|t| t.operand != Operand::Stats) {
        let n = area(t);
        if n != 1 {
            return Err(format!("`{}` has {n} elements, and a tile is of one head", t.operand));
        }
    }
    Ok(())
}
