//! A line that is not there with one value of a run-time dimension: refused for all values, or as good without it.

use crate::{
    agreement::{shown, survives},
    cases,
    explorer::{Verdict, explore, tables},
    few, in_parallel,
    mutate::{Kind, Mutant, of_values},
    operands::outputs,
    verifier::Outcome,
};
use mk_codegen::{plan::Plan, sim::Schedule, valid};
use std::collections::BTreeMap;

/// What verifier, explorer and executor say of a mutant: the verifier of all values, the others of the value.
fn judge(plan: &Plan, value: i32, mutant: &Mutant) -> Option<(Kind, Outcome, String)> {
    if mutant.plan.check_structure().is_err() {
        return None;
    }
    let (dim, _) = plan.runtime_dim()?;
    let at = mutant.plan.at(dim, value);
    let verified = valid::verify_anywhere(&mutant.plan);
    let explored = explore(&at);
    let (outcome, executor) = match (&verified, &explored) {
        (Err(_), Verdict::Wrong(wrong)) => {
            // A result that nobody writes shows in its numbers.
            let set = &tables(&at)[0];
            let run = |plan: &Plan| outputs(plan, set, Schedule::Random).ok();
            let seen = || wrong.beside || run(&at) != run(&plan.at(dim, value));
            (Outcome::Caught, shown(&at, wrong).is_none() && !seen())
        }
        (Ok(_), Verdict::Fine { .. }) => {
            let schedules = [Schedule::Random, Schedule::Reversed, Schedule::EpochApart];
            (Outcome::Equivalent, survives(&at, &schedules, 1).is_err())
        }
        (Err(_), Verdict::Fine { .. }) => (Outcome::Strict, false),
        (Ok(_), Verdict::Wrong(_)) => (Outcome::Missed, false),
    };
    let says = match verified {
        Err(e) => e.to_string(),
        Ok(_) => format!("{explored:?}"),
    };
    let disagrees = if executor { "the executor disagrees: " } else { "" };
    Some((mutant.kind, outcome, format!("{disagrees}{}: {says}", mutant.name)))
}

#[test]
fn what_is_not_there_with_one_value_is_refused_or_not_needed() {
    let sizes = if few() { &[(2, 3, 8)][..] } else { &[(2, 3, 8), (3, 5, 9), (2, 131, 264)][..] };
    let plans: Vec<Plan> = sizes
        .iter()
        .flat_map(|(ranks, rows, width)| {
            (0..cases::RUN_TIME).filter_map(|n| cases::random_run_time(n, *ranks, *rows, *width))
        })
        .collect();
    let list: Vec<(&Plan, i32, Mutant)> =
        plans.iter().flat_map(|p| of_values(p).into_iter().map(move |(v, m)| (p, v, m))).collect();
    let stride = if few() { 2 } else { 1 };
    let list: Vec<_> = list.into_iter().step_by(stride).collect();
    let judged = in_parallel(&list, |(plan, value, m)| judge(plan, *value, m));
    let mut table: BTreeMap<Kind, [usize; 4]> = BTreeMap::new();
    let (mut missed, mut apart) = (Vec::new(), Vec::new());
    for (kind, outcome, says) in judged.into_iter().flatten() {
        table.entry(kind).or_default()[outcome as usize] += 1;
        if says.starts_with("the executor disagrees") {
            apart.push(says);
        } else if outcome == Outcome::Missed {
            missed.push(says);
        } else if outcome == Outcome::Strict && std::env::var_os("MK_MUTANTS_SAY").is_some() {
            println!("Strict: {}", says.replace('\n', " "));
        }
    }
    println!("{} plans", plans.len());
    for (kind, n) in &table {
        let sum: usize = n.iter().sum();
        println!("| {} | {sum} | {} | {} | {} | {} |", kind.name(), n[0], n[1], n[2], n[3]);
    }
    assert!(missed.is_empty(), "accepted, but a run goes wrong:\n{}", missed.join("\n"));
    assert!(apart.is_empty(), "{}", apart.join("\n"));
    let caught: usize = table.values().map(|n| n[0]).sum();
    assert!(caught > 50, "{table:?}");
}
