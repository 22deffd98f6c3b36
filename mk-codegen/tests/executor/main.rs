//! The CPU executor on the fixtures: right numbers under every schedule, wrong ones where an edge is missing.

mod adversary;
mod bench;
mod compare;
mod dense;
#[path = "../../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
mod errors;
mod fixtures;
mod harness;
mod leaves;
mod lowered;
mod mutations;
