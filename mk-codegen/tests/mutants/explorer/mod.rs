//! An explorer of plans that shares nothing with the verifier or the executor: it looks at *every* run of an unrolled plan
//! and says whether one of them goes wrong. It judges the mutants of `tests/mutants`; of the crate it uses the plan and its
//! evaluation at points (`ir`), nothing else.
//!
//! # The machine that is explored
//!
//! A run is a sequence of *events*. An event may happen when all events that it comes after have happened, and, if it waits,
//! when the posts to its word that have happened add up to its threshold. Nothing else holds it back, and nothing ever
//! disables it. Which events there are (`graph.rs`), from `docs/memory-model.md`:
//!
//! - each task runs on a CTA of its own: a proof may not use the split of SMs. Each agent goes through its steps (`start`, the
//!   iterations, `end`); in a step come its waits, in any order, then what other agents of the task hand over, then its posts, in any
//!   order. A read needs only the waits of its step and all of the steps before; a write and a post need what is handed over in
//!   their step, too (a post at `start` only if its agent touches something there).
//! - an internal edge hands over at a step at which something passes: its first agent touches memory there, or passes on
//!   what it got (or has no operands) and the second one touches memory.
//! - a host acts when its command, or the other host's immediate, has come, and a kernel's end does not wait for it. A copy engine is
//!   held back by its own waits alone.
//! - a kernel ends when all its agents have; then the caller reads the outputs, writes the next inputs, and the next begins.
//!
//! An access happens at any time after the event that issues it. What memory effects are *visible* to whom is weak: an event
//! knows of an access if
//! - it comes after an event that knows of it (program order, hand-over, kernel boundary), or
//! - it waits, every set of posts that can have satisfied it has one that knows of the access, and that post and the wait are
//!   morally strong: of one GPU, or both of scope sys; or
//! - it is a post or kernel end behind the access's completion, where the post's completion kind says so (`graph::completes`).
//!
//! and there are four ways to know, by who is to touch the memory next (`free.rs`): what a release hands on; ordinary
//! accesses (not through a wait `for host`); bulk accesses (a wait `for async` fences what its agent knew before and what it waited for);
//! devices outside the GPU (scope sys at both ends).
//!
//! A run *goes wrong* (`check.rs`) if it stops before its end (`stuck.rs`: here CTAs, their order of tasks and the stages count; where a role has
//! tasks for whoever is free, its first CTA has all, as in the verifier, and in further runs any CTA some), if it
//! leaves memory or signal arrays, if a read finds elements that nobody wrote in its epoch and version, if two writes of one stamp
//! meet, or if an access happens without knowing of one that should have come before it: a stale read, an overwritten
//! value that is still to be read, a late write that hides a newer value.
//!
//! # Why looking at every run is feasible
//!
//! Words only count up and no event disables another, so that the events which can happen while nobody knows of an access
//! X are the same in every order: a least fixpoint. Y can happen in ignorance of X in *some* run exactly if it is in that
//! fixpoint. One pass for each X therefore decides all interleavings, orders of posts and subsets of posts that satisfy a
//! lowered threshold. `brute.rs` walks all states of small plans one by one, and must come to the same verdicts.
//!
//! Runs are of 3 epochs from zeroed words, or 4 for a plan that looks at the epoch (its slots alternate).

mod brute;
mod check;
mod cover;
mod free;
mod graph;
mod stuck;
mod tables;
mod unroll;

pub use brute::disagreement;
pub use check::{Late, Verdict, Wrong};
pub use tables::tables;

use mk_codegen::plan::{Plan, Schedule};

/// Ways of dealing out tasks that are for whoever is free.
const DEALINGS: usize = 5;

/// Whether some run of a plan goes wrong, for each of a few fillings of its run-time tables.
pub fn explore(plan: &Plan) -> Verdict {
    let mut pairs = 0;
    for (filling, set) in tables(plan).iter().enumerate() {
        match explore_with(plan, set) {
            Verdict::Fine { pairs: n } => pairs += n,
            Verdict::Wrong(wrong) => return Verdict::Wrong(Wrong { filling, ..wrong }),
        }
    }
    Verdict::Fine { pairs }
}

fn explore_with(plan: &Plan, set: &[mk_codegen::plan::TableSet]) -> Verdict {
    let unroll = |dealing| unroll::Unrolled::new(plan, set, dealing);
    let unrolled = match unroll(0) {
        Ok(u) => u,
        Err(e) => return Verdict::Wrong(Wrong::new(e)),
    };
    if let Some(wrong) = stuck::stuck(&unrolled).or_else(|| cover::uncovered(&unrolled)) {
        return Verdict::Wrong(Wrong::new(wrong));
    }
    // If the first CTA comes to the end with all tasks, so do all that share them.
    let queued = plan.families.values().any(|x| x.schedule == Schedule::Dynamic);
    for dealing in 1..if queued { DEALINGS } else { 1 } {
        let wrong = unroll(dealing).map_or_else(Some, |u| stuck::stuck(&u));
        if let Some(wrong) = wrong {
            return Verdict::Wrong(Wrong::new(format!("dealt out otherwise: {wrong}")));
        }
    }
    check::check(&unrolled)
}
