//! Attention.

use super::{Linked, Links, Meaning, Places, Stored, Task, Work, Write, sees};
use crate::equivalence::{
    algebra::Algebra,
    attend::{Attention, Scored},
    budget::EXPONENTIAL,
    context::{Context, Misfit},
    linker::Linker,
    unroll::Touch,
};
use mk_plan::{AttendTile, Operand, Side};

impl Links for AttendTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.attend(of.number, of.touches, self.heads)
    }
}

impl<A: Algebra> Meaning<A> for AttendTile {
    fn moving(&self) -> &'static [Operand] {
        &[Operand::K, Operand::V]
    }

    fn consume(&self, context: &mut Context<A::Elem>, algebra: &mut A, places: Places<'_>) -> Work {
        let scores = Scored::of(self.scale, self.mask, self.cap);
        context.attend(algebra, scores, places)
    }

    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let [rows, cols] = to.size;
        let state = match context.carried()? {
            Some(state) => state,
            None => Attention::new(
                algebra,
                if to.touch.operand == Operand::Lse { rows * cols } else { rows },
                cols,
            ),
        };
        let mut sunk = state.clone();
        if let Some(sink) = context.latest(Operand::Sinks).and_then(|t| t.data.first().copied()) {
            sunk.sink(algebra, sink);
        }
        let values = match to.touch.operand {
            Operand::AccOut => state.acc.data.clone(),
            Operand::StatOut => state.stat.data.clone(),
            Operand::Lse => sunk.logarithms(algebra),
            _ => sunk.output(algebra),
        };
        context.attention = Some(state);
        Ok(values)
    }
}

impl<E: Copy + PartialEq> Context<E> {
    fn attend<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        scores: Scored,
        places: Places<'_>,
    ) -> Work {
        let state = self.carried()?;
        let found = [Operand::Q, Operand::K, Operand::V].map(|o| self.latest(o));
        let [Some(q), Some(k), Some(v)] = found else {
            self.attention = state;
            return Ok(0);
        };
        let mut state = match state {
            Some(state) => state,
            None => Attention::new(algebra, q.rows, v.cols),
        };
        let acc = (state.acc.rows, state.acc.cols);
        if q.cols != k.cols || k.rows != v.rows || acc != (q.rows, v.cols) {
            return Err("queries, keys, values and accumulator do not fit each other".into());
        }
        let work = (q.rows * k.rows * (q.cols + v.cols)) as u64;
        let work = work + EXPONENTIAL * (q.rows * k.rows) as u64;
        let heads = places.map_or(1, |p| p.heads);
        let seen = |i: usize| sees(places, (scores.mask, Side::Queries), i / heads, k.rows);
        state.step(algebra, [q, k, v], scores, seen);
        self.attention = Some(state);
        Ok(work)
    }

    /// The state of attention before a step: that of the step before, or what was read from scratch, or none.
    fn carried(&mut self) -> Result<Option<Attention<E>>, Misfit> {
        if let Some(state) = self.attention.take() {
            return Ok(Some(state));
        }
        match (self.latest(Operand::AccIn), self.latest(Operand::StatIn)) {
            (None, None) => Ok(None),
            (Some(acc), Some(stat)) if stat.cols == 2 && stat.rows == acc.rows => {
                Ok(Some(Attention { acc: acc.clone(), stat: stat.clone() }))
            }
            _ => Err("`acc_in` is [rows, d] and `stat_in` [rows, 2], or both are absent".into()),
        }
    }
}

impl Linker<'_, '_> {
    fn attend(&mut self, number: u32, touches: &[Touch], heads: u32) -> Linked {
        let find = |o| touches.iter().find(|t| t.operand == o);
        let (q, v) = (find(Operand::Q), find(Operand::V));
        for t in touches {
            let keys = matches!(t.operand, Operand::K | Operand::V);
            let (m, own) = self.of_heads(t, if keys { 1 } else { heads })?;
            match t.operand {
                Operand::Q | Operand::Sinks => {}
                Operand::K => {
                    // Who is masked follows from places in the sequence, which are one index for queries and keys.
                    if let (Some(at), Some(q)) =
                        (self.unrolled.positions.get(&(number, t.phase)), q)
                    {
                        let queries = self.of_heads(q, heads)?.0.rows;
                        for (t, rows, at) in [(q, queries, at[0]), (t, m.rows, at[1])] {
                            if at < 0 {
                                return Err(format!("`{}` is at {at} of its sequence", t.operand));
                            }
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
                    if let Some(q) = q {
                        let columns = self.of_heads(q, heads)?.0.columns;
                        self.link((t, m.columns), (q, columns))?;
                    }
                    let values =
                        touches.iter().find(|v| v.operand == Operand::V && v.phase == t.phase);
                    if let Some(v) = values {
                        let rows = self.matrix(v)?.rows;
                        self.link((t, m.rows), (v, rows))?;
                    }
                }
                Operand::V => {
                    if let Some(v) = v {
                        let columns = self.matrix(v)?.columns;
                        self.link((t, m.columns), (v, columns))?;
                    }
                }
                Operand::Lse => {
                    if let Some(q) = q {
                        let rows = self.matrix(q)?.rows;
                        let plain = self.plain(t);
                        self.link((t, plain.first().copied()), (q, rows))?;
                    }
                }
                o => {
                    if let Some(q) = q {
                        let (of_q, of_heads) = self.of_heads(q, heads)?;
                        self.link((t, m.rows), (q, of_q.rows))?;
                        self.link((t, own), (q, of_heads))?;
                    }
                    if matches!(o, Operand::StatIn | Operand::StatOut) {
                        // Maximum and sum.
                        let (line, base, _) = self.stretch(t, m.columns.unwrap_or(0));
                        self.lines.cut(line, base + 1);
                    } else if let Some(v) = v {
                        let columns = self.matrix(v)?.columns;
                        self.link((t, m.columns), (v, columns))?;
                    }
                }
            }
        }
        Ok(())
    }
}
