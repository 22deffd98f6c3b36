//! Parts of an attention put together.

use super::{Linked, Links, Meaning, Places, Stored, Task, Work, Write};
use crate::equivalence::{
    algebra::Algebra, attend::Attention, budget::EXPONENTIAL, context::Context, linker::Linker,
    unroll::Touch,
};
use mk_plan::{MergeTile, Operand};

impl Links for MergeTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.by_queries(of.touches, Operand::StatIn)
    }
}

impl<A: Algebra> Meaning<A> for MergeTile {
    fn moving(&self) -> &'static [Operand] {
        &[Operand::AccIn, Operand::StatIn]
    }

    fn consume(&self, context: &mut Context<A::Elem>, algebra: &mut A, _: Places<'_>) -> Work {
        let [acc, stat] = [Operand::AccIn, Operand::StatIn].map(|o| context.latest(o).cloned());
        let (Some(acc), Some(stat)) = (acc, stat) else { return Ok(0) };
        if stat.cols != 2 || stat.rows != acc.rows {
            return Err("`acc_in` is [rows, d], and `stat_in` [rows, 2]".into());
        }
        let (rows, work) = (acc.rows, (acc.rows * acc.cols) as u64);
        let part = Attention { acc, stat };
        let mut state = match context.attention.take() {
            Some(state) => state,
            None => Attention::new(algebra, rows, part.acc.cols),
        };
        if (state.acc.rows, state.acc.cols) != (part.acc.rows, part.acc.cols) {
            return Err("parts of other sizes".into());
        }
        state.merge(algebra, &part);
        context.attention = Some(state);
        Ok(work + 2 * EXPONENTIAL * rows as u64)
    }

    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let Some(mut state) = context.attention.clone() else {
            return Err("results without parts".into());
        };
        if let Some(sink) = context.latest(Operand::Sinks).and_then(|t| t.data.first().copied()) {
            state.sink(algebra, sink);
        }
        Ok(match to.touch.operand {
            Operand::Lse => state.logarithms(algebra),
            _ => state.output(algebra),
        })
    }
}

impl Linker<'_, '_> {
    /// Rows of parts, results, logarithms and statistics are queries; each of the statistics is by itself.
    pub(super) fn by_queries(&mut self, touches: &[Touch], statistics: Operand) -> Linked {
        let Some(o) = touches.iter().find(|t| t.operand == Operand::O) else { return Ok(()) };
        let of_o = self.matrix(o)?;
        for t in touches.iter().filter(|t| t.operand != Operand::Sinks) {
            let m = self.matrix(t)?;
            let (rows, columns) = match t.operand {
                Operand::Lse => (self.plain(t).first().copied(), None),
                o if o == statistics => (m.rows, None),
                _ => (m.rows, m.columns),
            };
            self.link((t, rows), (o, of_o.rows))?;
            if columns.is_some() {
                self.link((t, columns), (o, of_o.columns))?;
            }
            if t.operand == statistics {
                self.cut_statistics(t, m);
            }
        }
        Ok(())
    }
}
