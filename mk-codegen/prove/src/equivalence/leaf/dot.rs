//! Products of rows, and elements alone.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{algebra::Algebra, context::Context, linker::Linker};
use mk_plan::{DotTile, Operand};

impl Links for DotTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        let rows = |operand: Operand| of.touches.iter().filter(move |t| t.operand == operand);
        let Some(w) = rows(Operand::W).next() else { return Ok(()) };
        rows(Operand::W).chain(rows(Operand::Src)).try_for_each(|row| linker.alike(w, row))
    }
}

impl<A: Algebra> Meaning<A> for DotTile {
    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let (phase, each) = (to.touch.phase, to.touch.each);
        let of_step = |operand: Operand| {
            let own = move |t: &crate::equivalence::unroll::Touch| {
                t.operand == operand && t.phase == phase
            };
            context.pieces.iter().filter(move |p| own(&p.touch))
        };
        let src = of_step(Operand::Src).find(|p| p.touch.each == each);
        if self.plain {
            return Ok(src.map_or(vec![A::ZERO], |src| src.tile.data.clone()));
        }
        let Some(w) = of_step(Operand::W).next() else {
            return Err("a product has no row `w`".into());
        };
        let Some(src) = src else { return Ok(vec![A::ZERO]) };
        let (src, w) = (&src.tile.data, &w.tile.data);
        if src.len() != w.len() {
            return Err("the rows of a product differ in size".into());
        }
        let mut sum = A::ZERO;
        for (x, y) in src.iter().zip(w) {
            algebra.add_mul(&mut sum, *x, *y);
        }
        Ok(vec![sum])
    }
}
