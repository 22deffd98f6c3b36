//! The CPU executor: all ranks of a plan in one process, with real numbers and an adversarial order.
//!
//! It evaluates the very expressions that the emitted kernel contains, and it orders nothing that the plan does not
//! order:
//!
//! - every agent of every CTA moves on its own, ahead of the others as far as waits, internal edges and stages let it;
//! - an asynchronous load reads memory at any time between its issue and the edge that announces it, a bulk store
//!   writes at any time between its issue and the completion that its agent waits for (at the latest at the end of the
//!   kernel, to a peer's memory even later), the network delivers, flushes and announces when it likes;
//! - ranks are launches apart as far as the plan lets them. Between launches of a rank a virtual [`Caller`] reads the
//!   outputs and overwrites the inputs.
//!
//! Memory that nobody has written is NaN, so that a read that comes too early shows in the results, as does a late one
//! by the data of another epoch. A run is a function of plan, inputs, schedule and seed.
//!
//! Numerics: elements are rounded to their buffer's type when they are stored; GEMMs and sums are f32, k in
//! ascending order.
//!
//! With [`Options::check`] a run needs no numbers to go wrong: see `stamps.rs`, and `weak.rs` for what weak edges do.
//!
//! What a run cannot show: a wait of the wrong proxy where what follows it needs its data from another agent, and a
//! race that the schedules tried do not hit. That is the verifier's part.

mod caller;
mod context;
mod delivery;
mod error;
mod host;
mod leaf;
mod machine;
mod math;
mod memory;
mod moves;
mod network;
mod options;
mod program;
mod schedule;
mod signals;
mod stamps;
mod weak;

pub use caller::{Callbacks, Caller};
use error::Result;
pub use error::{Blocked, Deadlock, SimError, WaitsFor};
pub use network::{Message, Network};
pub use options::{MAX_ELEMENTS, MAX_REPEAT, MAX_TASKS, Options, RunReport};
pub use schedule::{Schedule, ScheduleError, Victim};

use machine::Machine;
use mk_plan::Plan;

/// Runs a plan. Outputs go to the caller.
///
/// # Errors
/// If the plan is not well formed, cannot be evaluated, deadlocks, is too large, or the caller's data does not fit it.
/// Wrong numbers are no error here: the caller compares them.
pub fn run(plan: &Plan, caller: &mut dyn Caller, options: &Options) -> Result<RunReport> {
    Machine::new(plan, caller, options, None)?.run()
}

/// Runs the ranks of a plan over nodes that a network has in this process; it carries what goes between nodes, and
/// other processes may have other nodes. A launch hash, fifos, credits and the order of delivery are the network's.
///
/// # Errors
/// As [`run`]; [`SimError::Network`] where the network fails; [`SimError::Unsupported`] for a plan without nodes, for
/// [`Options::check`], and for sends that no message says.
pub fn run_over(
    plan: &Plan,
    caller: &mut dyn Caller,
    options: &Options,
    network: &dyn Network,
) -> Result<RunReport> {
    Machine::new(plan, caller, options, Some(network))?.run()
}
