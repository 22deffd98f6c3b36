//! Proofs of tile plans: [`valid`] shows that every launch is free of races, deadlock and stale signals,
//! [`equivalence`] that the plan computes its pipeline. Neither trusts the passes that made the plan.

pub mod equivalence;
mod hash;
pub mod valid;
