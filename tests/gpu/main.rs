//! Whole pipelines on GPUs. Without one, every test says `SKIPPED` and passes.

mod correct;
mod faults;
mod function;
mod scenario;
mod wide;

#[path = "../../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../wide/mod.rs"]
mod pipelines;

use mk::runtime::World;

/// Worlds of 1 to 4 GPUs, as many as there are; says so when there is none.
pub fn worlds(test: &str) -> Vec<World> {
    let mut out = Vec::new();
    for n in 1..=4 {
        match World::local(n) {
            Ok(world) => out.push(world),
            Err(e) if e.is_no_device() => break,
            Err(e) => {
                assert!(n > 1, "{test}: {e}");
                println!("{test}: {n} GPUs: {e}");
                break;
            }
        }
    }
    if out.is_empty() {
        println!("SKIPPED {test}: no CUDA device");
    }
    out
}
