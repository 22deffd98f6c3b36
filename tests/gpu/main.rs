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

/// Worlds of 1 to 4 GPUs, as many as there are; says so when there is none. `MK_GPU_WORLDS=2,4` takes some of them.
pub fn worlds(test: &str) -> Vec<World> {
    let mut out = Vec::new();
    let some = std::env::var("MK_GPU_WORLDS").ok();
    let left_out = |n: &usize| {
        let some = some.as_ref()?;
        let named = some.split(',').any(|x| x.trim() == n.to_string());
        (!named).then(|| println!("SKIPPED {test} on {n} GPUs: MK_GPU_WORLDS={some}"))
    };
    for n in (1..=4).filter(|n| left_out(n).is_none()) {
        match World::local(n) {
            Ok(world) => out.push(world),
            Err(e) if e.is_no_device() => break,
            Err(e) => {
                assert!(n > 1 || some.is_some(), "{test}: {e}");
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
