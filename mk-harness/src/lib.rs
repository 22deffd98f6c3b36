//! Runs a compiled pipeline with random inputs and compares every rank with a reference: what `mk run` and the examples
//! are made of.
//!
//! ```text
//! seed ──> inputs ──┬─> plan on the CPU executor, or kernel on GPUs ──> outputs by rank ─┐
//!                   └─> Program, evaluated in f64 on global tensors ──> elements, bounds ──┴─> Judgement
//! ```
//!
//! Architecture invariant: the references read the checked [`Program`] and nothing of the plan, so that a mistake of a
//! pass cannot be in both. Inputs are a function of seed, launch, tensor and rank alone, the same on the host and on a
//! GPU.

mod attention;
mod cpu;
mod dense;
mod documents;
mod dropped;
mod error;
pub mod gpu;
mod gradients;
mod grid;
mod held;
mod inputs;
mod judge;
mod local;
mod math;
mod near;
mod nodes;
mod norm;
mod quant;
mod rope;
mod routing;
mod tolerance;
mod value;
mod work;

pub use cpu::{CpuOptions, CpuRun, Repeated, repeat_on_cpu, run_made_on_cpu, run_on_cpu};
pub use dense::{Dense, Expected};
pub use dropped::{Dropped, dropped};
pub use error::HarnessError;
pub use held::Held;
pub use inputs::Inputs;
pub use judge::{Beyond, Judgement, Norms, judge};
pub use mk_function::Layout;
pub use nodes::{NetOptions, NetRun, Wire, run_over_network};
pub use routing::{FORMS as ROUTINGS, Routing};
pub use tolerance::Tolerance;
pub use value::{Matrix, Value};
pub use work::{MAX_ELEMENTS, MAX_MACS, check_work, macs};

use error::Result;
use mk_syntax::{Bound, Program};

/// A pipeline with its sizes, on a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The pipeline.
    pub program: &'a Program,
    /// Numbers for its symbols.
    pub bound: &'a Bound,
    /// Ranks along its one mesh axis. A plan may have further axes: each group along the pipeline's has inputs, and
    /// results, of its own.
    pub ranks: usize,
}
