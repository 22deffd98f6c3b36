//! Gradients of sinks.

use super::{Linked, Links, Meaning, Places, Stored, Task, Work, Write};
use crate::equivalence::{
    algebra::Algebra, budget::EXPONENTIAL, context::Context, gradients::of_sink, linker::Linker,
    tile::Tile,
};
use mk_plan::{Operand, SinkTile};

impl Links for SinkTile {
    /// Of the four statistics of a query each is by itself.
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        of.touches.iter().filter(|t| t.operand == Operand::Stats).try_for_each(|t| {
            let m = linker.matrix(t)?;
            linker.cut_statistics(t, m);
            Ok(())
        })
    }
}

impl<A: Algebra> Meaning<A> for SinkTile {
    fn moving(&self) -> &'static [Operand] {
        &[Operand::Stats]
    }

    fn consume(&self, context: &mut Context<A::Elem>, algebra: &mut A, _: Places<'_>) -> Work {
        let all = [Operand::Stats, Operand::Sinks].map(|o| context.latest(o).cloned());
        let [Some(stats), Some(sink)] = all else { return Ok(0) };
        let Some(sink) = sink.data.first() else { return Err("a gradient of no sink".into()) };
        let rows = stats.data.chunks(stats.cols.max(1));
        let work = EXPONENTIAL * rows.len() as u64;
        let sum = of_sink(algebra, *sink, rows);
        let before = context.sum.as_ref().and_then(|t| t.data.first()).map_or(A::ZERO, |x| *x);
        context.sum = Some(Tile { rows: 1, cols: 1, data: vec![algebra.add(before, sum)] });
        Ok(work)
    }

    fn stored(&self, _: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let sum = context.sum.as_ref().and_then(|t| t.data.first()).map_or(A::ZERO, |x| *x);
        Ok(vec![algebra.settled(sum)])
    }
}
