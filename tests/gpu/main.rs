//! Whole pipelines on GPUs. Without one, every test says `SKIPPED` and passes.

mod correct;
mod faults;
mod function;
mod scenario;
mod shared;
mod wide;

#[path = "../../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../wide/mod.rs"]
mod pipelines;

use mk::runtime::World;

/// Worlds of 1 to 4 GPUs, as many as there are; says so when there is none. `MK_GPU_WORLDS=2,4` takes some of them.
pub fn worlds(test: &str) -> Vec<World> {
    let (wanted, mut out) = (wanted(), Vec::new());
    for n in 1..=4 {
        if !wanted.contains(&n) {
            println!("SKIPPED {test} on {n} GPUs: MK_GPU_WORLDS is {wanted:?}");
            continue;
        }
        match World::local(n) {
            Ok(world) => out.push(world),
            Err(e) if n == 1 && e.is_no_device() => {
                println!("SKIPPED {test}: no CUDA device");
                break;
            }
            Err(e) => {
                assert!(n > 1, "{test}: {e}");
                println!("SKIPPED {test} on {n} GPUs: {e}");
                break;
            }
        }
    }
    out
}

/// A world of `ranks` ranks on GPU 0; says so when there is none.
pub fn shared_world(test: &str, ranks: usize) -> Option<World> {
    match World::shared(0, ranks) {
        Ok(world) => Some(world),
        Err(e) if e.is_no_device() => {
            println!("SKIPPED {test}: no CUDA device");
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

/// Worlds of several GPUs.
pub fn worlds_of_several(test: &str) -> Vec<World> {
    worlds(test).into_iter().filter(|w| w.size() > 1).collect()
}

fn wanted() -> Vec<usize> {
    let Ok(named) = std::env::var("MK_GPU_WORLDS") else { return (1..=4).collect() };
    let number = |x: &str| x.trim().parse().ok().filter(|n| (1..=4).contains(n));
    let numbers: Option<Vec<usize>> = named.split(',').map(number).collect();
    numbers.unwrap_or_else(|| panic!("MK_GPU_WORLDS={named}: numbers from 1 to 4, as in 2,4"))
}
