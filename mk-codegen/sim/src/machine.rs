//! The state of a run.

use super::{
    Result, SimError,
    caller::Caller,
    delivery::Deliveries,
    host::Host,
    memory::{Memory, within},
    network::{Joined, Network},
    options::{Options, RunReport},
    program::Program,
    schedule::Chooser,
    signals::Signals,
    stamps::Stamps,
    weak::Weak,
};
use mk_plan::{Contract, Entity, NetPlan, Plan, Points, TableSet, Task};
use std::{collections::BTreeMap, rc::Rc};

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
    /// Rows of tensors that have this rank's own number of them; `None` where no tensor has told it.
    pub own_rows: Option<usize>,
}

impl<'a> Machine<'a> {
    pub fn new(
        plan: &'a Plan,
        caller: &'a mut dyn Caller,
        options: &'a Options,
        network: Option<&'a dyn Network>,
    ) -> Result<Machine<'a>> {
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
        Ok(Machine {
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
                    own_rows: None,
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
                pushed_bytes: vec![0; plan.families.len()],
            },
            acting_held: false,
            stamps: if options.check { Some(Stamps::new(plan, &points)?) } else { None },
            weak: options.check.then(Weak::default),
            joined,
            refused: Vec::new(),
            plan,
            caller,
            options,
        })
    }

    pub fn step(&mut self) -> Result<()> {
        self.report.steps += 1;
        if self.report.steps > self.options.max_steps {
            return Err(SimError::Steps { limit: self.options.max_steps });
        }
        Ok(())
    }

    /// Takes room for numbers that a task or a delivery holds.
    pub fn hold(&mut self, n: u64) -> Result<()> {
        self.held = self.held.saturating_add(n);
        within("elements in flight", self.held)
    }

    pub fn release(&mut self, n: u64) {
        self.held = self.held.saturating_sub(n);
    }

    /// The contract of a task's family.
    pub fn contract(&self, task: &Task) -> &Contract {
        &self.contracts[task.family.index()]
    }
}
