//! Gradients of attention.

use super::Rules;
use crate::valid::touched::{Touched, made_of, matrix, one_place};
use mk_plan::{AttendGradTile, Family, Operand, STATS};
use std::collections::BTreeMap;

impl Rules for AttendGradTile {
    /// What belongs to queries has as many rows at each step, and what belongs to keys; all are as wide as their head,
    /// but for the statistics.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let [tile, depth, values] = [self.block[0], self.block[2], self.value_dim()];
        let side = self.of;
        let all = [side.held(), side.moving()].concat();
        one_place(touched, &all)?;
        let made = |t: &Touched<'_>| side.made().contains(&t.operand) && t.extents.is_some();
        if touched.iter().any(made) {
            made_of(touched, &all)?;
        }
        // Of what comes in blocks, by step.
        let mut rows: BTreeMap<Option<u32>, i64> = BTreeMap::new();
        let mut steps: BTreeMap<Operand, Vec<u32>> = BTreeMap::new();
        for t in touched {
            let Some([x, y]) = matrix(t)? else { continue };
            let wide = match t.operand {
                Operand::Stats => STATS,
                Operand::Bounds | Operand::Span => 2,
                Operand::V | Operand::Do | Operand::Dv => values,
                _ => depth,
            };
            if y != i64::from(wide) {
                return Err(format!("`{}` has {y} columns, and a tile {wide}", t.operand));
            }
            let moves = side.moving().contains(&t.operand);
            if !moves && x > i64::from(tile) {
                return Err(format!("`{}` has {x} rows, and a tile {tile}", t.operand));
            }
            if moves {
                steps.entry(t.operand).or_default().push(t.step);
            }
            let wanted = *rows.entry(moves.then_some(t.step)).or_insert(x);
            if wanted != x {
                return Err(format!("`{}` has {x} rows, and others {wanted}", t.operand));
            }
        }
        let first = steps.values().next();
        if !steps.is_empty()
            && (steps.len() != side.moving().len() || steps.values().any(|s| Some(s) != first))
        {
            let names: Vec<_> = side.moving().iter().map(|o| format!("`{o}`")).collect();
            return Err(format!("{} are not read at the same steps", names.join(", ")));
        }
        Ok(())
    }
}
