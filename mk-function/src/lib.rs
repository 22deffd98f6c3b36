//! Pipelines as functions of tensors: the layer between a checked pipeline and a launch.
//!
//! ```text
//! layout, error, parallel, progress <── choice <── kept, build <── explain <── function
//! ```
//!
//! `simulate` runs what was built on the CPU executor. `choice` takes settings from the cache or from the cost model,
//! `build` makes kernels of them (with proofs that are `kept`), `explain` says why they take as long as they do, and
//! `function` binds and launches them. Nothing here measures, and nothing makes inputs or judges results: that is
//! `mk-tune`'s and `mk-harness`'s, which use this crate.

mod arguments;
mod balance;
pub mod build;
pub mod choice;
pub mod cut;
mod error;
pub mod explain;
pub mod function;
pub mod kept;
mod layout;
mod parallel;
mod progress;
mod simulate;

pub use arguments::AsTensor;
pub use balance::{Balance, balance};
use error::Result;
pub use error::{ArgumentError, FunctionError};
pub use function::{Argument, Call, Function, FunctionOptions, Kernel};
pub use layout::Layout;
pub use parallel::in_parallel;
pub use simulate::simulate;
