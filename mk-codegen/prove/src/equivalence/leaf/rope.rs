//! Heads of rows, turned.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{algebra::Algebra, context::Context, linker::Linker, rope};
use mk_plan::{Operand, RopeTile};

impl Links for RopeTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        let find = |o| of.touches.iter().find(|t| t.operand == o);
        let [Some(dst), Some(src), Some(table)] =
            [Operand::Dst, Operand::Src, Operand::E0].map(find)
        else {
            return Ok(());
        };
        linker.alike(dst, src)?;
        let (x, angles) = (linker.matrix(src)?, linker.matrix(table)?);
        linker.link((table, angles.rows), (src, x.rows))?;
        if let (Some(i), Some(j)) = (x.columns, angles.columns) {
            let ((line, at, columns), (other, first, head)) =
                (linker.stretch(src, i), linker.stretch(table, j));
            rope::link(linker.lines, (line, at), (other, first), [columns, head]);
        }
        Ok(())
    }
}

impl<A: Algebra> Meaning<A> for RopeTile {
    fn stored(&self, _: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let [Some(x), Some(t)] = [Operand::Src, Operand::E0].map(|o| context.latest(o)) else {
            return Err("turned rows of what is not read".into());
        };
        rope::turned(algebra, self.back, [x.cols, t.cols], &x.data, &t.data)
            .ok_or_else(|| "rows are of whole heads, and have angles each".into())
    }
}
