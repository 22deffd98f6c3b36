//! Rows in eight bits, with factors.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{algebra::Algebra, context::Context, linker::Linker, quant};
use mk_plan::{Operand, QuantTile};

impl Links for QuantTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        let find = |o| of.touches.iter().find(|t| t.operand == o);
        let [Some(dst), Some(src), Some(factors)] =
            [Operand::Dst, Operand::Src, Operand::E0].map(find)
        else {
            return Ok(());
        };
        linker.alike(dst, src)?;
        let (m, f) = (linker.matrix(src)?, linker.matrix(factors)?);
        linker.link((factors, f.columns), (src, m.rows))?;
        linker.apart(factors, f.rows);
        [dst, src].into_iter().for_each(|t| linker.blocks(t, m.columns));
        Ok(())
    }
}

impl<A: Algebra> Meaning<A> for QuantTile {
    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let Some(x) = context.latest_piece(Operand::Src) else {
            return Err("rows of what is not read".into());
        };
        let (rows, [_, blocks]) = (&x.tile, &x.blocks);
        let of_blocks = |i: usize| blocks[i % rows.cols.max(1)] * rows.rows + i / rows.cols.max(1);
        if blocks.len() != rows.cols {
            return Err("columns are of no blocks".into());
        }
        if self.back {
            let wanted = blocks.last().map_or(0, |b| b + 1) * rows.rows;
            let Some(f) = context.latest(Operand::E0).filter(|f| f.data.len() == wanted) else {
                return Err("each block of a row has a factor".into());
            };
            let whole = rows.data.iter().enumerate();
            return Ok(whole.map(|(i, x)| algebra.mul(*x, f.data[of_blocks(i)])).collect());
        }
        let n = blocks.last().map_or(0, |b| b + 1) * rows.rows;
        let made = quant::quantised(algebra, self.narrow, &rows.data, n, of_blocks);
        Ok(if to.touch.operand == Operand::E0 { made.factors } else { made.values })
    }
}
