//! The cost model: how long a plan takes on a machine that was measured.
//!
//! ```text
//! Plan ──> unroll::Work (jobs on lanes, waits, posts, bytes) ──> engine::run ──> Prediction (times, bound, chain, spans)
//! DeviceModel ─────────^───────────────────────────────────────────^
//! ```
//!
//! A discrete-event run of the plan, task by task, on all ranks. A *lane* is a CTA; it runs its tasks in order. A task
//! begins when its lane is free and its waits are satisfied (the post, and the time a flag takes), and moves bytes over
//! *resources*, memory and links, which those that are at it at one time share equally. What one SM can do by itself is a
//! bound of its own; where both are near, they add up (`soft_max` in `engine.rs`).
//!
//! A product that is a whole kernel has a closed form besides (`alone.rs`), which says how long it takes; the run says what of.
//!
//! Architecture invariant: the model knows leaves and resources, never a pipeline; the plan is read through
//! [`Points`](mk_plan::Points), as the verifier and the executor do.

mod alone;
mod engine;
mod fit;
mod gpu;
mod model;
mod prediction;
mod raw;
mod unroll;

pub use alone::{Products, alone_s};
pub use fit::{Sample, error, fit};
pub use gpu::{Chip, Gpu};
pub use model::{DeviceModel, ModelError, Mover, Movers, TileRate};
pub use prediction::{Bound, Chain, Prediction, RoleTime, Span};
pub use raw::{CopyMethod, RawCopy, RawFigures, RawMma};

use mk_plan::{Plan, PointError};
use thiserror::Error;

/// Why a plan has no prediction.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostError {
    /// An expression of the plan has no value.
    #[error(transparent)]
    Point(#[from] PointError),
    /// A leaf that the model has no figures for.
    #[error("the cost model has no figures for `{leaf}` ({family})")]
    Unsupported {
        /// The leaf.
        leaf: &'static str,
        /// The family.
        family: String,
    },
    /// More tasks than a prediction takes on.
    #[error("the plan has more than {limit} tasks: use smaller sizes")]
    TooLarge {
        /// The most.
        limit: usize,
    },
    /// Lanes that wait for posts which never come: the plan does not end.
    #[error("the plan does not end: {waiting} tasks wait for posts that never come")]
    Stuck {
        /// Tasks at the head of their lanes.
        waiting: usize,
    },
}

/// How long one launch of a plan takes, all ranks released at one moment.
///
/// # Errors
/// [`CostError`]. A plan that was verified fails for its leaves or its size only.
pub fn predict(plan: &Plan, model: &DeviceModel) -> Result<Prediction, CostError> {
    let work = unroll::unroll(plan, model)?;
    let done = engine::run(&work, model)?;
    let prediction = prediction::summarise(plan, &work, done);
    Ok(match alone_s(plan, model)? {
        Some(total_s) => prediction.scaled(total_s),
        None => prediction,
    })
}
