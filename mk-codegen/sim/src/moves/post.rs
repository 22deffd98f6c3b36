//! Posts of an agent, at concrete words.

use crate::{
    Result, SimError,
    error::place_of,
    machine::Machine,
    program::{Ready, repeat},
    schedule::Actor,
};
use mk_plan::{Agent, Entity, Point, Points, Task};

impl Machine<'_> {
    /// The posts of an agent at a moment of a task (`None`: at any), in order.
    pub fn posts<C: FromIterator<Ready>>(
        &self,
        points: &Points<'_>,
        task: &Task,
        by: Agent,
        at: Option<(Point, i64)>,
    ) -> Result<C> {
        let mut list = Vec::new();
        let (point, inner) = at.map_or((None, 0), |(p, i)| (Some(p), i));
        for post in &self.plan.families[task.family].posts {
            if post.by != by || point.is_some_and(|p| p != post.at) {
                continue;
            }
            let (each, when) = (post.each.as_ref(), post.when.as_ref());
            repeat(points, task, inner, each, when, |at| {
                let add = points.eval(at, &post.add)?;
                if add < 0 {
                    return Err(SimError::NegativePost {
                        place: place_of(self.plan, task),
                        edge: post.edge,
                        add,
                    });
                }
                if add == 0 {
                    return Ok(());
                }
                let mut index = Vec::with_capacity(post.index.len());
                for e in &post.index {
                    index.push(points.eval(at, e)?);
                }
                let rank = points.rank(at, &post.rank)?;
                let Some(word) = self.signals.word(rank, post.signal, &index) else {
                    return Err(SimError::NoSuchWord {
                        place: place_of(self.plan, task),
                        edge: post.edge,
                        signal: post.signal,
                        index,
                        shape: self.signals.shape(rank, post.signal).to_vec(),
                    });
                };
                list.push(Ready { word, add, after: post.after, scope: post.scope });
                Ok(())
            })?;
        }
        Ok(list.into_iter().collect())
    }

    /// Counts a word up and wakes who waited for it.
    pub fn raise(&mut self, post: Ready) {
        self.report.messages[post.word.signal.index()] += 1;
        for actor in self.signals.add(post.word, post.add) {
            if let Actor::Agent { rank, agent } = actor {
                self.ranks[rank].program.agents[agent].blocked = None;
            }
            self.chooser.ready(actor);
        }
    }
}
