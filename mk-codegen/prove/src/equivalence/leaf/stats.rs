//! Statistics of queries.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{
    algebra::Algebra, context::Context, gradients::statistics, linker::Linker, unroll::Touch,
};
use mk_plan::{Operand, StatsTile};
impl Links for StatsTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.statistics(of.touches)
    }
}

impl<A: Algebra> Meaning<A> for StatsTile {
    fn stored(&self, _: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let all = [Operand::O, Operand::Do, Operand::Lse].map(|o| context.latest(o));
        let [Some(o), Some(d_o), Some(lse)] = all else {
            return Err("statistics of what is not read".into());
        };
        if (o.rows, o.cols) != (d_o.rows, d_o.cols) || lse.data.len() != o.rows {
            return Err("results, their gradients and logarithms differ in rows".into());
        }
        Ok(statistics(algebra, o, d_o, &lse.data))
    }
}

impl Linker<'_, '_> {
    /// Rows of results, gradients, logarithms and statistics are queries; of the four statistics each is by itself.
    fn statistics(&mut self, touches: &[Touch]) -> Linked {
        let Some(o) = touches.iter().find(|t| t.operand == Operand::O) else { return Ok(()) };
        let of_o = self.matrix(o)?;
        for t in touches {
            let m = self.matrix(t)?;
            let (rows, columns) = match t.operand {
                Operand::Lse => (self.plain(t).first().copied(), None),
                Operand::Dst => (m.rows, None),
                _ => (m.rows, m.columns),
            };
            self.link((t, rows), (o, of_o.rows))?;
            if columns.is_some() {
                self.link((t, columns), (o, of_o.columns))?;
            }
            if t.operand == Operand::Dst {
                self.cut_statistics(t, m);
            }
        }
        Ok(())
    }
}
