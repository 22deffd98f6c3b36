//! From a checked pipeline to a verified tile plan, and from the plan to CUDA.
//!
//! This crate is names, and the one question to all of them ([`check`]); its parts are crates, so that Cargo keeps the
//! directions between them. The parts read the tile plan (`mk-plan`), and none of them another, except that passes ask
//! for proofs:
//!
//! ```text
//! mk-syntax ──> mk-lower ──> mk-plan <── mk-prove, mk-sim, mk-cost, mk-emit
//!                  └──────────────────────> mk-prove
//! ```

pub mod check;

pub use mk_cost as cost;
pub use mk_emit::{draw, emit, trace};
pub use mk_lower::{graph, passes, settings};
pub use mk_plan::{self as plan, target};
pub use mk_prove::{equivalence, valid};
pub use mk_sim as sim;
