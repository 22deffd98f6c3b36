//! Statistics of queries.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{
    algebra::Algebra, context::Context, gradients::statistics, linker::Linker,
};
use mk_plan::{Operand, StatsTile};

impl Links for StatsTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.by_queries(of.touches, Operand::Dst)
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
