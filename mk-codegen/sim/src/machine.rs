//! The state of a run, and its loop: choose, move, until nothing can.

use super::{
    Caller, Options, RunReport, SimError,
    delivery::Deliveries,
    error::{Blocked, Deadlock, WaitsFor},
    memory::{Memory, within},
    network::{Joined, Network},
    nic::Host,
    program::{Blocking, Program, State},
    schedule::{Actor, Choice, Chooser, Schedule},
    signals::Signals,
    stamps::Stamps,
    wait::Pending,
    weak::Weak,
};
use mk_plan::{Agent, Contract, Entity, NetPlan, Plan, Points, TableSet, Task};
use std::{collections::BTreeMap, rc::Rc, time::Instant};

/// Steps between two looks at a network outside the executor.
const LOOK: u64 = 64;

pub(super) struct Machine<'a> {
    pub plan: &'a Plan,
    /// Of each family.
    pub contracts: Vec<Contract>,
    pub caller: &'a mut dyn Caller,
    pub options: &'a Options,
    pub memory: Memory,
    pub signals: Signals,
    pub ranks: Vec<Rank>,
    pub chooser: Chooser,
    pub deliveries: Deliveries,
    /// Tables of the epochs that some rank is in.
    pub tables: BTreeMap<i64, Rc<TableSet>>,
    /// Numbers that tasks and deliveries hold.
    pub held: u64,
    pub report: RunReport,
    /// Whether who moves now is to be held back, and so is what it issues.
    pub acting_held: bool,
    pub stamps: Option<Stamps>,
    pub weak: Option<Weak>,
    /// What carries messages, where that is not the executor.
    pub joined: Option<Joined<'a>>,
    /// Ranks whose fifo had no room when their sending thread had a command.
    pub refused: Vec<usize>,
}

/// One rank: the launch that it is in, and its host.
pub(super) struct Rank {
    pub epoch: i64,
    pub tables: Rc<TableSet>,
    pub program: Program,
    /// Units that have not ended.
    pub running: usize,
    /// Whether the last launch has ended.
    pub finished: bool,
    pub host: Host,
    /// Stores to other GPUs that were released no further than this one.
    pub unseen: Vec<u64>,
    /// The last launch whose outputs the caller has read.
    pub outputs_read: i64,
}

impl<'a> Machine<'a> {
    pub fn new(
        plan: &'a Plan,
        caller: &'a mut dyn Caller,
        options: &'a Options,
        network: Option<&'a dyn Network>,
    ) -> Result<Machine<'a>, SimError> {
        plan.check_structure().map_err(SimError::Structure)?;
        if !options.anywhere {
            plan.check_points().map_err(SimError::Structure)?;
        }
        let world = plan.mesh.size() as usize;
        let mut entries = 0u64;
        for table in plan.tables.values() {
            let len: u64 = table.shape.iter().map(|n| u64::from(*n)).product();
            entries = entries.saturating_add(len.saturating_mul(world as u64));
            within("entries of all tables", entries)?;
        }
        let none = Rc::new(TableSet::default());
        let points = Points::new(plan, &none);
        let rows = points.rows_for_tma()?;
        if !rows.is_empty() {
            return Err(SimError::Structure(rows));
        }
        let joined = match network {
            None => None,
            Some(network) => Some(Joined {
                network,
                plan: NetPlan::new(plan, &points)?.ok_or_else(|| SimError::Unsupported {
                    place: plan.name.clone(),
                    message: "a plan of one node sends nothing over a network".into(),
                })?,
            }),
        };
        let here = network.map_or(0..world, |network| network.ranks());
        let machine = Machine {
            memory: Memory::new(plan, &points)?,
            signals: Signals::new(plan, &points)?,
            contracts: plan.families.values().map(|x| x.leaf.contract()).collect(),
            ranks: (0..world)
                .map(|rank| Rank {
                    // One that is elsewhere holds nobody back.
                    epoch: if here.contains(&rank) { 0 } else { i64::MAX },
                    tables: none.clone(),
                    program: Program::default(),
                    running: 0,
                    finished: options.launches == 0 || !here.contains(&rank),
                    host: Host::default(),
                    unseen: Vec::new(),
                    outputs_read: 0,
                })
                .collect(),
            chooser: Chooser::new(options.schedule, options.seed, world)?,
            deliveries: Deliveries::default(),
            tables: BTreeMap::new(),
            held: 0,
            report: RunReport {
                steps: 0,
                tasks: 0,
                messages: vec![0; plan.signals.len()],
                max_drift: 0,
                pulled_bytes: vec![0; plan.families.len()],
            },
            acting_held: false,
            stamps: if options.check { Some(Stamps::new(plan, &points)?) } else { None },
            weak: options.check.then(Weak::default),
            joined,
            refused: Vec::new(),
            plan,
            caller,
            options,
        };
        machine.supported()?;
        machine.check_network()?;
        Ok(machine)
    }

    pub fn run(mut self) -> Result<RunReport, SimError> {
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

    /// Waits until the network lets somebody go on. False when nobody waits for it.
    fn await_network(&mut self) -> Result<bool, SimError> {
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

    pub fn step(&mut self) -> Result<(), SimError> {
        self.report.steps += 1;
        if self.report.steps > self.options.max_steps {
            return Err(SimError::Steps { limit: self.options.max_steps });
        }
        Ok(())
    }

    /// Takes room for numbers that a task or a delivery holds.
    pub fn hold(&mut self, n: u64) -> Result<(), SimError> {
        self.held = self.held.saturating_add(n);
        within("elements in flight", self.held)
    }

    pub fn release(&mut self, n: u64) {
        self.held = self.held.saturating_sub(n);
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

    /// The contract of a task's family.
    pub fn contract(&self, task: &Task) -> &Contract {
        &self.contracts[task.family.index()]
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
