//! The CPU executor and the explorer agree: what goes wrong in some run, an adversarial schedule shows; what the verifier
//! accepts, no schedule makes fail.

use crate::{
    cases::{self, Case},
    explorer::{Late, Verdict, Wrong, explore, tables},
    few, in_parallel,
    kinds::KINDS,
    mutate::{Kind, mutants},
    random::{self, Numbers, Scale},
};
use mk_codegen::{
    passes,
    plan::{BufId, Plan, RoleKind, TabId, TableSet},
    sim::{self, Callbacks, Options, Schedule, SimError, Victim},
    valid,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use std::{collections::BTreeMap, sync::Mutex};

/// Runs a plan with stamps instead of numbers, for as many launches as the explorer looks at.
fn run(plan: &Plan, set: &[TableSet], schedule: Schedule, seed: u64) -> Result<(), SimError> {
    let input = |_: i64, _: usize, _: BufId, shape: &[usize]| vec![0.0; shape.iter().product()];
    let table = |epoch: i64, rank: usize, id: TabId| {
        set[epoch as usize % set.len()].values(rank, id).to_vec()
    };
    let output = |_: i64, _: usize, _: BufId, _: &[usize], _: &[f32]| {};
    let options =
        Options { schedule, seed, launches: 4, check: true, anywhere: true, ..Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options).map(|_| ())
}

/// The plan with a CTA for each task: no proof uses the split.
fn wide(plan: &Plan) -> Plan {
    let mut wide = plan.clone();
    for (_, r) in wide.roles.iter_mut() {
        if !matches!(r.kind, RoleKind::Prologue | RoleKind::Epilogue | RoleKind::CopyEngine) {
            r.ctas = 64;
        }
    }
    wide
}

/// Schedules that hold back whoever the explorer says comes too late, then all others.
fn schedules(plan: &Plan, late: Option<Late>) -> Vec<Schedule> {
    let mut out = Vec::new();
    if let Some(Late { rank, family, agent, task, epoch }) = late {
        for (task, epoch) in [(Some(task), Some(epoch)), (Some(task), None), (None, None)] {
            out.push(Schedule::Withhold(Victim { rank, family, agent, task, epoch }));
        }
    }
    let world = plan.mesh.size() as usize;
    out.extend(Schedule::all(world));
    for (family, x) in plan.families.iter() {
        for agent in x.leaf.contract().agents {
            let victim = |rank| Victim { rank, family, agent, task: None, epoch: None };
            out.extend((0..world).map(|rank| Schedule::Withhold(victim(rank))));
        }
    }
    out
}

/// The first failure of a plan that goes wrong, or `None` if no schedule shows one.
pub fn shown(plan: &Plan, wrong: &Wrong) -> Option<String> {
    let set = &tables(plan)[wrong.filling];
    // What may show nothing is not asked again and again.
    for seed in 0..if wrong.beside && few() { 1 } else { 3 } {
        for plan in [plan, &wide(plan)] {
            for schedule in schedules(plan, wrong.late) {
                if let Err(e) = run(plan, set, schedule, seed) {
                    return Some(format!("{schedule}, seed {seed}: {e}"));
                }
            }
        }
    }
    None
}

/// Runs that a verified plan must survive.
pub fn survives(plan: &Plan, schedules: &[Schedule], seed: u64) -> Result<(), String> {
    for set in tables(plan) {
        for schedule in schedules {
            run(plan, &set, *schedule, seed)
                .map_err(|e| format!("{schedule}, seed {seed}: {e}"))?;
        }
    }
    Ok(())
}

/// What the executor did with a mutant.
#[derive(Default)]
struct Counts {
    shown: BTreeMap<Kind, usize>,
    silent: Vec<String>,
    /// Between a copy engine and the caller.
    beside: usize,
    survived: usize,
    failed: Vec<String>,
}

fn one(case: &Case, kind: Kind, name: &str, plan: &Plan, out: &Mutex<Counts>) {
    let explored = explore(plan);
    let place = || format!("{}, {name}", case.name);
    match explored {
        Verdict::Wrong(wrong) => {
            let shown = shown(plan, &wrong).is_some();
            let mut out = out.lock().expect("no thread panics with the lock");
            match shown {
                true => *out.shown.entry(kind).or_default() += 1,
                false if wrong.beside => out.beside += 1,
                false => out.silent.push(format!("{}: {}", place(), wrong.text)),
            }
        }
        Verdict::Fine { .. } if valid::verify_anywhere(plan).is_ok() => {
            let schedules = [Schedule::Random, Schedule::Reversed, Schedule::EpochApart];
            let ran = survives(plan, &schedules, 1);
            let mut out = out.lock().expect("no thread panics with the lock");
            match ran {
                Ok(()) => out.survived += 1,
                Err(e) => out.failed.push(format!("{}: {e}", place())),
            }
        }
        Verdict::Fine { .. } => {}
    }
}

#[test]
fn the_executor_shows_what_goes_wrong_and_nothing_else() {
    let mut cases = cases::fixtures();
    cases.extend(cases::small(true));
    // The fixtures compute in earnest: a fixed part of their mutants will do for CI.
    let stride = |case: &Case| match (few(), case.name.contains("small")) {
        (false, _) => 1,
        (true, true) => 18,
        (true, false) => 216,
    };
    let counts = judged(&cases, stride);
    let (shown, survived) = (counts.shown.values().sum::<usize>(), counts.survived);
    let [least, fine] = if few() { [80, 25] } else { [300, 100] };
    assert!(shown > least && survived > fine, "{shown}, {survived}");
}

#[test]
fn the_executor_agrees_on_nodes_and_attention() {
    let mut cases = cases::nodes(few());
    cases.extend(cases::attention(few()));
    let new = |case: &Case| case.name.contains(" nodes, ") || case.name.contains(" rows");
    let counts = judged(&cases, |case| match (few(), new(case)) {
        (false, _) => 1,
        (true, false) => 8,
        (true, true) => 34,
    });
    let (shown, survived) = (counts.shown.values().sum::<usize>(), counts.survived);
    let [least, fine] = if few() { [15, 5] } else { [60, 10] };
    assert!(shown > least && survived > fine, "{shown}, {survived}");
}

/// What the executor does with every so-manieth mutant of each case.
fn judged(cases: &[Case], stride: impl Fn(&Case) -> usize) -> Counts {
    let list: Vec<_> = cases
        .iter()
        .flat_map(|c| mutants(&c.plan).into_iter().step_by(stride(c)).map(move |m| (c, m)))
        .filter(|(_, m)| m.plan.check_structure().is_ok())
        .collect();
    let counts = Mutex::new(Counts::default());
    in_parallel(&list, |(case, m)| one(case, m.kind, &m.name, &m.plan, &counts));
    let counts = counts.into_inner().expect("no thread panics with the lock");
    for (kind, n) in &counts.shown {
        println!("| {} | {n} |", kind.name());
    }
    let shown: usize = counts.shown.values().sum();
    let beside = counts.beside;
    println!(
        "{shown} shown, {} survived, {beside} between copy engines and callers",
        counts.survived
    );
    assert!(counts.silent.is_empty(), "nothing shows:\n{}", counts.silent.join("\n"));
    assert!(counts.failed.is_empty(), "fails, but is right:\n{}", counts.failed.join("\n"));
    counts
}

/// A random pipeline, mesh, shape, split, schedule and seed: of the catalogue, or of any kind.
#[derive(Clone, Debug)]
struct Random {
    pipeline: usize,
    ranks: u32,
    rows: u64,
    width: u64,
    ctas: u32,
    schedule: usize,
    seed: u64,
    /// Which mutant, and which mutant of that; none beyond the last one.
    mutants: Vec<usize>,
}

fn random() -> impl Strategy<Value = Random> {
    let rows = prop_oneof![1..9u64, 120..140u64];
    let width = prop_oneof![1..20u64, 250..270u64];
    (
        0..cases::CATALOGUE + cases::RUN_TIME + KINDS.len(),
        1..4u32,
        rows,
        width,
        1..6u32,
        0..64usize,
        0..1000u64,
        prop::collection::vec(0..100usize, 0..3),
    )
        .prop_map(|(pipeline, ranks, rows, width, ctas, schedule, seed, mutants)| Random {
            pipeline,
            ranks,
            rows,
            width,
            ctas,
            schedule,
            seed,
            mutants,
        })
}

/// What verifies runs through; what goes wrong in some run shows, and does not verify.
fn agrees(r: &Random) -> Result<&'static str, String> {
    let of_kind = |kind| {
        let mut numbers = Numbers(r.seed + 1000 * (r.rows + 1000 * r.width));
        let drawn = random::one(kind, Scale::Tiny, &mut numbers)?;
        passes::lower(&drawn.program, &drawn.bound, &drawn.config).ok()
    };
    let plan = match r.pipeline.checked_sub(cases::CATALOGUE) {
        None => cases::random(r.pipeline, r.ranks, r.rows, r.width),
        Some(n) => match n.checked_sub(cases::RUN_TIME) {
            None => cases::random_run_time(n, r.ranks, r.rows, r.width),
            Some(kind) => of_kind(kind),
        },
    };
    let Some(mut plan) = plan else {
        return Ok("refused by the passes");
    };
    for (_, role) in plan.roles.iter_mut().filter(|x| x.1.ctas > 0) {
        role.ctas = r.ctas;
    }
    for n in &r.mutants {
        let mut all = mutants(&plan);
        if *n < all.len() {
            plan = all.swap_remove(*n).plan;
        }
        if plan.check_structure().is_err() {
            return Ok("no plan");
        }
    }
    if plan.runtime_dim().is_some() {
        return agrees_with_values(r, &plan);
    }
    // What fills tables in a launch are routings: `mk-harness/tests/random` runs those.
    let filled = plan.tables.values().any(|t| t.stored.is_some());
    match (valid::verify_anywhere(&plan), explore(&plan)) {
        (Ok(_), Verdict::Wrong(wrong)) => Err(format!("verifies, but {}", wrong.text)),
        (Ok(_), Verdict::Fine { .. }) if filled => Ok("explored alone, and accepted"),
        (Err(_), Verdict::Wrong(_)) if filled => Ok("explored alone, and refused"),
        (Ok(_), Verdict::Fine { .. }) => {
            let all = schedules(&plan, None);
            survives(&plan, &[all[r.schedule % all.len()]], r.seed)?;
            Ok("survives")
        }
        (Err(_), Verdict::Wrong(wrong)) => match shown(&plan, &wrong) {
            Some(_) => Ok("shown"),
            None if wrong.beside => Ok("wrong between a copy engine and the caller"),
            None => Err(format!("nothing shows: {}", wrong.text)),
        },
        (Err(_), Verdict::Fine { .. }) => Ok("refused, though no run goes wrong"),
    }
}

/// The same of a plan with a run-time dimension: what is proved for all values holds for some; what is not goes wrong with the value
/// that the verifier names.
fn agrees_with_values(r: &Random, plan: &Plan) -> Result<&'static str, String> {
    let (dim, max) = plan.runtime_dim().expect("a run-time dimension");
    match valid::verify_anywhere(plan) {
        Ok(_) => {
            for value in [max, 1, 1 + (r.seed as i32 * 37) % max] {
                let at = plan.at(dim, value);
                if let Verdict::Wrong(wrong) = explore(&at) {
                    return Err(format!(
                        "verifies for all values, but with {value} {}",
                        wrong.text
                    ));
                }
                let all = schedules(&at, None);
                survives(&at, &[all[r.schedule % all.len()]], r.seed)
                    .map_err(|e| format!("with {value}: {e}"))?;
            }
            Ok("survives with several values")
        }
        Err(failure) if failure.at.is_none() => Ok("refused for launches with several values"),
        Err(failure) => {
            let at = failure.plan_at(plan);
            match explore(&at) {
                Verdict::Wrong(wrong) => match shown(&at, &wrong) {
                    Some(_) => Ok("shown with a value"),
                    None if wrong.beside => Ok("wrong between a copy engine and the caller"),
                    None => Err(format!("nothing shows: {}", wrong.text)),
                },
                Verdict::Fine { .. } => Ok("refused with a value, though no run goes wrong"),
            }
        }
    }
}

#[test]
fn random_cases_agree() {
    let cases = std::env::var("MK_RANDOM_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = match std::env::var("MK_SEED").ok().and_then(|s| s.parse::<u64>().ok()) {
        None => TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        Some(seed) => {
            let seed: Vec<u8> = (1..5).flat_map(|n| (seed ^ n << 48).to_le_bytes()).collect();
            TestRng::from_seed(RngAlgorithm::ChaCha, &seed)
        }
    };
    let ends: Mutex<BTreeMap<&str, usize>> = Mutex::default();
    let result = TestRunner::new_with_rng(config, rng).run(&random(), |r| {
        let end = agrees(&r).map_err(TestCaseError::fail)?;
        *ends.lock().expect("no thread panics with the lock").entry(end).or_default() += 1;
        Ok(())
    });
    println!("{ends:?}");
    result.unwrap_or_else(|e| panic!("{e}"));
}
