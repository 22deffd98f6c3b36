//! An edge that is missing shows: as a wrong number, a NaN or a deadlock, under some schedule and seed.

use crate::{
    fixtures::{Routing, case, outcome, route, schedules},
    harness::{plan, plan_with, plan_without},
};
use mk_codegen::{
    plan::Plan,
    sim::{Options, Schedule},
};

/// The first failure, of `seeds` seeds under each schedule.
fn failure(name: &str, plan: &Plan, seeds: u64) -> Option<String> {
    let case = case(name);
    for schedule in schedules(plan) {
        for seed in 0..seeds {
            let routing = [Routing::Mixed, Routing::NothingToRank0][seed as usize % 2];
            let tables = move |e, r, n: &str| route(routing, e, r, n);
            let options = Options { schedule, seed, launches: 4, ..Options::default() };
            if let Err(e) = outcome(&case, plan, &tables, &options) {
                return Some(format!(
                    "{schedule}, seed {seed}: {}",
                    e.lines().next().unwrap_or("")
                ));
            }
        }
    }
    None
}

fn shows(name: &str, what: &str, plan: &Plan) {
    let found = failure(name, plan, 20);
    println!("{name}, {what}: {}", found.as_deref().unwrap_or("nothing"));
    assert!(found.is_some(), "{name}, {what}: nothing shows");
}

#[test]
fn every_wait_that_orders_memory() {
    for (name, waits) in [
        ("gather_gemm", &["wait e3", "wait e13"][..]),
        ("gemm_reduce_scatter", &["wait e5", "wait e7"]),
        ("moe_dispatch", &["wait e4", "wait e8", "wait e14"]),
        ("ring_attention_registers", &["wait e6", "wait e7", "wait e8", "wait e13"]),
        ("ring_attention_scratch", &["wait e6", "wait e7", "wait e11", "wait e12"]),
        ("two_nodes_nic", &["wait e6", "wait e10", "wait e11", "wait e16", "wait e20", "wait e31"]),
    ] {
        for wait in waits {
            shows(name, &format!("without {wait}"), &plan_without(name, wait));
        }
    }
}

#[test]
fn a_post_that_is_missing_is_a_deadlock() {
    for (name, post) in [
        ("gather_gemm", "post e4"),
        ("moe_dispatch", "post e1"),
        ("ring_attention_registers", "post e14"),
        ("two_nodes_nic", "post e13"),
    ] {
        let found = failure(name, &plan_without(name, post), 1).expect("a failure");
        assert!(found.contains("deadlock"), "{name} without {post}: {found}");
    }
}

#[test]
fn a_weaker_completion_is_a_wrong_number() {
    let gather = plan_with("gather_gemm", "global_write_done", "smem_read_done");
    shows("gather_gemm", "posting before the store is visible", &gather);
    let gpu = plan_with(
        "gemm_reduce_scatter",
        "global_write_done scope sys",
        "global_write_done scope gpu",
    );
    shows("gemm_reduce_scatter", "releasing to the own GPU only", &gpu);
    let flushed = plan_with("two_nodes_nic", "nic_flushed", "nic_delivered");
    shows("two_nodes_nic", "raising the signal before the flush", &flushed);
    let delivered =
        plan_with("two_nodes_nic", "sender after nic_delivered", "sender after nic_posted");
    shows("two_nodes_nic", "reusing the source before it is delivered", &delivered);
}

/// Faults in `tests/plans/broken` that no run can show.
const SILENT: &[(&str, &str)] = &[(
    "ring_attention_scratch_every_step_writes",
    "the last step writes last, whatever the others wrote before",
)];

#[test]
fn every_broken_fixture() {
    let names: Vec<_> = crate::fixtures::cases().iter().map(|c| c.name).collect();
    let mut broken = crate::harness::names("broken");
    broken.retain(|b| SILENT.iter().all(|s| s.0 != b));
    assert!(!broken.is_empty());
    for file in broken {
        // `moe_dispatch_capacity_x` is of the fixture with the longest name that fits.
        let of = names.iter().filter(|n| file.starts_with(**n)).max_by_key(|n| n.len());
        match of {
            Some(name) => shows(name, &file, &plan(&format!("broken/{file}"))),
            None => println!("{file}: skipped, there is no reference for it"),
        }
    }
}

#[test]
fn one_slot_for_two_parities() {
    shows("moe_dispatch", "one staging slot", &plan_with("moe_dispatch", "epoch % 2 : 1", "0 : 1"));
}

#[test]
fn tiles_that_are_not_resident() {
    let name = "ring_attention_registers";
    let found = failure(name, &plan_with(name, "compute ctas 6", "compute ctas 3"), 1);
    assert!(found.expect("a failure").contains("deadlock"));
}

#[test]
fn the_entry_wait_is_what_keeps_epochs_together() {
    let options = |seed| Options { schedule: Schedule::EpochApart, seed, ..Options::default() };
    let case = case("gather_gemm");
    let none = |_: i64, _: usize, _: &str| Vec::new();
    let right =
        (0..4).map(|s| outcome(&case, &plan(case.name), &none, &options(s)).expect("right"));
    assert!(right.map(|r| r.max_drift).max() >= Some(1), "ranks are launches apart");
    let without = plan_without(case.name, "wait e3");
    let wrong = (0..20).any(|s| outcome(&case, &without, &none, &options(s)).is_err());
    assert!(wrong, "a rank that runs ahead overwrites rows that its peers still read");
}
