//! Messages of a run over a network outside the executor.

use crate::{
    Result, SimError, error::place_of, machine::Machine, network::Message, program::Ready,
    schedule::Actor, signals::Word,
};
use mk_plan::{Agent, Entity, NicOrdering, Operand, Points, Region, Task};

impl Machine<'_> {
    /// Refuses runs that an outside network cannot carry.
    pub fn check_network(&self) -> Result<()> {
        let Some(joined) = &self.joined else { return Ok(()) };
        let refuse = |message: &str| {
            Err(SimError::Unsupported { place: self.plan.name.clone(), message: message.into() })
        };
        if self.options.check {
            return refuse("what a network outside the executor writes has no marks to check");
        }
        let nodes = joined.network.ranks();
        let local = joined.plan.layout.local as usize;
        if nodes.start % local != 0 || nodes.end % local != 0 || nodes.end > self.ranks.len() {
            return refuse("a process has whole nodes of the plan");
        }
        Ok(())
    }

    /// The words that a send increments: the receiver's, and the sender's. Each must be a net word, incremented by one.
    fn words_of(&self, points: &Points<'_>, task: &Task, to: usize) -> Result<[Option<u32>; 2]> {
        let Some(joined) = &self.joined else { return Ok([None; 2]) };
        let mut words = [None; 2];
        for by in [Agent::Sender, Agent::Receiver] {
            for post in self.posts::<Vec<Ready>>(points, task, by, None)? {
                let slot = &mut words[usize::from(post.word.rank != to)];
                let word = joined.word(post.word).filter(|_| {
                    let known = post.word.rank == to || post.word.rank == task.rank();
                    known && slot.is_none() && post.add == 1
                });
                let Some(word) = word else {
                    return Err(SimError::Unsupported {
                        place: place_of(self.plan, task),
                        message: "a message raises one net word at either end, by one".into(),
                    });
                };
                *slot = Some(word);
            }
        }
        Ok(words)
    }

    /// Gives a command to the network. False when its fifo is full.
    pub fn issue_message(&self, points: &Points<'_>, task: &Task, to: usize) -> Result<bool> {
        let Some(joined) = &self.joined else { return Ok(true) };
        let [remote_word, local_word] = self.words_of(points, task, to)?;
        let at = |regions: Vec<Region>| -> Result<(u64, u64)> {
            let Some(region) = regions.first() else { return Ok((0, 0)) };
            let dtype = self.plan.buffers[region.buffer].dtype;
            let place = joined.plan.place(points, region)?.filter(|_| regions.len() == 1);
            let place = place.ok_or_else(|| SimError::Unsupported {
                place: place_of(self.plan, task),
                message: "a message is one piece of net memory".into(),
            })?;
            Ok((place, region.len() as u64 * dtype.size_bytes()))
        };
        let (from, bytes) = at(self.regions_of(points, task, Operand::Src)?)?;
        let (there, room) = at(self.regions_of(points, task, Operand::Dst)?)?;
        if bytes != room {
            return Err(SimError::Operands {
                place: place_of(self.plan, task),
                message: format!("{bytes} bytes are sent to a place for {room}"),
            });
        }
        let lanes = match self.plan.nic.map(|nic| nic.ordering) {
            Some(NicOrdering::InOrder) => joined.plan.layout.lanes,
            _ => 1,
        };
        let edge = self.plan.families[task.family].edges.first();
        let message = Message {
            rank: task.rank(),
            peer: to,
            lane: remote_word.unwrap_or(0) % lanes,
            from,
            to: there,
            bytes,
            epoch: task.epoch() as u32,
            remote_word,
            local_word,
            enters: self.plan.enters_node(task.family),
            edge: edge.map_or(0, |e| e.edge.index() as u32),
        };
        joined.network.issue(&message).map_err(SimError::Network)
    }

    /// Polls net words that agents wait for, and fifos that were full. Returns whether any agent can go on.
    pub fn look_at_network(&mut self) -> bool {
        let Some(joined) = &self.joined else { return false };
        let mut woken = self.signals.woken(|word| {
            joined.word(word).map(|net| i64::from(joined.network.word(word.rank, net)))
        });
        woken.extend(
            std::mem::take(&mut self.refused).into_iter().map(|rank| Actor::Sender { rank }),
        );
        let any = !woken.is_empty();
        for actor in woken {
            if let Actor::Agent { rank, agent } = actor {
                self.ranks[rank].program.agents[agent].blocked = None;
            }
            self.chooser.ready(actor);
        }
        any
    }

    /// The value of a word.
    pub fn seen(&self, word: Word) -> i64 {
        let net = self.joined.as_ref().and_then(|joined| {
            joined.word(word).map(|net| i64::from(joined.network.word(word.rank, net)))
        });
        net.unwrap_or_else(|| self.signals.seen(word))
    }
}
