//! The CPU executor: all ranks of a plan in one process, with real numbers and an adversarial order.
//!
//! It evaluates the very expressions that the emitted kernel contains, and it orders nothing that the plan does not order:
//!
//! - every agent of every CTA moves on its own, ahead of the others as far as waits, internal edges and stages let it;
//! - an asynchronous load reads memory at any time between its issue and the edge that announces it, a bulk store
//!   writes at any time between its issue and the completion that its agent waits for (at the latest at the end of the
//!   kernel, to a peer's memory even later), the network delivers, flushes and announces when it likes;
//! - ranks are launches apart as far as the plan lets them. Between launches of a rank a virtual [`Caller`] reads the outputs and
//!   overwrites the inputs.
//!
//! Memory that nobody has written is NaN, so that a read that comes too early shows in the results, as does a late one by
//! the data of another epoch. A run is a function of plan, inputs, schedule and seed.
//!
//! Numerics: elements are rounded to their buffer's type when they are stored; products and sums are f32, k in ascending order.
//!
//! With [`Options::check`] a run needs no numbers to go wrong: see `stamps.rs`, and `weak.rs` for what weak edges do.
//!
//! What a run cannot show: a wait of the wrong proxy where what follows it needs its data from another agent, and a race that the
//! schedules tried do not hit. That is the verifier's part.

mod agent;
mod caller;
mod compute;
mod context;
mod delivery;
mod error;
mod launch;
mod machine;
mod math;
mod memory;
mod network;
mod nic;
mod post;
mod program;
mod schedule;
mod signals;
mod stamps;
mod wait;
mod weak;

pub use caller::{Callbacks, Caller};
pub use error::{Blocked, Deadlock, SimError, WaitsFor};
pub use network::{Message, Network};
pub use schedule::{Schedule, ScheduleError, Victim};

use mk_plan::{Plan, Task};

/// Most numbers that a run keeps in buffers, and again in tasks and deliveries: 512 MiB of f32 each.
pub const MAX_ELEMENTS: u64 = 1 << 27;
/// Most tasks of one launch over all ranks, of which each rank gets its part; loops around none count, too.
pub const MAX_TASKS: u64 = 1 << 21;
/// Most repetitions of one `each`.
pub const MAX_REPEAT: u64 = 1 << 16;

/// How to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order of steps.
    pub schedule: Schedule,
    /// Seed of what the schedule leaves to chance.
    pub seed: u64,
    /// Launches on every rank.
    pub launches: u32,
    /// Bound on steps, over all ranks and launches.
    pub max_steps: u64,
    /// Marks every element with the epoch and version that wrote it and stops at the first access that finds another one
    /// ([`SimError::Violated`]); edges that are too weak for what follows them order nothing.
    pub check: bool,
    /// Also runs plans with accesses, waits and posts at points that their leaves do not allow ([`Plan::check_points`]), which have no
    /// kernel: for tests of the verifier.
    pub anywhere: bool,
}

impl Default for Options {
    /// Random order with seed 0, 3 launches (slots that alternate are used twice), 100 million steps.
    fn default() -> Options {
        Options {
            schedule: Schedule::Random,
            seed: 0,
            launches: 3,
            max_steps: 100_000_000,
            check: false,
            anywhere: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// Moves and deliveries.
    pub steps: u64,
    /// Tasks completed, over all ranks and launches.
    pub tasks: u64,
    /// Posts of each signal, by id.
    pub messages: Vec<u64>,
    /// Most epochs that one rank was ahead of another.
    pub max_drift: i64,
    /// Bytes that tasks of each family have read in memory of other ranks, by id, over all ranks and launches; entries of tables are not among them.
    pub pulled_bytes: Vec<u64>,
}

/// Runs a plan. Outputs go to the caller.
///
/// # Errors
/// If the plan is not well formed, cannot be evaluated, deadlocks, is too large, or the caller's data does not fit it. Wrong
/// numbers are no error here: the caller compares them.
pub fn run(plan: &Plan, caller: &mut dyn Caller, options: &Options) -> Result<RunReport, SimError> {
    machine::Machine::new(plan, caller, options, None)?.run()
}

/// Runs the ranks of a plan over nodes that a network has in this process; it carries what goes between nodes, and other
/// processes may have other nodes. A launch hash, fifos, credits and the order of delivery are the network's.
///
/// # Errors
/// As [`run`]; [`SimError::Network`] where the network fails; [`SimError::Unsupported`] for a plan without nodes, for
/// [`Options::check`], and for sends that no message says.
pub fn run_over(
    plan: &Plan,
    caller: &mut dyn Caller,
    options: &Options,
    network: &dyn Network,
) -> Result<RunReport, SimError> {
    machine::Machine::new(plan, caller, options, Some(network))?.run()
}

/// Family and task, for messages.
fn place_of(plan: &Plan, task: &Task) -> String {
    let name = &plan.families[task.family].name;
    format!(
        "rank {} epoch {}: {} {name:?} {:?}",
        task.rank(),
        task.epoch(),
        task.family,
        task.domain()
    )
}
