//! Measuring: candidates of a pipeline, each as the kernel that a function would launch, and the machine itself.
//!
//! ```text
//! space::candidates ──> Configs ──> measure::measure ──> Trials, best first
//! probe::probe_list ──> plans that are measured ──> figures of the cost model;  raw::measure_raw: figures without plans
//! ```
//!
//! What candidates are launched on, and whether their results are right, is the business of a [`Rig`]: `mk-harness` has
//! one.

mod measure;
mod probe;
mod raw;
mod timeline;

pub use measure::{Judged, Limits, Refused, Rig, Timed, Trial, measure};
pub use probe::probe_list;
pub use raw::measure_raw;
pub use timeline::timeline;
