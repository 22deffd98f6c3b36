//! Choosing how a pipeline is lowered, by what was measured before and by the cost model. Nothing is measured here: `mk-tune` does.
//!
//! ```text
//! Program, sizes ──> space::candidates ──> Configs ──> choose::predict ──> what the cost model says
//! choose::decide: given ones > a measured winner (cache.rs) > the model's choice > defaults
//! fusing::settle: one kernel, or that of each part (unfused.rs), with the config that `decide` says for each
//! ```
//!
//! A setting that can be tried is one line of the table in `space.rs`; everything else here goes through that table.

mod cache;
mod choose;
mod facts;
mod fusing;
mod space;
mod unfused;

pub use cache::{Cache, Damaged, Key, Winner};
pub use choose::{
    Decision, Origin, Unpredicted, choose, decide, model_of, predict, predict_all, worth_measuring,
};
pub use facts::Facts;
pub use fusing::{CLEARLY, Choice, Fuse, Made, Terms, Times, Verdict, Why, settle, verdict};
pub(crate) use space::settle as settled;
pub use space::{KNOBS, Knob, candidates, choices, neighbours, read, runners_up, write};
pub use unfused::{Part, Whole, parts};
