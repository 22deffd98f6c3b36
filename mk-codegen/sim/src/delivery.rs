//! What is under way: loads, bulk stores, and the network's steps. Each happens when the adversary says so, and at the
//! latest when an agent has waited for it.

use super::{
    context::Phase,
    host::{NicOp, NicStep},
};
use mk_plan::{Agent, Mode, Region};
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(super) struct Deliveries {
    pub due: HashMap<u64, Delivery>,
    pub next: u64,
    /// Commands that the network has taken, by number.
    pub nic: BTreeMap<u64, NicOp>,
}

pub(super) enum Delivery {
    /// An asynchronous load of one access, by the agent of a task.
    Load { rank: usize, unit: usize, task: usize, agent: Agent, line: usize, phase: Phase },
    /// A store of an epoch.
    Store { region: Region, values: Vec<f32>, mode: Mode, epoch: i64 },
    /// A step of a command that the network has taken.
    Network { op: u64, step: NicStep },
}

impl Deliveries {
    /// Whether a delivery is a store to this rank's own memory that is still under way.
    pub fn stays_on(&self, id: u64, rank: usize) -> bool {
        matches!(self.due.get(&id), Some(Delivery::Store { region, .. }) if region.rank == rank)
    }

    /// A number for a command that the network takes.
    pub fn next_op(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn is_due(&self, id: u64) -> bool {
        self.due.contains_key(&id)
    }
}

/// Value of the inner loop's variable in a phase; before and after the loop it is 0.
pub(super) fn inner_of(phase: Phase) -> i64 {
    (phase - 1).max(0)
}
