//! The cost model: how long a plan takes on a machine that was measured.
//!
//! ```text
//! Plan ──> work::Work (jobs on lanes, waits, posts, bytes) ──> engine::run ──> Prediction (times, bound, chain, spans)
//! DeviceModel ─────────^───────────────────────────────────────────^
//! ```
//!
//! A discrete-event run of the plan, task by task, on all ranks. A *lane* is a CTA; it runs its tasks in order. A task
//! begins when its lane is free and its waits are satisfied (the post, and the time a flag takes), and moves bytes over
//! *resources*, memory and links, which those that are at it at one time share equally. What one SM can do by itself is
//! a bound of its own; where both are near, they add up (`soft_max` in `engine.rs`).
//!
//! A GEMM that is a whole kernel has a closed form besides (`alone.rs`), which says how long it takes; the run says
//! what of.
//!
//! Architecture invariant: the model knows leaves and resources, never a pipeline; the plan is read through
//! [`Points`](mk_plan::Points), as the verifier and the executor do.

/// Figures with their names.
macro_rules! named {
    ($of:expr; $($name:ident)*) => { [$((stringify!($name), $of.$name)),*] };
}

mod alone;
mod engine;
mod error;
mod fit;
mod gpu;
mod leaf;
mod model;
mod prediction;
mod products;
mod raw;
mod unroll;
mod unroller;
mod work;

pub use alone::alone_s;
use error::Result;
pub use error::{CostError, ModelError};
pub use fit::{Sample, error, fit};
pub use gpu::Gpu;
pub use model::{Chip, DeviceModel, Mover, Movers, TileRate};
pub use prediction::{Bound, Chain, Prediction, RoleTime, Span};
pub use products::Products;
pub use raw::{CopyMethod, RawCopy, RawFigures, RawMma};

use mk_plan::Plan;

/// How long one launch of a plan takes, all ranks released at one moment.
///
/// # Errors
/// [`CostError`]. A plan that was verified fails for its leaves or its size only.
pub fn predict(plan: &Plan, model: &DeviceModel) -> Result<Prediction> {
    let work = unroll::unroll(plan, model)?;
    let done = engine::run(&work, model)?;
    let prediction = prediction::summarise(plan, &work, done);
    let prediction = match alone_s(plan, model)? {
        Some(total_s) => prediction.scaled(total_s),
        None => prediction,
    };
    let total_s = prediction.total_s + model.throttled_s(prediction.of(Bound::Compute));
    Ok(prediction.scaled(total_s))
}
