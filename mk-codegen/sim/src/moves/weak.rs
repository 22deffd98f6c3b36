//! What weak edges let agents do.

use crate::{
    context::Phase,
    delivery::{Delivery, inner_of},
    error::Result,
    machine::Machine,
    program::{UnitTask, repeat},
    signals::Word,
    weak::unfenced,
};
use mk_plan::{Agent, Entity, Leaf, Point, Points, Proxy, Scope, Wait};

impl Machine<'_> {
    /// Notes how a rank's launch posts to words.
    pub fn note_crossings(&mut self, rank: usize) -> Result<()> {
        let Some(mut weak) = self.weak.take() else { return Ok(()) };
        let tables = self.ranks[rank].tables.clone();
        let points = Points::new(self.plan, &tables);
        for unit in &self.ranks[rank].program.units {
            for t in &unit.tasks {
                for post in &self.plan.families[t.task.family].posts {
                    let host = matches!(post.by, Agent::Sender | Agent::Receiver | Agent::Engine);
                    let phases = match post.at {
                        Point::Start => 0..=0,
                        Point::Inner => 1..=t.last() - 1,
                        Point::End => t.last()..=t.last(),
                    };
                    for phase in phases {
                        let inner = inner_of(phase);
                        let (each, when) = (post.each.as_ref(), post.when.as_ref());
                        repeat(&points, &t.task, inner, each, when, |at| {
                            let to = points.rank(at, &post.rank)?;
                            let mut index = Vec::with_capacity(post.index.len());
                            for e in &post.index {
                                index.push(points.eval(at, e)?);
                            }
                            if let Some(word) = self.signals.word(to, post.signal, &index) {
                                let (posts, gpu) =
                                    (weak.words.entry(word).or_default(), post.scope == Scope::Gpu);
                                posts.gpu |= gpu;
                                posts.crossing |= host || to != rank;
                                posts.crossing_gpu |= (host || to != rank) && gpu;
                            }
                            Ok(())
                        })?;
                    }
                }
            }
        }
        self.weak = Some(weak);
        Ok(())
    }

    /// Whether a wait does not synchronise at all: who goes on after it knows no more than before.
    pub fn is_deaf(&self, agent: Agent, word: Word, wait: &Wait) -> bool {
        let outside = agent == Agent::Issuer;
        // Neither proxy of these agents, nor of whom they hand over to, is what such a wait is for.
        let moves =
            matches!(agent, Agent::Loader | Agent::Consumers | Agent::Storer | Agent::Copier);
        let host = moves && wait.proxy == Proxy::Host;
        self.weak.as_ref().is_some_and(|weak| host || !weak.synchronises(word, wait, outside))
    }

    /// Whether a wait does nothing for all that its agent touches from a phase of a task on (and it touches something).
    pub fn is_loose(
        &self,
        task: &UnitTask,
        agent: Agent,
        phase: Phase,
        word: Word,
        wait: &Wait,
    ) -> bool {
        let Some(weak) = &self.weak else { return false };
        let family = task.task.family;
        let from = |at: Point| match at {
            Point::Start => phase == 0,
            Point::Inner => phase < task.last(),
            Point::End => true,
        };
        let contract = &self.contracts[family.index()];
        if agent == Agent::Issuer {
            // What the network card does for a command, it may do before.
            return !weak.synchronises(word, wait, true);
        }
        let x = &self.plan.families[family];
        if x.leaf == Leaf::Signal && !x.posts.is_empty() {
            // The agents that it signals have not synchronised with that either.
            return !weak.synchronises(word, wait, false);
        }
        let accesses = x.accesses.iter().filter(|a| from(a.at));
        let mut mine = accesses
            .filter_map(|a| contract.operand(a.operand).filter(|o| o.agent == agent))
            .peekable();
        let deaf = !weak.synchronises(word, wait, false);
        mine.peek().is_some() && mine.all(|o| deaf || unfenced(wait, o.proxy))
    }

    /// Pushes an agent's ordinary stores out, to everywhere or as far as its own GPU.
    pub fn push_out(&mut self, rank: usize, id: usize, scope: Scope) -> Result<()> {
        let stores = std::mem::take(&mut self.ranks[rank].program.agents[id].buffered);
        for store in stores {
            if scope == Scope::Sys || self.deliveries.stays_on(store, rank) {
                self.deliver(store)?;
            } else {
                self.ranks[rank].unseen.push(store);
            }
        }
        if scope == Scope::Sys {
            // What others of this GPU released to it goes along.
            for store in std::mem::take(&mut self.ranks[rank].unseen) {
                self.deliver(store)?;
            }
        }
        Ok(())
    }

    /// Puts an ordinary store into the agent's buffer.
    pub fn buffer(&mut self, rank: usize, id: usize, store: Delivery) {
        let store = self.issue(rank, store);
        let agent = &mut self.ranks[rank].program.agents[id];
        agent.buffered.push(store);
        agent.stores.push(store);
    }
}
