//! Choosing how a pipeline is lowered: which settings there are, and how long each takes.
//!
//! ```text
//! Program, sizes ──> space::candidates ──> Configs ──┬─> measure::measure ──> Trials, best first
//!                                                    └─> choose::predict ───> what the cost model says
//! choose::decide: given ones > a measured winner (cache.rs) > the model's choice > defaults
//! fusing::settle: one kernel, or that of each part (unfused.rs), with the config that `decide` says for each
//! explain::explain: all of it in words, for a pipeline or for what was made of one
//! ```
//!
//! A setting that can be tried is one line of the table in `space.rs`; everything else here goes through that table.

mod cache;
mod choose;
mod explain;
mod facts;
mod fusing;
mod measure;
mod probe;
mod raw;
mod space;
mod timeline;
mod unfused;

pub use cache::{Cache, Damaged, Key, Winner};
pub(crate) use choose::in_parallel;
pub use choose::{
    Decision, Origin, Unpredicted, choose, decide, model_of, predict, predict_all, worth_measuring,
};
pub use explain::{Apart, CHAIN, Explanation, Sources, Subject, explain, explain_made};
pub use facts::Facts;
pub use fusing::{CLEARLY, Choice, Fuse, Made, Terms, Times, Verdict, Why, settle, verdict};
pub use measure::{Limits, Refused, Timed, Trial, measure};
pub use probe::probe_list;
pub use raw::measure_raw;
pub use space::{KNOBS, Knob, candidates, choices, neighbours, read, runners_up, write};
pub use timeline::timeline;
pub use unfused::{Part, Whole, parts};
