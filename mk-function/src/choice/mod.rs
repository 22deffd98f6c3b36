//! Choosing how a pipeline is lowered, by what was measured before and by the cost model. Nothing is measured here:
//! `mk-tune` does.
//!
//! ```text
//! Program, sizes ──> space::candidates ──> Configs ──> choose::predict ──> what the cost model says
//! choose::decide_in: given ones > a measured winner (cache.rs) > the model's choice > defaults
//! fusing::settle: one kernel, or that of each part (unfused.rs), with the config that `decide_in` says for each
//! ```
//!
//! Settings are those of the table in `mk_codegen::settings`; everything here goes through that table.

mod cache;
mod choose;
mod fusing;
mod space;
mod unfused;

pub use cache::{Cache, Damaged, Key, Winner};
pub use choose::{
    Decision, Origin, Unpredicted, choose, choose_in, decide_in, gpu_of, model_of, predict,
    predict_each, worth_measuring,
};
pub use fusing::{
    CLEARLY, Choice, Conditions, Fuse, Fusion, Reason, Times, Verdict, settle, verdict,
};
pub use space::{candidates, choices, defaults, facts, facts_of, neighbours, read, runners_up};
pub use unfused::{Indivisible, Part, parts};
