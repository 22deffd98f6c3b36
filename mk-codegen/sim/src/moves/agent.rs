//! One agent's walk: for every phase of every task, its waits, then the edges from the agents before it, then its
//! accesses, then its posts. A move ends where its effect becomes visible, so that other agents can interleave there.

use crate::{
    Result, SimError,
    context::Phase,
    delivery::{Delivery, inner_of},
    error::place_of,
    host::Command,
    leaf::{Attends, Write, consume, values},
    machine::Machine,
    program::{Blocking, Pending, Ready, State, UnitTask},
    schedule::Actor,
};
use mk_plan::{
    Access, Agent, Completion, Entity, Mode, Operand, Point, Points, Proxy, Scope, Task,
};
use std::collections::VecDeque;

impl Machine<'_> {
    /// Moves an agent.
    pub fn advance(&mut self, rank: usize, id: usize) -> Result<()> {
        let actor = Actor::Agent { rank, agent: id };
        loop {
            let program = &mut self.ranks[rank].program;
            let agent = &mut program.agents[id];
            let unit = agent.unit;
            let next = agent.phase == 0 && matches!(agent.state, State::Begin);
            if next && !self.heard_all(rank, id, actor) {
                self.ranks[rank].program.agents[id].blocked = Some(Blocking::Signal);
                return Ok(());
            }
            let program = &mut self.ranks[rank].program;
            let agent = &mut program.agents[id];
            let Some(t) = agent.list.get(agent.at).copied() else {
                program.units[unit].running -= 1;
                if program.units[unit].running == 0 {
                    self.end_unit(rank, unit)?;
                }
                return Ok(());
            };
            if next && self.at_work_before(rank, id, t) {
                self.ranks[rank].program.agents[id].blocked = Some(Blocking::Warps);
                return Ok(());
            }
            self.step()?;
            let agent = &mut self.ranks[rank].program.agents[id];
            match std::mem::replace(&mut agent.state, State::Begin) {
                State::Begin => {
                    let waits = self.phase_waits(rank, id, t)?;
                    let waits = self.defer(rank, id, t, waits);
                    self.set(rank, id, State::Waiting(waits));
                }
                State::Waiting(mut waits) => {
                    let blocked = if !self.poll(&mut waits, actor) {
                        Some(Blocking::Signal)
                    } else {
                        self.read_early(rank, id, t)?;
                        self.held_back(rank, id, t)
                    };
                    if blocked.is_some() {
                        self.set(rank, id, State::Waiting(waits));
                        self.ranks[rank].program.agents[id].blocked = blocked;
                        return Ok(());
                    }
                    self.set(rank, id, State::Access);
                }
                State::Access => {
                    let seen = self.access(rank, id, t)?;
                    let waits = self.due_waits(rank, id, t)?;
                    self.set(rank, id, State::Settling(waits));
                    if seen {
                        self.chooser.ready(actor);
                        return Ok(());
                    }
                }
                State::Settling(mut waits) => {
                    if !self.poll(&mut waits, actor) {
                        self.set(rank, id, State::Settling(waits));
                        self.ranks[rank].program.agents[id].blocked = Some(Blocking::Signal);
                        return Ok(());
                    }
                    let posts = self.phase_posts(rank, id, t)?;
                    self.set(rank, id, State::Posting(posts));
                }
                State::Posting(mut posts) => match posts.pop_front() {
                    Some(post) => {
                        self.complete(rank, id, post)?;
                        self.raise(post);
                        self.set(rank, id, State::Posting(posts));
                        self.chooser.ready(actor);
                        return Ok(());
                    }
                    None => {
                        if self.hands_on(rank, id, t) {
                            self.push_out(rank, id, Scope::Gpu)?;
                        }
                        self.pass(rank, id, t);
                    }
                },
            }
        }
    }

    fn set(&mut self, rank: usize, id: usize, state: State) {
        self.ranks[rank].program.agents[id].state = state;
    }

    fn phase_waits(&self, rank: usize, id: usize, t: usize) -> Result<Vec<Pending>> {
        let (points, task, agent, at) = self.phase(rank, id, t);
        self.waits(&points, task, agent, Some(at))
    }

    /// A rank's memory, and the task, agent, point and iteration of an agent's phase.
    fn phase(&self, rank: usize, id: usize, t: usize) -> (Points<'_>, &Task, Agent, (Point, i64)) {
        let r = &self.ranks[rank];
        let agent = &r.program.agents[id];
        let task = &r.program.units[agent.unit].tasks[t];
        let at = (point_of(task, agent.phase), inner_of(agent.phase));
        (Points::new(self.plan, &r.tables), &task.task, agent.agent, at)
    }

    /// Defers waits that are too weak to order what follows.
    fn defer(&mut self, rank: usize, id: usize, t: usize, waits: Vec<Pending>) -> Vec<Pending> {
        if self.weak.is_none() {
            return waits;
        }
        let agent = &self.ranks[rank].program.agents[id];
        let (name, phase) = (agent.agent, agent.phase);
        let task = &self.ranks[rank].program.units[agent.unit].tasks[t];
        let lines = &self.plan.families[task.task.family].waits;
        let loose = |w: &Pending| self.is_loose(task, name, phase, w.word, &lines[w.line]);
        let (loose, firm): (Vec<_>, Vec<_>) = waits.into_iter().partition(loose);
        // What synchronises with nobody orders nothing that others do after it either.
        let unfenced = |w: &Pending| !self.is_deaf(name, w.word, &lines[w.line]);
        let (due, deaf): (Vec<_>, Vec<_>) = loose.into_iter().partition(unfenced);
        let agent = &mut self.ranks[rank].program.agents[id];
        agent.deferred.extend(due);
        agent.deaf.extend(deaf);
        firm
    }

    /// Whether the waits of the task before that order nothing hold: their agent begins no other one until they do.
    fn heard_all(&mut self, rank: usize, id: usize, actor: Actor) -> bool {
        let mut deaf = std::mem::take(&mut self.ranks[rank].program.agents[id].deaf);
        let heard = self.poll(&mut deaf, actor);
        self.ranks[rank].program.agents[id].deaf = deaf;
        heard
    }

    /// Whether the warps of an agent that begins a task have an earlier one to do: a CTA's copier and its consumers are
    /// the same.
    fn at_work_before(&self, rank: usize, id: usize, t: usize) -> bool {
        let program = &self.ranks[rank].program;
        let other = match program.agents[id].agent {
            Agent::Copier => Agent::Consumers,
            Agent::Consumers => Agent::Copier,
            _ => return false,
        };
        let mut agents =
            program.units[program.agents[id].unit].agents.iter().map(|a| &program.agents[*a]);
        agents.any(|a| a.agent == other && a.list.get(a.at).is_some_and(|n| *n < t))
    }

    /// The waits that were set aside, if something follows that they do order: posts, a hand-over, the end of the task.
    fn due_waits(&mut self, rank: usize, id: usize, t: usize) -> Result<Vec<Pending>> {
        if self.ranks[rank].program.agents[id].deferred.is_empty() {
            return Ok(Vec::new());
        }
        let agent = &self.ranks[rank].program.agents[id];
        let last = agent.phase == self.ranks[rank].program.units[agent.unit].tasks[t].last();
        if !last && !self.hands_on(rank, id, t) && self.phase_posts(rank, id, t)?.is_empty() {
            return Ok(Vec::new());
        }
        Ok(std::mem::take(&mut self.ranks[rank].program.agents[id].deferred))
    }

    /// Whether other agents of a task depend on this one.
    fn hands_on(&self, rank: usize, id: usize, t: usize) -> bool {
        let agent = &self.ranks[rank].program.agents[id];
        let task = &self.ranks[rank].program.units[agent.unit].tasks[t].task;
        let edges = &self.contract(task).edges;
        edges.iter().any(|e| e.depth.is_none() && e.from == agent.agent)
    }

    fn phase_posts(&self, rank: usize, id: usize, t: usize) -> Result<VecDeque<Ready>> {
        let (points, task, agent, at) = self.phase(rank, id, t);
        self.posts(&points, task, agent, Some(at))
    }

    /// The internal edge, or the full fifo, that keeps an agent from the accesses of its phase.
    fn held_back(&self, rank: usize, id: usize, t: usize) -> Option<Blocking> {
        let r = &self.ranks[rank];
        let agent = &r.program.agents[id];
        let unit = &r.program.units[agent.unit];
        let task = &unit.tasks[t];
        let family = &self.plan.families[task.task.family];
        if agent.agent == Agent::Issuer && agent.phase == 0 && self.fifo_full(rank) {
            return Some(Blocking::Fifo);
        }
        // What a storer posts at the start, or in the first step of an inner loop, it may post before it has looked at
        // what it gets.
        let first = agent.phase == 0 || (agent.phase == 1 && point_of(task, 1) == Point::Inner);
        let idle = agent.agent == Agent::Storer
            && first
            && family
                .accesses
                .iter()
                .all(|a| a.at == Point::End || !self.is_by(task, a, agent.agent));
        let specs = self.contract(&task.task).edges.iter().zip(&family.edges).filter(|_| !idle);
        for (spec, edge) in specs {
            if spec.depth.is_none() && spec.to == agent.agent {
                let context = task.context.as_deref();
                if !context.is_some_and(|c| c.arrived(spec.from, agent.phase)) {
                    return Some(Blocking::Internal(edge.edge, spec.name, spec.from));
                }
            }
        }
        for back in &task.back {
            let Some(step) = task.begins(agent.phase, back.per_task) else { continue };
            let pair = unit.completed[back.pair];
            if pair.to == agent.agent && back.base + step - back.depth >= pair.steps {
                return Some(Blocking::Internal(back.edge, back.name, pair.from));
            }
        }
        None
    }

    fn is_by(&self, task: &UnitTask, access: &Access, agent: Agent) -> bool {
        self.contract(&task.task).operand(access.operand).is_some_and(|o| o.agent == agent)
    }

    /// Ordinary reads of a phase before what other agents hand over in it.
    fn read_early(&mut self, rank: usize, id: usize, t: usize) -> Result<()> {
        let plan = self.plan;
        let a = &self.ranks[rank].program.agents[id];
        if self.weak.is_none() || a.early {
            return Ok(());
        }
        let (unit, phase, agent) = (a.unit, a.phase, a.agent);
        let task = &self.ranks[rank].program.units[unit].tasks[t];
        let point = point_of(task, phase);
        let accesses = &plan.families[task.task.family].accesses;
        let contract = self.contract(&task.task);
        let ordinary = |a: &Access| {
            let spec = contract.operand(a.operand);
            spec.is_some_and(|o| o.agent == agent && o.proxy == Proxy::Generic)
        };
        let reads = |a: &Access| a.at == point && a.mode == Mode::Read && ordinary(a);
        let lines: Vec<usize> = (0..accesses.len()).filter(|i| reads(&accesses[*i])).collect();
        if !lines.is_empty() {
            // An agent sees its own stores.
            self.push_out(rank, id, Scope::Gpu)?;
        }
        for line in lines {
            self.load(rank, unit, t, line, phase)?;
        }
        self.ranks[rank].program.agents[id].early = true;
        Ok(())
    }

    /// Reads, computes, writes. Whether anything was there that others can see, or that can see others.
    fn access(&mut self, rank: usize, id: usize, t: usize) -> Result<bool> {
        let (unit, phase, agent) = {
            let a = &self.ranks[rank].program.agents[id];
            (a.unit, a.phase, a.agent)
        };
        let plan = self.plan;
        let task = &self.ranks[rank].program.units[unit].tasks[t];
        let (point, last, family_id) = (point_of(task, phase), task.last(), task.task.family);
        let family = &plan.families[family_id];
        if family.leaf.sends() {
            if phase == 0 {
                let command =
                    Command { task: task.task.clone(), tables: self.ranks[rank].tables.clone() };
                self.command(rank, command);
            }
            return Ok(phase == 0);
        }
        let mine: Vec<_> = family
            .accesses
            .iter()
            .enumerate()
            .filter(|(_, a)| a.at == point)
            .filter_map(|(line, a)| {
                let spec = self.contracts[family_id.index()].operand(a.operand)?;
                (spec.agent == agent).then_some((line, a, spec.proxy))
            })
            .collect();
        let early = std::mem::take(&mut self.ranks[rank].program.agents[id].early);
        for (line, _, proxy) in mine.iter().filter(|(_, a, _)| a.mode == Mode::Read) {
            if *proxy != Proxy::Async {
                // Early are ordinary reads only.
                if !early || *proxy == Proxy::Host {
                    self.load(rank, unit, t, *line, phase)?;
                }
                continue;
            }
            let ahead = &mut self.ranks[rank].program.agents[id].ahead;
            match ahead.iter().position(|load| *load == (*line, phase)) {
                Some(i) => drop(ahead.swap_remove(i)),
                None => self.issue_load(rank, id, t, *line, phase),
            }
        }
        self.load_ahead(rank, id, t)?;
        let mut context =
            self.ranks[rank].program.units[unit].tasks[t].context.take().unwrap_or_default();
        let held = context.held();
        if agent == Agent::Consumers {
            let r = &self.ranks[rank];
            let points = Points::new(plan, &r.tables);
            let iteration = inner_of(phase);
            let at = points.positions(&r.program.units[unit].tasks[t].task, iteration)?;
            let kind = plan.operand(family_id, Operand::Q).map(|q| plan.buffers[q.buffer].dtype);
            consume(family, &mut context, point, phase, Attends { at, kind })
                .map_err(|e| self.named(e, rank, unit, t))?;
        }
        let mut stores = Vec::new();
        for (_, a, proxy) in mine.iter().filter(|(_, a, _)| a.mode != Mode::Read) {
            let r = &self.ranks[rank];
            let task = &r.program.units[unit].tasks[t].task;
            let points = Points::new(plan, &r.tables);
            let regions = self.regions(&points, task, a, phase)?;
            let to = Write { family, operand: a.operand, phase, last };
            for (region, values) in
                values(&to, &mut context, regions).map_err(|e| self.named(e, rank, unit, t))?
            {
                stores.push((region, values, a.mode, *proxy));
            }
        }
        self.release(held);
        self.hold(context.held())?;
        self.ranks[rank].program.units[unit].tasks[t].context = Some(context);
        let epoch = self.ranks[rank].epoch;
        for (region, values, mode, proxy) in stores {
            if region.rank != rank {
                let size = plan.buffers[region.buffer].dtype.size_bytes();
                self.report.pushed_bytes[family_id.index()] += region.len().max(0) as u64 * size;
            }
            // A copy engine's queue is in order: what it posts is behind what it copied.
            if agent == Agent::Engine || proxy != Proxy::Async && self.weak.is_none() {
                self.store(&region, &values, mode, epoch)?;
                continue;
            }
            self.hold(values.len() as u64)?;
            let store = Delivery::Store { region, values, mode, epoch };
            if proxy == Proxy::Generic {
                self.buffer(rank, id, store);
                continue;
            }
            let store = self.issue(rank, store);
            self.ranks[rank].program.agents[id].stores.push(store);
        }
        Ok(!mine.is_empty())
    }

    fn issue_load(&mut self, rank: usize, id: usize, t: usize, line: usize, phase: Phase) {
        let agent = &self.ranks[rank].program.agents[id];
        let (unit, agent) = (agent.unit, agent.agent);
        let context = &mut self.ranks[rank].program.units[unit].tasks[t].context;
        context.get_or_insert_default().begin_load(agent, phase);
        self.issue(rank, Delivery::Load { rank, unit, task: t, agent, line, phase });
    }

    /// Issues the bulk loads of later phases that a wait without a fence does not hold back, up to the next wait.
    fn load_ahead(&mut self, rank: usize, id: usize, t: usize) -> Result<()> {
        let a = &self.ranks[rank].program.agents[id];
        if a.deferred.is_empty() {
            return Ok(());
        }
        let (unit, now, agent) = (a.unit, a.phase, a.agent);
        let r = &self.ranks[rank];
        let task = &r.program.units[unit].tasks[t];
        let points = Points::new(self.plan, &r.tables);
        let accesses = &self.plan.families[task.task.family].accesses;
        let contract = self.contract(&task.task);
        let bulk = |a: &Access| {
            let spec = contract.operand(a.operand);
            let mine = spec.is_some_and(|o| o.agent == agent && o.proxy == Proxy::Async);
            mine && a.mode == Mode::Read
        };
        let mut loads = Vec::new();
        for phase in now + 1..=task.last() {
            let at = (point_of(task, phase), inner_of(phase));
            if !self.waits(&points, &task.task, agent, Some(at))?.is_empty() {
                break;
            }
            let lines = accesses.iter().enumerate();
            let due = lines.filter(|(_, a)| a.at == at.0 && bulk(a));
            loads.extend(due.map(|(line, _)| (line, phase)));
        }
        for (line, phase) in loads {
            let ahead = &mut self.ranks[rank].program.agents[id].ahead;
            if !ahead.contains(&(line, phase)) {
                ahead.push((line, phase));
                self.issue_load(rank, id, t, line, phase);
            }
        }
        Ok(())
    }

    fn named(&self, error: SimError, rank: usize, unit: usize, t: usize) -> SimError {
        let task = &self.ranks[rank].program.units[unit].tasks[t].task;
        match error {
            SimError::Operands { message, .. } => {
                SimError::Operands { place: place_of(self.plan, task), message }
            }
            other => other,
        }
    }

    /// Waits for the bulk stores that a post comes after: those of this agent, and no further than the post's scope.
    fn complete(&mut self, rank: usize, id: usize, post: Ready) -> Result<()> {
        self.push_out(rank, id, post.scope)?;
        if post.after != Completion::GlobalWriteDone {
            return Ok(());
        }
        let stores = std::mem::take(&mut self.ranks[rank].program.agents[id].stores);
        let mut left = Vec::new();
        for store in stores {
            if post.scope == Scope::Sys || self.deliveries.stays_on(store, rank) {
                self.deliver(store)?;
            } else if self.deliveries.is_due(store) {
                left.push(store);
                self.ranks[rank].unseen.push(store);
            }
        }
        self.ranks[rank].program.agents[id].stores = left;
        Ok(())
    }

    /// Leaves a phase.
    fn pass(&mut self, rank: usize, id: usize, t: usize) {
        let program = &mut self.ranks[rank].program;
        let agent = &mut program.agents[id];
        let unit = &mut program.units[agent.unit];
        let task = &mut unit.tasks[t];
        let (name, phase) = (agent.agent, agent.phase);
        for back in task.back.iter().filter(|b| task.completes(phase, b.per_task)) {
            let pair = &mut unit.completed[back.pair];
            pair.steps += i64::from(pair.from == name);
        }
        let last = phase == task.last();
        let context = task.context.get_or_insert_default();
        context.pass(name, phase);
        agent.phase += 1;
        let mut freed = 0;
        if last {
            (agent.phase, agent.at) = (0, agent.at + 1);
            context.left += 1;
            let family = task.task.family.index();
            let here = |a: &&Agent| !matches!(a, Agent::Sender | Agent::Receiver);
            if context.left == self.contracts[family].agents.iter().filter(here).count() {
                freed = context.held();
                task.context = None;
                self.report.tasks += 1;
            }
        }
        let unit = agent.unit;
        self.release(freed);
        self.wake_unit(rank, unit);
    }

    /// Lets the agents of a unit look again at the edges that hold them back.
    pub fn wake_unit(&mut self, rank: usize, unit: usize) {
        let program = &mut self.ranks[rank].program;
        for id in &program.units[unit].agents {
            let agent = &mut program.agents[*id];
            if matches!(agent.blocked, Some(Blocking::Internal(..) | Blocking::Warps)) {
                agent.blocked = None;
                self.chooser.ready(Actor::Agent { rank, agent: *id });
            }
        }
    }
}

/// The point of a task that a phase belongs to.
fn point_of(task: &UnitTask, phase: Phase) -> Point {
    match phase {
        0 => Point::Start,
        p if p == task.last() => Point::End,
        _ => Point::Inner,
    }
}
