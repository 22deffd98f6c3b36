//! How a plan is run, within which bounds, and what a run did.

use super::schedule::Schedule;

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
    /// Marks every element with the epoch and version that wrote it and stops at the first access that finds another
    /// one ([`super::SimError::Violated`]); edges that are too weak for what follows them order nothing.
    pub check: bool,
    /// Also runs plans with accesses, waits and posts at points that their leaves do not allow
    /// ([`mk_plan::Plan::check_points`]), which have no kernel: for tests of the verifier.
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
    /// Bytes that tasks of each family have read in memory of other ranks, by id, over all ranks and launches; entries
    /// of tables are not among them.
    pub pulled_bytes: Vec<u64>,
    /// Bytes that tasks of each family have written to memory of other ranks, likewise.
    pub pushed_bytes: Vec<u64>,
}
