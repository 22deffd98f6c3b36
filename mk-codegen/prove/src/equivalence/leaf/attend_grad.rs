//! Gradients of attention.

use super::{Linked, Links, Meaning, Places, Stored, Task, Work, Write, sees};
use crate::equivalence::{
    algebra::Algebra,
    attend::Scored,
    budget::EXPONENTIAL,
    context::Context,
    gradients::{Block, Gradients},
    linker::Linker,
    unroll::Touch,
};
use mk_plan::{AttendGradTile, GradOf, Operand};

impl Links for AttendGradTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.gradients(of.number, self.of, of.touches)
    }
}

impl<A: Algebra> Meaning<A> for AttendGradTile {
    fn moving(&self) -> &'static [Operand] {
        self.of.moving()
    }

    fn consume(&self, context: &mut Context<A::Elem>, algebra: &mut A, places: Places<'_>) -> Work {
        let scores = Scored::of(self.scale, self.mask, self.cap);
        context.differentiate(algebra, self.of, scores, places)
    }

    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let [rows, cols] = to.size;
        let sums = context.gradients.as_ref();
        let made = sums.map(|g| g.made(algebra, to.touch.operand, f32::from_bits(self.scale)));
        // Nothing meets it.
        Ok(made.unwrap_or_else(|| vec![algebra.settled(A::ZERO); rows * cols]))
    }
}

impl<E: Copy + PartialEq> Context<E> {
    fn differentiate<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        of: GradOf,
        scores: Scored,
        places: Places<'_>,
    ) -> Work {
        let mut sums = self.gradients.take();
        let all = [Operand::Q, Operand::Do, Operand::Stats, Operand::K, Operand::V];
        let [Some(q), Some(d_o), Some(stats), Some(k), Some(v)] = all.map(|o| self.latest(o))
        else {
            self.gradients = sums;
            return Ok(0);
        };
        let block = Block { q, d_o, stats, k, v };
        if !block.fits() {
            return Err("queries, their gradients, keys and values do not fit each other".into());
        }
        let work = (q.rows * k.rows * (q.cols + v.cols)) as u64;
        let work = work + EXPONENTIAL * (q.rows * k.rows) as u64;
        let seen = |i: usize| sees(places, (scores.mask, of.side()), i, k.rows);
        let sums = sums.get_or_insert_with(|| match of {
            GradOf::Queries => Gradients::queries::<A>(q.rows, q.cols),
            _ => Gradients::keys::<A>(k.rows, k.cols, v.cols),
        });
        sums.step(algebra, block, scores, seen);
        self.gradients = Some(sums.clone());
        Ok(work)
    }
}

impl Linker<'_, '_> {
    /// Gradients: rows that are queries, rows that are keys, and as many columns as heads have.
    fn gradients(&mut self, number: u32, of: GradOf, touches: &[Touch]) -> Linked {
        let q = |t: &&Touch| t.operand == Operand::Q;
        let [scores, worth] =
            [Operand::K, Operand::V].map(|o| touches.iter().find(|t| t.operand == o));
        for t in touches {
            let m = self.matrix(t)?;
            // Columns of keys go with queries, those of values with their gradients.
            let wide = match t.operand {
                Operand::Q | Operand::K | Operand::Dq | Operand::Dk => scores,
                _ => worth,
            };
            if t.operand == Operand::Stats {
                self.cut_statistics(t, m);
            } else if let Some(wide) = wide {
                let columns = self.matrix(wide)?.columns;
                self.link((t, m.columns), (wide, columns))?;
            }
            // Rows of the tile, or of this step's block.
            let moves = of.moving().contains(&t.operand);
            let beside = touches.iter().find(|o| match moves {
                true => o.operand == of.moving()[0] && o.phase == t.phase,
                false => o.operand == of.held()[0],
            });
            if let Some(beside) = beside {
                let rows = self.matrix(beside)?.rows;
                self.link((t, m.rows), (beside, rows))?;
            }
        }
        // Who is masked follows from places in the sequence, which are one index for queries and keys.
        for t in touches.iter().filter(|t| t.operand == of.moving()[0]) {
            let Some(at) = self.unrolled.positions.get(&(number, t.phase)).copied() else {
                continue;
            };
            let held = touches.iter().find(|h| h.operand == of.held()[0]);
            for t in [Some(t), held].into_iter().flatten() {
                let at = if q(&t) { at[0] } else { at[1] };
                if at < 0 {
                    return Err(format!("`{}` is at {at} of its sequence", t.operand));
                }
                let rows = self.matrix(t)?.rows;
                let place = (self.sequence, at, self.len(t, rows));
                match rows {
                    Some(d) => {
                        let own = self.stretch(t, d);
                        self.lines.link(own, place);
                    }
                    None => self.lines.stretch(place),
                }
            }
        }
        Ok(())
    }
}
