//! Waits of an agent, at concrete words.

use crate::{
    Result, SimError,
    error::place_of,
    machine::Machine,
    program::{Pending, repeat},
    schedule::Actor,
};
use mk_plan::{Agent, Point, Points, Task};

impl Machine<'_> {
    /// The waits of an agent at a moment of a task (`None`: at any), last first.
    pub fn waits(
        &self,
        points: &Points<'_>,
        task: &Task,
        by: Agent,
        at: Option<(Point, i64)>,
    ) -> Result<Vec<Pending>> {
        let mut list = Vec::new();
        let (point, inner) = at.map_or((None, 0), |(p, i)| (Some(p), i));
        for (line, wait) in self.plan.families[task.family].waits.iter().enumerate() {
            if wait.by != by || point.is_some_and(|p| p != wait.at) {
                continue;
            }
            let (each, when) = (wait.each.as_ref(), wait.when.as_ref());
            repeat(points, task, inner, each, when, |at| {
                let mut index = Vec::with_capacity(wait.index.len());
                for e in &wait.index {
                    index.push(points.eval(at, e)?);
                }
                let count = points.eval(at, &wait.count)?;
                let word = self.signals.word(task.rank(), wait.signal, &index);
                let Some(word) = word else {
                    return Err(SimError::NoSuchWord {
                        place: place_of(self.plan, task),
                        edge: wait.edge,
                        signal: wait.signal,
                        index,
                        shape: self.signals.shape(task.rank(), wait.signal).to_vec(),
                    });
                };
                list.push(Pending {
                    edge: wait.edge,
                    word,
                    index,
                    expected: (task.epoch() - i64::from(wait.lag)).saturating_mul(count),
                    line,
                });
                Ok(())
            })?;
        }
        list.reverse();
        Ok(list)
    }

    /// Drops the waits that hold. If one does not, the actor will wake when it does, and the answer is false.
    pub fn poll(&mut self, waits: &mut Vec<Pending>, actor: Actor) -> bool {
        while let Some(wait) = waits.last() {
            if self.seen(wait.word) < wait.expected {
                self.signals.sleep(wait.word, wait.expected, actor);
                return false;
            }
            waits.pop();
        }
        true
    }
}
