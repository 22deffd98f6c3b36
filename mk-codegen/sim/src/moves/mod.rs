//! The loop of a run: choose, move, until nothing can.

mod agent;
mod check;
mod deliver;
mod launch;
mod network;
mod nic;
mod post;
mod wait;
mod weak;

use crate::{
    error::{Blocked, Deadlock, Result, SimError, WaitsFor},
    machine::{Machine, Rank},
    options::RunReport,
    program::{Blocking, Pending, State},
    schedule::{Actor, Choice, Schedule},
};
use mk_plan::{Agent, Task};
use std::time::Instant;

/// Steps between two looks at a network outside the executor.
const LOOK: u64 = 64;

impl Machine<'_> {
    pub fn run(mut self) -> Result<RunReport> {
        self.supported()?;
        self.check_network()?;
        for rank in 0..self.ranks.len() {
            if !self.ranks[rank].finished {
                self.between_launches(rank)?;
            }
        }
        loop {
            let (schedule, ranks) = (self.chooser.schedule(), &self.ranks);
            let held = |actor: Actor| is_held(schedule, ranks, actor);
            let Some(choice) = self.chooser.next(&held) else {
                if self.await_network()? {
                    continue;
                }
                break;
            };
            self.step()?;
            if self.joined.is_some() && self.report.steps.is_multiple_of(LOOK) {
                self.look_at_network();
            }
            self.acting_held = match choice {
                Choice::Actor(actor) => is_held(schedule, &self.ranks, actor),
                Choice::Delivery(_) => false,
            };
            match choice {
                Choice::Delivery(id) => self.deliver(id)?,
                Choice::Actor(Actor::Launch { rank }) => self.launch(rank)?,
                Choice::Actor(Actor::Agent { rank, agent }) => self.advance(rank, agent)?,
                Choice::Actor(Actor::Sender { rank }) => self.send(rank)?,
            }
        }
        if self.done() {
            Ok(self.report)
        } else {
            Err(SimError::Deadlock(Box::new(self.deadlock())))
        }
    }

    /// Waits until the network unblocks an agent. False when no agent waits for it.
    fn await_network(&mut self) -> Result<bool> {
        if self.done() {
            return Ok(false);
        }
        let begin = Instant::now();
        while !self.look_at_network() {
            let Some(joined) = &self.joined else { return Ok(false) };
            joined.network.wait(begin.elapsed()).map_err(|what| {
                // Who waits, and for which words.
                SimError::Network(format!("{what}; {}", self.deadlock()))
            })?;
        }
        Ok(true)
    }

    fn done(&self) -> bool {
        self.ranks.iter().all(|r| r.finished && r.host.fifo.is_empty())
    }

    fn deadlock(&self) -> Deadlock {
        let mut blocked = Vec::new();
        for (rank, r) in self.ranks.iter().enumerate() {
            let mut add = |place: String, agent: Agent, task: &Task, on| {
                blocked.push(Blocked {
                    rank,
                    epoch: task.epoch(),
                    place,
                    agent,
                    family: task.family,
                    name: self.plan.families[task.family].name.clone(),
                    task: task.domain().to_vec(),
                    on,
                });
            };
            for a in &r.program.agents {
                let unit = &r.program.units[a.unit];
                let on = match (a.blocked, &a.state) {
                    (Some(Blocking::Signal), State::Waiting(waits) | State::Settling(waits)) => {
                        match waits.last() {
                            Some(wait) => self.awaited(wait),
                            None => continue,
                        }
                    }
                    (Some(Blocking::Internal(edge, name, from)), _) => {
                        WaitsFor::Internal { edge, name, from }
                    }
                    (Some(Blocking::Fifo), _) => WaitsFor::Fifo,
                    _ => continue,
                };
                if let Some(t) = a.list.get(a.at).and_then(|i| unit.tasks.get(*i)) {
                    add(unit.place.to_string(), a.agent, &t.task, on);
                }
            }
            if let (Some(command), Some(waits)) = (r.host.fifo.front(), &r.host.waits)
                && let Some(wait) = waits.last()
            {
                add("host".into(), Agent::Sender, &command.task, self.awaited(wait));
            }
        }
        let total = blocked.len();
        // A signal that does not come is nearer to the cause than the agents that wait for those who wait for it.
        blocked.sort_by_key(|b| !matches!(b.on, WaitsFor::Signal { .. }));
        blocked.truncate(Deadlock::SHOWN);
        Deadlock { blocked, total }
    }

    fn awaited(&self, wait: &Pending) -> WaitsFor {
        WaitsFor::Signal {
            edge: wait.edge,
            signal: wait.word.signal,
            index: wait.index.clone(),
            expected: wait.expected,
            seen: self.seen(wait.word),
        }
    }
}

/// Whether the schedule holds an actor back.
fn is_held(schedule: Schedule, ranks: &[Rank], actor: Actor) -> bool {
    match actor {
        Actor::Launch { .. } => false,
        Actor::Agent { rank, agent } => {
            let program = &ranks[rank].program;
            let Some(a) = program.agents.get(agent) else { return false };
            let task = a.list.get(a.at).and_then(|t| program.units[a.unit].tasks.get(*t));
            task.is_some_and(|t| schedule.holds(&t.task, a.agent))
        }
        Actor::Sender { rank } => {
            let command = ranks[rank].host.fifo.front();
            command.is_some_and(|c| schedule.holds(&c.task, Agent::Sender))
        }
    }
}
