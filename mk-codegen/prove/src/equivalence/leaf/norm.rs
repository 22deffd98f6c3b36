//! Normalised rows.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{algebra::Algebra, context::Context, linker::Linker, norm::normalised};
use mk_plan::{NormTile, Operand};

impl Links for NormTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        let Some(dst) = of.touches.iter().find(|t| t.operand == Operand::Dst) else {
            return Ok(());
        };
        for t in of.touches {
            if t.operand == Operand::E0 {
                let (x, y) = (linker.matrix(t)?.columns, linker.matrix(dst)?.columns);
                linker.link((t, x), (dst, y))?;
            } else {
                linker.alike(dst, t)?;
            }
        }
        Ok(())
    }
}

impl<A: Algebra> Meaning<A> for NormTile {
    fn stored(&self, _: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let Some(x) = context.latest(Operand::Src) else {
            return Err("normalised rows of what is not read".into());
        };
        let d = context.latest(Operand::Do).filter(|_| self.grad);
        let g = context.latest(Operand::E0);
        if d.is_none() && self.grad || d.is_some_and(|d| d.data.len() != x.data.len()) {
            return Err("rows and their gradients differ in size".into());
        }
        if g.is_some_and(|g| g.data.len() != x.cols) {
            return Err("the weight has other columns than the rows".into());
        }
        let [d, g] = [d, g].map(|t| t.map(|t| &t.data[..]));
        Ok(normalised(algebra, self.eps, x.cols, &x.data, g, d))
    }
}
