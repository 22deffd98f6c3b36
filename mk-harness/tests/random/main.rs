//! Random cases of pipelines of every kind: what the executor or the reference fails, the verifier or the evaluation refuses.
//!
//! The reference reads the pipeline and nothing of the plan; the evaluation has its own. A case is a pipeline with sizes, a world, settings, a
//! schedule, a routing, and none to two mutations of its plan, of edges, accesses or tables.
//!
//! CI takes as many as fit in some seconds, from a seed that it prints. `MK_RANDOM_CASES=10000` takes so many, `MK_SEED` repeats a run,
//! `MK_RANDOM_CASE` takes the one case of that number.

#[path = "../../../mk-codegen/tests/common/kinds.rs"]
mod kinds;
#[path = "../../../mk-codegen/tests/mutants/mutate/mod.rs"]
#[allow(dead_code, unused_imports)]
mod mutate;
#[path = "../../../mk-codegen/tests/common/random.rs"]
mod random;
mod report;

use mk_codegen::{
    equivalence,
    passes::{self, LowerError},
    plan::Plan,
    sim::{Schedule, SimError},
    valid,
};
use mk_harness::{Case, CpuOptions, HarnessError, Routing, run_on_cpu};
use mutate::{Kind, Of};
use random::{Drawn, Numbers, Scale, any};
use report::{Outcome, Report, Said};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// Seconds that CI spends here.
const SECONDS: u64 = 8;

/// A seed for each case, so that neighbours have nothing in common.
fn mix(seed: u64, number: u64) -> u64 {
    let mut x = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for by in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        x = (x ^ (x >> 30)).wrapping_mul(by);
    }
    x ^ (x >> 31)
}

/// Why a run is no right one.
enum Wrong {
    /// The launch is refused, as one whose routing has no room.
    Launch,
    /// What the executor or the reference says.
    Result(String),
}

/// A run, judged by the reference. `rounded`: memory has other types, and so other roundings than the reference's bounds are about.
fn run(drawn: &Drawn, plan: &Plan, options: &CpuOptions, rounded: bool) -> Result<(), Wrong> {
    let Drawn { program, bound, config, .. } = drawn;
    let case = Case { program, bound, ranks: config.ranks as usize };
    let ran = run_on_cpu(case, plan, options).map_err(|error| match error {
        HarnessError::Sim(SimError::Caller { .. }) | HarnessError::TooLarge { .. } => Wrong::Launch,
        error => Wrong::Result(error.to_string()),
    })?;
    let all = ran.judged.iter().enumerate();
    for (launch, rank, judged) in
        all.flat_map(|(l, ranks)| ranks.iter().enumerate().map(move |(r, j)| (l, r, j)))
    {
        let near = rounded && judged.norms.nonfinite == 0 && judged.norms.global < 0.03;
        if !judged.passes() && !near {
            return Err(Wrong::Result(format!("launch {launch}, rank {rank}: {judged}")));
        }
    }
    Ok(())
}

/// Verifier, then evaluation.
fn accepted(drawn: &Drawn, plan: &Plan) -> Result<(), (Outcome, String)> {
    let proof = valid::verify(plan).map_err(|e| (Outcome::Unordered, e.to_string()))?;
    let options = equivalence::Options { period: proof.period, ..equivalence::Options::default() };
    let found = equivalence::evaluate(plan, &drawn.program, &drawn.bound, &options);
    found.map(drop).map_err(|e| (Outcome::Values, e.to_string()))
}

/// The plan with so many mutations, and what they are; `None` where one of them is no plan.
fn mutated(plan: &Plan, many: usize, numbers: &mut Numbers) -> Option<(Plan, Vec<Kind>, String)> {
    let (mut plan, mut kinds, mut names) = (plan.clone(), Vec::new(), String::new());
    for _ in 0..many {
        let of = numbers.of(&[Of::Edges, Of::Accesses, Of::Accesses]);
        let mutant = mutate::one(&plan, of, numbers.below(usize::MAX))?;
        plan = mutant.plan;
        kinds.push(mutant.kind);
        names += &format!("\n    {}: {}", mutant.kind.name(), mutant.name);
    }
    Some((plan, kinds, names))
}

/// One case; `None` for one that is none: sizes or settings without a plan, mutations that make no plan.
fn case(seed: u64) -> Option<Said> {
    let mut numbers = Numbers(seed);
    let drawn = any(Scale::Small, &mut numbers)?;
    let says = |outcome, text: String| {
        Some(Said { kind: drawn.kind, outcome, text: format!("{}{text}", drawn.what) })
    };
    let plan = match passes::lower(&drawn.program, &drawn.bound, &drawn.config) {
        Ok(plan) => plan,
        Err(e) if e.to_string().contains("internal error") => {
            return says(Outcome::Missed, format!("\n    {e}"));
        }
        Err(_) => return None,
    };
    let schedules = Schedule::all(drawn.config.ranks as usize);
    let routings =
        [Routing::Uniform, Routing::Skew(8), Routing::One, Routing::Empty, Routing::Random];
    let options = CpuOptions {
        schedule: numbers.of(&schedules),
        seed: numbers.below(1000) as u64,
        launches: 2,
        routing: numbers.of(&routings),
        ..CpuOptions::default()
    };
    let many = numbers.below(3);
    if many == 0 {
        return match passes::prove(&drawn.program, &drawn.bound, &drawn.config, &plan) {
            Err(LowerError::TooLarge { .. }) => None,
            Err(e) => says(Outcome::Missed, format!(": a right plan is refused: {e}")),
            Ok(_) => match run(&drawn, &plan, &options, false) {
                Ok(()) => says(Outcome::Right, String::new()),
                Err(Wrong::Launch) => says(Outcome::NoLaunch, String::new()),
                Err(Wrong::Result(e)) => says(Outcome::Missed, format!(": a right plan: {e}")),
            },
        };
    }
    let (mutant, kinds, names) = mutated(&plan, many, &mut numbers)?;
    let rounded = kinds.contains(&Kind::OtherType);
    let ran = match run(&drawn, &mutant, &options, rounded) {
        // Is it the launch, or the mutation?
        Err(Wrong::Launch) => match run(&drawn, &plan, &options, false) {
            Ok(()) => Some("the launch is refused".to_string()),
            Err(_) => return None,
        },
        Err(Wrong::Result(e)) => Some(e),
        Ok(()) => None,
    };
    let all =
        format!("{names}\n    {}, seed {}, {}", options.schedule, options.seed, options.routing);
    match (accepted(&drawn, &mutant), ran) {
        (Ok(()), None) => says(Outcome::Equal, all),
        (Ok(()), Some(e)) => says(Outcome::Missed, format!("{all}\n    {e}")),
        (Err((Outcome::Unordered, e)), None) => says(Outcome::Strict, format!("{all}\n    {e}")),
        (Err((_, e)), None) => says(Outcome::Near, format!("{all}\n    {e}")),
        (Err((outcome, e)), Some(_)) => says(outcome, format!("{all}\n    {e}")),
    }
}

/// [`case`], of which a panic is a failure, too.
fn judged(seed: u64, number: u64) -> Option<Said> {
    let done = catch_unwind(AssertUnwindSafe(|| case(mix(seed, number))));
    let said = done.unwrap_or_else(|_| {
        Some(Said { kind: "?", outcome: Outcome::Missed, text: "a panic".into() })
    });
    said.map(|s| Said { text: format!("MK_SEED={seed} MK_RANDOM_CASE={number}: {}", s.text), ..s })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn what_goes_wrong_is_refused() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed = number("MK_SEED").unwrap_or(now);
    println!("MK_SEED={seed}");
    if let Some(one) = number("MK_RANDOM_CASE") {
        let said = judged(seed, one);
        println!("{:?}", said.as_ref().map(|s| (s.outcome, &s.text)));
        assert!(said.is_none_or(|s| s.outcome != Outcome::Missed));
        return;
    }
    let (wanted, begin) = (number("MK_RANDOM_CASES"), Instant::now());
    let (next, report) = (AtomicU64::new(0), Mutex::new(Report::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let done = report.lock().expect("no thread panics with the lock").cases();
                    let enough = match wanted {
                        Some(n) => done >= n,
                        None => begin.elapsed() > Duration::from_secs(SECONDS),
                    };
                    if enough {
                        return;
                    }
                    let said = judged(seed, next.fetch_add(1, Ordering::Relaxed));
                    report.lock().expect("no thread panics with the lock").take(said);
                }
            });
        }
    });
    let report = report.into_inner().expect("no thread panics with the lock");
    report.print(begin.elapsed());
    report.judge();
}
