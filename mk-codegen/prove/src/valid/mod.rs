//! The verifier: proves that a plan computes what it says on every run, or names the edge that is missing.
//!
//! A plan is unrolled over all ranks and over `max(p + 2, 2p)` epochs from a symbolic base, `p` being the period after
//! which its expressions repeat (see `epochs.rs`). The proof then holds for every interleaving, every split of SMs
//! among roles, and any number of launches. What the edges mean on the machine is in `docs/memory-model.md`.
//!
//! # Happens-before
//!
//! 1. *Program order* of one agent within one task: at each step (`start`, each iteration of the inner loop, `end`)
//!    first waits, then accesses, then posts. Accesses of one step are not ordered. An asynchronous access is issued at
//!    its place and complete where a completion or an internal edge says so.
//! 2. *Internal edges* that the leaf's contract declares (see `within.rs`).
//! 3. *Signal edges*: a wait that is over happens after *all* posts to its word of epochs up to `e - lag`.
//! 4. *Kernel boundaries*: everything that GPU agents of kernel (rank, e) do, completed, happens before everything in
//!    kernel (rank, e + 1). Hosts are not covered: a NIC may still read when the kernel that fed it has ended.
//! 5. *The caller* writes every input before each launch on its rank, and reads every output after it.
//!
//! The order of different tasks on one CTA is not used here, only for deadlock.
//!
//! # Rules
//!
//! 1. Overlapping accesses, at least one a write, are ordered by their stamps (epoch, version), caller included.
//! 2. No deadlock, with bounded stages and fifo, and all CTAs are resident at once.
//! 3. Every wait is for a complete and reachable set of posts that one rank makes, the same in every epoch.
//! 4. Where a path orders two accesses, its completions, scopes and proxies suffice for both ends.
//! 5. What is read was written in its own epoch and version, and contributions that are written are read; every output
//!    is written exactly once; with run-time tables this holds for every table.
//! 6. Everything stands where its leaf allows it, and fits: bounds, a leaf's operands each other, rows that TMA takes,
//!    signal indexes, `order`, shared memory, fifo, queue pairs, 32-bit arithmetic; ranks touch the memory of their own
//!    node, and network cards, hosts and GPUs each their own words.
//!
//! With a run-time dimension all of this holds for all its values, another one in each launch: see `runtime/mod.rs`.
//!
//! Rule 3 is checked before 2 and 2 before 1 and 4, which take them for granted; a report holds what was found up to
//! the first of them that fails. Work is bounded by the `MAX_` constants; a larger plan is refused (rule 6), not
//! guessed at.

mod actor;
mod affine;
mod boxes;
mod build;
mod canvas;
mod capacity;
mod cells;
mod coverage;
mod deadlock;
mod epochs;
mod explain;
mod family;
mod hoist;
mod leaf;
mod limits;
mod meetings;
mod net;
mod origins;
mod overlaps;
mod paths;
mod races;
mod ragged;
mod region;
mod report;
mod rotation;
mod runtime;
mod sample;
mod signals;
mod site;
mod spans;
mod stuck;
mod symmetry;
mod timeline;
mod touched;
mod unroll;
mod value;
mod within;
mod world;

pub use actor::{Actor, Site, Touch};
pub use affine::{Along, Relatives, Unlike, is_affine, verify_affine};
pub use build::too_much;
pub use epochs::MAX_PERIOD;
pub use limits::MAX_PAIRS;
pub use mk_plan::MAX_TASKS;
pub use report::{AtValue, Failure, OverValues, Proof, Sampled, Scaled, Violation};
pub use runtime::{MAX_RUNS, MAX_SEQUENCES, MAX_VALUES};
pub use sample::{MAX_WORK, Samples, TableKind, sample_tables};
pub use timeline::timeline;
pub use unroll::{MAX_ELEMENTS, MAX_EVENTS, MAX_WORDS};
pub use value::{Ranks, sampled, verify_value};

use mk_plan::Plan;
use value::{of_value, well_formed};

/// Checks a plan against all six rules: with a run-time dimension for all its values, a different one in each launch.
/// Accesses, waits and posts stand where their leaf allows them ([`Plan::check_points`]).
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify(plan: &Plan) -> Result<Proof, Failure> {
    let proved = verify_anywhere(plan);
    let misplaced = match &proved {
        Err(failure) if failure.violations.iter().any(|v| v.rule() == 0) => return proved,
        _ => plan.check_points().err().unwrap_or_default(),
    };
    let misplaced = misplaced.into_iter();
    let mut misplaced =
        misplaced.map(|e| Violation::Capacity { place: e.place, message: e.message }).peekable();
    match proved {
        proved if misplaced.peek().is_none() => proved,
        Ok(_) => Err(Failure::of(plan, misplaced.collect())),
        Err(mut failure) => {
            failure.violations.extend(misplaced);
            failure.violations.truncate(Failure::MAX);
            Err(failure)
        }
    }
}

/// As [`verify`], of plans that have accesses, waits and posts at points where no template has a place for them, too:
/// the proof of what is ordered does not rest on their being elsewhere. Such a plan has no kernel.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_anywhere(plan: &Plan) -> Result<Proof, Failure> {
    look(plan, Ranks::Folded)
}

/// As [`verify_anywhere`], rank by rank, whether they are alike or not: the same verdict, found without `symmetry.rs`.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_each_rank(plan: &Plan) -> Result<Proof, Failure> {
    look(plan, Ranks::Each)
}

fn look(plan: &Plan, ranks: Ranks) -> Result<Proof, Failure> {
    well_formed(plan)?;
    match plan.runtime_dim() {
        Some((dim, max)) => runtime::verify(plan, dim, i64::from(max), ranks),
        None => of_value(plan, ranks),
    }
}

/// After how many launches a plan repeats: what its proof says, too.
///
/// # Errors
/// A plan that is not well formed, or does not repeat.
pub fn period(plan: &Plan) -> Result<u32, Failure> {
    well_formed(plan)?;
    epochs::period(plan).map_err(|violations| Failure::of(plan, violations))
}
