//! Choosing how a pipeline is lowered: which settings there are, and how long each takes.
//!
//! ```text
//! Program, sizes ──> space::candidates ──> Configs ──┬─> measure::measure ──> Trials, best first
//!                                                    └─> choose::predict ───> what the cost model says
//! ```
//!
//! A setting that can be tried is one line of the table in `space.rs`; everything else here goes through that table.

mod choose;
mod measure;
mod probe;
mod space;

pub use choose::{Unpredicted, predict, predict_all};
pub use measure::{Limits, Refused, Timed, Trial, measure};
pub use probe::probe_list;
pub use space::{Facts, KNOBS, Knob, candidates, choices, read, write};
