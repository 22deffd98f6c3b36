//! Mutants of every plan, judged by three that share no code: the verifier, an explorer of all runs, and the CPU executor.
//!
//! Where one of them is wrong, the others say so. CI takes a fixed part of the mutants; `MK_MUTANTS=all`, or `cargo xtask
//! mutants`, takes all. The figures are in `docs/verification.md`.

mod cases;
mod explorer;
mod mutate;
mod states;
mod verifier;
