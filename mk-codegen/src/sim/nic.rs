//! The network: a bounded fifo to the host, its sending thread, and what a command does on the way.
//!
//! A command's source is read when the data is delivered, so that a source that is reused too early shows. What was delivered
//! is not in memory before it is flushed. On an unordered network the commands of one pair of ranks are delivered in any
//! order; on an ordered one each is visible before the next.

use super::{
    SimError, delivery::Delivery, machine::Machine, place_of, post::Ready, program::Blocking,
    schedule::Actor, wait::Pending,
};
use crate::ir::{
    Agent, Completion, Leaf, Mode, NicOrdering, Operand, Points, Region, TableSet, Task,
};
use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
};

/// A rank's host.
#[derive(Default)]
pub(super) struct Host {
    /// Commands that the sending thread has not taken.
    pub fifo: VecDeque<Command>,
    /// Waits of the first command, once it has been looked at.
    pub waits: Option<Vec<Pending>>,
    /// Whether the sending thread is awake.
    awake: bool,
    /// Commands under way to each rank, oldest first, on an ordered network.
    queues: HashMap<usize, VecDeque<u64>>,
}

/// A task whose data the network is to carry.
pub(super) struct Command {
    pub task: Task,
    pub tables: Rc<TableSet>,
}

/// A command that the network has taken.
pub(super) struct NicOp {
    /// Whose command it is.
    task: Task,
    from: usize,
    to: usize,
    sources: Vec<Region>,
    destinations: Vec<Region>,
    /// What was read, between delivery and flush.
    data: Option<Vec<f32>>,
    sender_posts: Vec<Ready>,
    receiver_posts: Vec<Ready>,
    /// Steps that have not happened.
    left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicStep {
    /// The data is read and reaches the other node.
    Deliver,
    /// It becomes visible to the GPU there.
    Flush,
    /// The sending host learns of the delivery.
    Sender,
    /// The receiving host learns of it.
    Receiver,
}

impl Machine<'_> {
    /// Refuses what this model of the network leaves out.
    pub fn supported(&self) -> Result<(), SimError> {
        for (id, x) in self.plan.families.iter() {
            if x.leaf != Leaf::NicSend {
                continue;
            }
            let message = if self.plan.nic.is_none_or(|nic| nic.fifo == 0) {
                "nic_send needs a `nic` line with a fifo of at least 1"
            } else if x.inner.is_some() {
                "nic_send with an inner loop is not supported"
            } else if x.waits.iter().any(|w| w.by == Agent::Receiver) {
                "a wait by the receiver is not supported"
            } else {
                continue;
            };
            return Err(SimError::Unsupported {
                place: format!("{id} {:?}", x.name),
                message: message.into(),
            });
        }
        Ok(())
    }

    pub fn fifo_full(&self, rank: usize) -> bool {
        let room = self.plan.nic.map_or(0, |nic| nic.fifo as usize);
        self.ranks[rank].host.fifo.len() >= room
    }

    /// Puts a command into the fifo; there is room.
    pub fn command(&mut self, rank: usize, command: Command) {
        let host = &mut self.ranks[rank].host;
        host.fifo.push_back(command);
        if !host.awake {
            host.awake = true;
            self.chooser.ready(Actor::Sender { rank });
        }
    }

    /// Moves the sending thread: one command, in the order of the fifo.
    pub fn send(&mut self, rank: usize) -> Result<(), SimError> {
        let Some(Command { task, tables }) = self.ranks[rank].host.fifo.front() else {
            self.ranks[rank].host.awake = false;
            return Ok(());
        };
        let (task, tables) = (task.clone(), tables.clone());
        let points = Points::new(self.plan, &tables);
        let mut waits = match self.ranks[rank].host.waits.take() {
            Some(waits) => waits,
            None => self.waits(&points, &task, Agent::Sender, None)?,
        };
        if !self.poll(&mut waits, Actor::Sender { rank }) {
            self.ranks[rank].host.waits = Some(waits);
            return Ok(());
        }
        self.ranks[rank].host.fifo.pop_front();
        self.wake_issuers(rank);
        self.chooser.ready(Actor::Sender { rank });
        let posts: Vec<Ready> = self.posts(&points, &task, Agent::Sender, None)?;
        let late = |p: &Ready| p.after >= Completion::NicDelivered;
        let (sender_posts, now): (Vec<_>, Vec<_>) = posts.into_iter().partition(late);
        let op = NicOp {
            task: task.clone(),
            from: rank,
            to: self.destination(&points, &task)?,
            sources: self.of(&points, &task, Operand::Src)?,
            destinations: self.of(&points, &task, Operand::Dst)?,
            data: None,
            sender_posts,
            receiver_posts: self.posts(&points, &task, Agent::Receiver, None)?,
            left: 4,
        };
        if let Some(post) = op.receiver_posts.iter().find(|p| p.word.rank != op.to) {
            return Err(SimError::Unsupported {
                place: place_of(self.plan, &task),
                message: format!(
                    "the receiving host is on rank {}, and posts to a word of rank {}",
                    op.to, post.word.rank
                ),
            });
        }
        let len = |list: &[Region]| list.iter().map(Region::len).sum::<i64>();
        if len(&op.sources) != len(&op.destinations) {
            return Err(SimError::Operands {
                place: place_of(self.plan, &task),
                message: format!(
                    "{} elements are sent to a place for {}",
                    len(&op.sources),
                    len(&op.destinations)
                ),
            });
        }
        self.post_to_network(op);
        now.into_iter().for_each(|post| self.raise(post));
        Ok(())
    }

    fn post_to_network(&mut self, op: NicOp) {
        let (from, to) = (op.from, op.to);
        let deliver = |op| Delivery::Network { op, step: NicStep::Deliver };
        let id = self.deliveries.next_op();
        self.deliveries.nic.insert(id, op);
        if self.ordered() {
            let queue = self.ranks[from].host.queues.entry(to).or_default();
            queue.push_back(id);
            if queue.len() > 1 {
                return;
            }
        }
        self.issue(from, deliver(id));
    }

    fn ordered(&self) -> bool {
        self.plan.nic.is_some_and(|nic| nic.ordering == NicOrdering::InOrder)
    }

    fn wake_issuers(&mut self, rank: usize) {
        for (id, agent) in self.ranks[rank].program.agents.iter_mut().enumerate() {
            if agent.blocked == Some(Blocking::Fifo) {
                agent.blocked = None;
                self.chooser.ready(Actor::Agent { rank, agent: id });
            }
        }
    }

    /// The rank that a task sends to.
    fn destination(&self, points: &Points<'_>, task: &Task) -> Result<usize, SimError> {
        let accesses = &self.plan.families[task.family].accesses;
        let dst = accesses.iter().find(|a| a.operand == Operand::Dst);
        Ok(match dst {
            Some(a) => points.rank(task, &a.rank)?,
            None => task.rank(),
        })
    }

    fn of(
        &self,
        points: &Points<'_>,
        task: &Task,
        operand: Operand,
    ) -> Result<Vec<Region>, SimError> {
        let mut list = Vec::new();
        for a in &self.plan.families[task.family].accesses {
            if a.operand == operand {
                list.extend(self.regions(points, task, a, 0)?.into_iter().map(|r| r.1));
            }
        }
        Ok(list)
    }

    /// A step of a command that the network has taken.
    pub fn network(&mut self, id: u64, step: NicStep) -> Result<(), SimError> {
        let Some(op) = self.deliveries.nic.get_mut(&id) else {
            return Ok(());
        };
        let (from, to) = (op.from, op.to);
        op.left -= 1;
        let done = op.left == 0;
        match step {
            NicStep::Deliver => {
                let data: Vec<f32> =
                    op.sources.iter().flat_map(|r| self.memory.read(r).data).collect();
                let n = data.len() as u64;
                op.data = Some(data);
                let (task, sources) = (op.task.clone(), op.sources.clone());
                self.hold(n)?;
                for region in &sources {
                    self.check_read(region, task.epoch())?;
                }
                for step in [NicStep::Flush, NicStep::Sender, NicStep::Receiver] {
                    let by = match step {
                        NicStep::Receiver => Agent::Receiver,
                        _ => Agent::Sender,
                    };
                    self.acting_held = self.chooser.schedule().holds(&task, by);
                    self.issue(from, Delivery::Network { op: id, step });
                }
                self.next_in_order(from, to)?;
            }
            NicStep::Flush => self.flush(id)?,
            NicStep::Sender => {
                // On an unordered network the sender knows nothing of the flush.
                let ordered = self.ordered();
                let posts =
                    self.deliveries.nic.get_mut(&id).map(|op| std::mem::take(&mut op.sender_posts));
                for post in posts.unwrap_or_default() {
                    if ordered {
                        self.raise_after(id, post)?;
                    } else {
                        self.raise(post);
                    }
                }
            }
            NicStep::Receiver => {
                for post in std::mem::take(&mut op.receiver_posts) {
                    self.raise_after(id, post)?;
                }
            }
        }
        if done {
            self.deliveries.nic.remove(&id);
        }
        Ok(())
    }

    fn raise_after(&mut self, id: u64, post: Ready) -> Result<(), SimError> {
        if post.after == Completion::NicFlushed {
            self.flush(id)?;
        }
        self.raise(post);
        Ok(())
    }

    /// Makes delivered data visible, if it is not yet.
    fn flush(&mut self, id: u64) -> Result<(), SimError> {
        let Some(op) = self.deliveries.nic.get_mut(&id) else {
            return Ok(());
        };
        let Some(data) = op.data.take() else { return Ok(()) };
        let (epoch, destinations) = (op.task.epoch(), op.destinations.clone());
        self.release(data.len() as u64);
        let mut rest = &data[..];
        for region in &destinations {
            let (part, tail) = rest.split_at(region.len() as usize);
            self.store(region, part, Mode::Write, epoch)?;
            rest = tail;
        }
        Ok(())
    }

    /// On an ordered network: what was delivered is visible, and the next command of the pair may follow.
    fn next_in_order(&mut self, from: usize, to: usize) -> Result<(), SimError> {
        if !self.ordered() {
            return Ok(());
        }
        let queue = self.ranks[from].host.queues.entry(to).or_default();
        let delivered = queue.pop_front();
        let next = queue.front().copied();
        if let Some(op) = next {
            if let Some(before) = delivered {
                self.flush(before)?;
            }
            let step = NicStep::Deliver;
            self.issue(from, Delivery::Network { op, step });
        }
        Ok(())
    }
}
