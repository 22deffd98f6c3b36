//! Whole pipelines on GPUs: worlds of 1 to 4 ranks, which share a GPU where there are fewer GPUs. Without a GPU every test
//! is skipped.

mod arenas;
mod attention;
mod correct;
mod experts;
mod faults;
mod function;
mod nodes;
mod rig;
mod ring;
mod routes;
mod scenario;
mod shared;
mod wide;

#[path = "../../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../wide/mod.rs"]
mod pipelines;

use mk::runtime::World;
use mk_skip::{Need, skip};

/// Worlds of 1 to 4 ranks, each on a GPU of its own, or all on GPU 0 where there are fewer GPUs; says so when there is
/// none. `MK_GPU_WORLDS=2,4` takes some of them.
pub fn worlds(test: &str) -> Vec<World> {
    let wanted = wanted();
    let sizes = (1..=4).filter(|n| wanted.contains(n));
    sizes.map_while(|n| world_of(test, n)).collect()
}

/// A world of `ranks` ranks, each on a GPU of its own, or all on GPU 0; says so when there is none.
pub fn world_of(test: &str, ranks: usize) -> Option<World> {
    World::local(ranks).ok().or_else(|| shared_world(test, ranks))
}

/// A world of `ranks` ranks on GPU 0; says so when there is none.
pub fn shared_world(test: &str, ranks: usize) -> Option<World> {
    match World::shared(0, ranks) {
        Ok(world) => Some(world),
        Err(e) if e.is_no_device() => {
            skip(Need::Gpus(1), e);
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

/// [`worlds`] of several ranks.
pub fn worlds_of_several(test: &str) -> Vec<World> {
    worlds(test).into_iter().filter(|w| w.size() > 1).collect()
}

/// How often a case is launched that wants `launches`: `MK_GPU_LAUNCHES=20` is at most 20 times, where time is short.
pub fn at_most(launches: u64) -> u64 {
    let Ok(most) = std::env::var("MK_GPU_LAUNCHES") else { return launches };
    let number = most.trim().parse().ok().filter(|n| *n > 1);
    launches.min(number.unwrap_or_else(|| panic!("MK_GPU_LAUNCHES={most}: a number from 2 on")))
}

fn wanted() -> Vec<usize> {
    let Ok(named) = std::env::var("MK_GPU_WORLDS") else { return (1..=4).collect() };
    let number = |x: &str| x.trim().parse().ok().filter(|n| (1..=4).contains(n));
    let numbers: Option<Vec<usize>> = named.split(',').map(number).collect();
    numbers.unwrap_or_else(|| panic!("MK_GPU_WORLDS={named}: numbers from 1 to 4, as in 2,4"))
}
