//! The network: a bounded fifo to the host, its sending thread, and what a command does on the way.
//!
//! A command's source is read when the data is delivered, and may be read once more until a host has been told: a card
//! sends again what is not acknowledged. So a source that is reused too early shows. Delivered data is not in memory
//! before it is flushed; only network cards see it earlier. On an unordered network the commands of one pair of ranks
//! are delivered in any order. On an ordered one each pair of ranks has lanes: on each the data of a command, then the
//! words that its sender raises at the receiver (flags), then the next command; a reader that sees the flag sees the
//! data. The word at the receiver decides the lane.
//!
//! A host raises the words of one epoch before those of the next, whatever order the network's completions have.

use crate::{
    Result, SimError,
    delivery::Delivery,
    error::place_of,
    host::{Command, HostPosts, NicOp, NicStep},
    machine::Machine,
    program::{Blocking, Ready},
    schedule::Actor,
};
use mk_plan::{Agent, Completion, Mode, NicOrdering, Operand, Point, Points, Region, Task};
use std::collections::HashMap;

impl Machine<'_> {
    /// Refuses what this model of the network leaves out.
    pub fn supported(&self) -> Result<()> {
        for (id, x) in self.plan.families.iter() {
            if !x.leaf.sends() {
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
    pub fn send(&mut self, rank: usize) -> Result<()> {
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
        if self.joined.is_some() {
            let to = self.destination(&points, &task)?;
            if !self.issue_message(&points, &task, to)? {
                self.ranks[rank].host.waits = Some(waits);
                self.refused.push(rank);
                return Ok(());
            }
        }
        self.ranks[rank].host.fifo.pop_front();
        self.wake_issuers(rank);
        self.chooser.ready(Actor::Sender { rank });
        if self.joined.is_some() {
            return Ok(());
        }
        let posts = |at| self.posts::<Vec<Ready>>(&points, &task, Agent::Sender, Some((at, 0)));
        let (begun, posts) = (posts(Point::Start)?, posts(Point::End)?);
        let to = self.destination(&points, &task)?;
        let late = |p: &Ready| p.after >= Completion::NicDelivered;
        let (mut told, early): (Vec<_>, Vec<_>) = posts.into_iter().partition(late);
        // A word of the receiver's travels, behind the data where the network keeps order. Any other word the host
        // raises when the card has taken the command, and an unordered network may be as quick with the receiver's.
        let ordered = self.ordered();
        let behind = |p: &Ready| ordered && p.after == Completion::NicPosted && p.word.rank == to;
        let (flags, mut now): (Vec<_>, Vec<_>) = early.into_iter().partition(behind);
        // What is posted at the start is behind nothing that the command does.
        let (begun_told, begun): (Vec<_>, Vec<_>) = begun.into_iter().partition(late);
        told.extend(begun_told);
        now.extend(begun);
        let host = |posts| HostPosts { posts, told: false };
        let by_receiver: Vec<Ready> = self.posts(&points, &task, Agent::Receiver, None)?;
        let there = flags.iter().chain(&told).chain(&by_receiver).find(|p| p.word.rank == to);
        let lanes = self.plan.nic.map_or(1, |nic| nic.lanes.max(1) as usize);
        let op = NicOp {
            task: task.clone(),
            from: rank,
            to,
            lane: there.map_or(0, |p| p.word.at % lanes),
            sources: self.regions_of(&points, &task, Operand::Src)?,
            destinations: self.regions_of(&points, &task, Operand::Dst)?,
            data: None,
            left: if flags.is_empty() { 4 } else { 5 },
            flags,
            host_posts: [host(told), host(by_receiver)],
        };
        if let Some(post) = op.host_posts[1].posts.iter().find(|p| p.word.rank != op.to) {
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
        let (from, lane) = (op.from, (op.to, op.lane));
        let id = self.deliveries.next_op();
        self.deliveries.nic.insert(id, op);
        if self.ordered() {
            let queue = self.ranks[from].host.queues.entry(lane).or_default();
            queue.push_back(id);
            if queue.len() > 1 {
                return;
            }
        }
        self.may_deliver(id);
    }

    /// A command is the first of its lane. It is held back if its sender is, whichever command was ahead of it.
    fn may_deliver(&mut self, id: u64) {
        let Some(op) = self.deliveries.nic.get(&id) else { return };
        self.acting_held = self.chooser.schedule().holds(&op.task, Agent::Sender);
        self.issue(op.from, Delivery::Network { op: id, step: NicStep::Deliver });
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
    fn destination(&self, points: &Points<'_>, task: &Task) -> Result<usize> {
        let accesses = &self.plan.families[task.family].accesses;
        let dst = accesses.iter().find(|a| a.operand == Operand::Dst);
        Ok(match dst {
            Some(a) => points.rank(task, &a.rank)?,
            None => task.rank(),
        })
    }

    pub fn regions_of(&self, points: &Points<'_>, task: &Task, of: Operand) -> Result<Vec<Region>> {
        let mut list = Vec::new();
        for a in &self.plan.families[task.family].accesses {
            if a.operand == of {
                list.extend(self.regions(points, task, a, 0)?.into_iter().map(|r| r.1));
            }
        }
        Ok(list)
    }

    /// A step of a command that the network has taken.
    pub fn network(&mut self, id: u64, step: NicStep) -> Result<()> {
        let Some(op) = self.deliveries.nic.get_mut(&id) else {
            return Ok(());
        };
        op.left -= 1;
        match step {
            NicStep::Deliver => self.delivered(id)?,
            NicStep::Flags => {
                let (from, lane) = (op.from, (op.to, op.lane));
                let flags = std::mem::take(&mut op.flags);
                self.flush(id)?;
                flags.into_iter().for_each(|post| self.raise(post));
                self.next_in_order(from, lane)?;
            }
            NicStep::Flush => self.flush(id)?,
            NicStep::Sender => self.told(id, 0)?,
            NicStep::Receiver => self.told(id, 1)?,
        }
        self.deliveries
            .nic
            .retain(|_, op| op.left > 0 || op.host_posts.iter().any(|host| !host.posts.is_empty()));
        Ok(())
    }

    /// The data of a command reaches the other node.
    fn delivered(&mut self, id: u64) -> Result<()> {
        let Some(op) = self.deliveries.nic.get(&id) else { return Ok(()) };
        let (from, lane, behind) = (op.from, (op.to, op.lane), !op.flags.is_empty());
        let (task, sources) = (op.task.clone(), op.sources.clone());
        self.seen_by_card(&sources)?;
        let data: Vec<f32> = sources.iter().flat_map(|r| self.memory.read(r).data).collect();
        self.hold(data.len() as u64)?;
        if let Some(op) = self.deliveries.nic.get_mut(&id) {
            op.data = Some(data);
        }
        for region in &sources {
            self.check_read(region, task.epoch())?;
        }
        let flags = behind.then_some(NicStep::Flags);
        for step in [NicStep::Flush, NicStep::Sender, NicStep::Receiver].into_iter().chain(flags) {
            let by = match step {
                NicStep::Receiver => Agent::Receiver,
                _ => Agent::Sender,
            };
            self.acting_held = self.chooser.schedule().holds(&task, by);
            self.issue(from, Delivery::Network { op: id, step });
        }
        // With flags, the lane goes on behind them.
        if behind { Ok(()) } else { self.next_in_order(from, lane) }
    }

    /// A card sees what was delivered to its rank before anybody has flushed it.
    fn seen_by_card(&mut self, sources: &[Region]) -> Result<()> {
        let held = |op: &NicOp| {
            op.data.is_some()
                && op.destinations.iter().any(|d| sources.iter().any(|s| s.overlap(d) > 0))
        };
        let list: Vec<u64> =
            self.deliveries.nic.iter().filter(|(_, op)| held(op)).map(|(id, _)| *id).collect();
        list.into_iter().try_for_each(|id| self.flush(id))
    }

    /// A host (0: the sender's, 1: the receiver's) has learned of a delivery, and raises what it may: not before what
    /// it is to raise for earlier epochs at the same words.
    fn told(&mut self, id: u64, host: usize) -> Result<()> {
        if let Some(op) = self.deliveries.nic.get_mut(&id) {
            // A receiving host that posts nothing is told of nothing.
            let told = host == 0 || !op.host_posts[1].posts.is_empty();
            let first = told && op.host_posts.iter().all(|host| !host.told);
            op.host_posts[host].told |= told;
            let (epoch, sources) = (op.task.epoch(), op.sources.clone());
            if first {
                sources.iter().try_for_each(|region| self.check_read(region, epoch))?;
            }
        }
        while let Some((id, post)) = self.may_raise(host) {
            let Some(op) = self.deliveries.nic.get_mut(&id) else { return Ok(()) };
            let (to, post) = (op.to, op.host_posts[host].posts.remove(post));
            let ordered = self.ordered();
            // On an ordered network the sender's words follow the data there; on an unordered one it knows nothing of
            // the flush.
            let behind = host == 0 && ordered && post.word.rank == to;
            let flushed = post.after == Completion::NicFlushed && (host == 1 || ordered);
            if behind || flushed {
                self.flush(id)?;
            }
            self.raise(post);
        }
        Ok(())
    }

    /// The first post that a host may make: command and place in its list. Commands of a rank are taken in the order of
    /// epochs.
    fn may_raise(&self, host: usize) -> Option<(u64, usize)> {
        let mut first = HashMap::new();
        for (id, op) in &self.deliveries.nic {
            let (epoch, mine) = (op.task.epoch(), &op.host_posts[host]);
            for (i, post) in mine.posts.iter().enumerate() {
                if *first.entry(post.word).or_insert(epoch) == epoch && mine.told {
                    return Some((*id, i));
                }
            }
        }
        None
    }

    /// Makes delivered data visible, if it is not yet; on an ordered network behind that of earlier commands of the
    /// lane.
    fn flush(&mut self, id: u64) -> Result<()> {
        let Some(op) = self.deliveries.nic.get(&id) else {
            return Ok(());
        };
        if self.ordered() {
            let lane = (op.from, op.to, op.lane);
            let before = self.deliveries.nic.range(..id);
            let open =
                before.filter(|(_, op)| (op.from, op.to, op.lane) == lane && op.data.is_some());
            let open: Vec<u64> = open.map(|(id, _)| *id).collect();
            open.into_iter().try_for_each(|id| self.write_delivered(id))?;
        }
        self.write_delivered(id)
    }

    fn write_delivered(&mut self, id: u64) -> Result<()> {
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

    /// On an ordered network the next command of the lane may follow.
    fn next_in_order(&mut self, from: usize, lane: (usize, usize)) -> Result<()> {
        if !self.ordered() {
            return Ok(());
        }
        let queue = self.ranks[from].host.queues.entry(lane).or_default();
        queue.pop_front();
        if let Some(op) = queue.front().copied() {
            self.may_deliver(op);
        }
        Ok(())
    }
}
