//! What grids over nodes have in common: worlds, orderings, and runs of a plan under every schedule.

use mk_codegen::{plan::Plan, settings::NicOrdering, sim::Schedule};
use mk_harness::{Case, CpuOptions, Judgement, Routing, run_on_cpu};
use std::{env, fmt::Debug};

/// Nodes, and ranks of each.
pub fn worlds() -> impl Iterator<Item = (u32, u32, NicOrdering)> {
    let worlds = [2, 3, 4, 8].into_iter().flat_map(|nodes| (1..=4).map(move |n| (nodes, n)));
    let orderings = [NicOrdering::InOrder, NicOrdering::Unordered];
    worlds.flat_map(move |(nodes, local)| orderings.map(|net| (nodes, local, net)))
}

/// Runs a plan under every schedule, of which a drawn case takes one, and judges each rank of each launch.
pub fn judge(
    what: &impl Debug,
    case: Case<'_>,
    plan: &Plan,
    routing: Routing,
    seed: u64,
    right: impl Fn(&Judgement) -> bool,
) {
    let mut schedules = Schedule::all(case.ranks);
    if !env::var("MK_SWEEP").is_ok_and(|part| part == "all") {
        let drawn = schedules.swap_remove(seed as usize % schedules.len());
        schedules = vec![drawn];
    }
    for schedule in schedules {
        let options = CpuOptions { schedule, seed, launches: 2, routing, ..CpuOptions::default() };
        let run = run_on_cpu(case, plan, &options)
            .unwrap_or_else(|e| panic!("{what:?}, {schedule}: {e}"));
        for (launch, judged) in run.judged.iter().enumerate() {
            for (rank, judged) in judged.iter().enumerate() {
                let at = format!("{schedule}, launch {launch}, rank {rank}");
                assert!(right(judged), "{what:?}, {at}: {judged}");
            }
        }
    }
}
