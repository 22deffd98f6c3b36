//! What cannot run is refused, with a message that names the place.

use crate::{
    fixtures::{Routing, route},
    harness::{no_tables, plan, plan_with, plan_without, run},
};
use mk_codegen::sim::{Options, Schedule, SimError, WaitsFor};

fn error(plan: &mk_codegen::plan::Plan) -> SimError {
    let tables = |e, r, n: &str| route(Routing::Random, e, r, n);
    run(plan, &tables, &Options::default()).0.expect_err("an error")
}

#[test]
fn a_deadlock_names_the_waits() {
    let error = error(&plan_without("gather_gemm", "post e4"));
    let SimError::Deadlock(d) = &error else { panic!("{error}") };
    let loader = &d.blocked[0];
    assert!(matches!(&loader.on, WaitsFor::Signal { expected: 1, seen: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("loader: fam3 \"gemm.peers\""), "{text}");
    assert!(text.contains("waits for e13: sig1["), "{text}");
}

/// Of tasks for whoever is free any CTA may have any; what warps have to do first is in their way under every seed.
#[test]
fn tasks_behind_what_waits_for_them() {
    let deadlocks = |plan: &mk_codegen::plan::Plan| {
        let stuck = |seed: &u64| {
            let options = Options { seed: *seed, ..Options::default() };
            matches!(run(plan, &no_tables, &options).0, Err(SimError::Deadlock(_)))
        };
        (0..20).filter(stuck).count()
    };
    let (free, dynamic) = ("broken/rule2_first_come", "  schedule dynamic\n");
    assert!((1..20).contains(&deadlocks(&plan(free))));
    assert_eq!(deadlocks(&plan_with(free, dynamic, "")), 0);
    assert_eq!(deadlocks(&plan("broken/rule2_same_warps")), 20);
}

#[test]
fn outside_a_buffer() {
    let plan = plan_with("gather_gemm", "workspace bf16[3, 134, K]", "workspace bf16[3, 133, K]");
    let text = error(&plan).to_string();
    assert!(text.contains("lies outside buf3 \"a_all\" [3, 133, 136]"), "{text}");
}

#[test]
fn outside_a_signal() {
    let text =
        error(&plan_with("gather_gemm", "\"arrived\" [3, 2]", "\"arrived\" [3, 1]")).to_string();
    assert!(
        text.contains("names word [") && text.contains("of sig1, which has shape [3, 1]"),
        "{text}"
    );
}

#[test]
fn operands_that_do_not_fit() {
    let text = error(&plan_with(
        "gather_gemm",
        "access b: read buf1 @ rank [0 : K",
        "access b: read buf1 @ rank [0 : K - 1",
    ))
    .to_string();
    assert!(text.contains("x136 and `b` 135x"), "{text}");
}

#[test]
fn more_than_there_is_room_for() {
    let big =
        plan_with("gather_gemm", "workspace bf16[3, 134, K]", "workspace bf16[3, 134, K, 99999]");
    assert!(matches!(error(&big), SimError::Structure(_)));
    let big =
        plan_with("gather_gemm", "workspace bf16[3, 134, K]", "workspace bf16[3, 13400000, K]");
    assert!(matches!(error(&big), SimError::TooLarge { .. }));
    let big = plan_with("gather_gemm", "  for s in 2\n", "  for s in 2000000000\n");
    assert!(matches!(error(&big), SimError::TooLarge { .. }));
    let big = plan_with("gather_gemm", "each p in 3", "each p in 2000000000");
    assert!(matches!(error(&big), SimError::TooLarge { .. }));
}

#[test]
fn tables_and_schedules_are_checked() {
    let moe = plan("moe_dispatch");
    let (result, _) = run(&moe, &no_tables, &Options::default());
    assert!(
        result.expect_err("no tables").to_string().contains("has 2 entries, the caller gave 0")
    );
    let (result, _) = run(&moe, &|_, _, _| vec![99; 128], &Options::default());
    assert!(matches!(result, Err(SimError::Caller { .. })));
    let options = Options { schedule: Schedule::Starve(3), ..Options::default() };
    let (result, _) = run(&moe, &no_tables, &options);
    assert!(matches!(result, Err(SimError::NoSuchRank { world: 3, .. })));
    for schedule in Schedule::all(2) {
        assert_eq!(schedule.to_string().parse(), Ok(schedule));
    }
    assert!("starve:x".parse::<Schedule>().is_err());
}

#[test]
fn steps_are_bounded() {
    let options = Options { max_steps: 100, ..Options::default() };
    let (result, _) = run(&plan("gather_gemm"), &no_tables, &options);
    assert_eq!(result.expect_err("a bound"), SimError::Steps { limit: 100 });
}
