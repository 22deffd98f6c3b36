//! The verifier: proves that a plan computes what it says on every run, or names the edge that is missing.
//!
//! A plan is unrolled over all ranks and over `max(p + 2, 2p)` epochs from a symbolic base, `p` being the period after
//! which its expressions repeat (see `epochs.rs`). The proof then holds for every interleaving, every split of SMs among
//! roles, and any number of launches. What the edges mean on the machine is in `docs/memory-model.md`.
//!
//! # Happens-before
//!
//! 1. *Program order* of one agent within one task: at each step (`start`, each iteration of the inner loop, `end`) first
//!    waits, then accesses, then posts. Accesses of one step are not ordered. An asynchronous access is issued at its
//!    place and complete where a completion or an internal edge says so.
//! 2. *Internal edges* that the leaf's contract declares (see `within.rs`).
//! 3. *Signal edges*: a wait that is over happens after *all* posts to its word of epochs up to `e - lag`.
//! 4. *Kernel boundaries*: everything that GPU agents of kernel (rank, e) do, completed, happens before everything in
//!    kernel (rank, e + 1). Hosts are not covered: a NIC may still read when the kernel that fed it has ended.
//! 5. *The caller* writes every input before each launch on its rank, and reads every output after it.
//!
//! The order of different tasks on one CTA is not used here, only for deadlock.
//!
//! # Rules
//!
//! 1. Overlapping accesses, at least one a write, are ordered by their stamps (epoch, version), caller included.
//! 2. No deadlock, with bounded stages and fifo, and all CTAs are resident at once.
//! 3. Every wait is for a complete and reachable set of posts that one rank makes, the same in every epoch.
//! 4. Where a path orders two accesses, its completions, scopes and proxies suffice for both ends.
//! 5. What is read was written in its own epoch and version, and summands that are written are read; every output is written exactly
//!    once; with run-time tables this holds for every table.
//! 6. Everything stands where its leaf allows it, and fits: bounds, a leaf's operands each other, rows that TMA takes, signal indexes, `order`, shared memory, fifo, queue pairs,
//!    32-bit arithmetic; ranks touch the memory of their own node, and network cards, hosts and GPUs each their own
//!    words.
//!
//! With a run-time dimension all of this holds for all its values, another one in each launch: see `runtime/mod.rs`.
//!
//! Rule 3 is checked before 2 and 2 before 1 and 4, which take them for granted; a report holds what was found up to the
//! first of them that fails. Work is bounded by the `MAX_` constants; a larger plan is refused (rule 6), not guessed at.

mod actor;
mod affine;
mod boxes;
mod canvas;
mod capacity;
mod coverage;
mod deadlock;
mod epochs;
mod explain;
mod grad_shapes;
mod hash;
mod net;
mod origins;
mod paths;
mod races;
mod ragged;
mod report;
mod rotation;
mod runtime;
mod sample;
mod shapes;
mod signals;
mod site;
mod spans;
mod stuck;
mod timeline;
mod unroll;
mod within;
mod world;

pub use actor::{Actor, Site, Touch};
pub use affine::{Along, Relatives, Unlike, is_affine, verify_affine};
pub use epochs::MAX_PERIOD;
pub use mk_plan::MAX_TASKS;
pub use ragged::MAX_WORK;
pub use report::{AtValue, Failure, OverValues, Proof, Scaled, Violation};
pub use runtime::{MAX_RUNS, MAX_SEQUENCES, MAX_VALUES};
pub use sample::{TableKind, sample_tables};
pub use timeline::timeline;
pub use unroll::{MAX_ELEMENTS, MAX_EVENTS, MAX_WORDS};
pub use world::too_much;

use mk_plan::{EdgeId, Plan, TableSet, TableSource};
use std::{collections::BTreeSet, panic::resume_unwind, thread};
use world::{Window, World};

/// Most pairs of regions that are compared, of accesses that are looked at one by one, of nodes that searches visit, and
/// of entries (word, rank, epoch) of the table of known kernels.
pub const MAX_PAIRS: u64 = 1 << 28;

/// Checks a plan against all six rules: with a run-time dimension for all its values, a different one in each launch. Accesses,
/// waits and posts stand where their leaf allows them ([`Plan::check_points`]).
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify(plan: &Plan) -> Result<Proof, Failure> {
    let proved = verify_anywhere(plan);
    let misplaced = match &proved {
        Err(failure) if failure.violations.iter().any(|v| v.rule() == 0) => return proved,
        _ => plan.check_points().err().unwrap_or_default(),
    };
    let misplaced = misplaced.into_iter();
    let mut misplaced =
        misplaced.map(|e| Violation::Capacity { place: e.place, message: e.message }).peekable();
    match proved {
        proved if misplaced.peek().is_none() => proved,
        Ok(_) => Err(Failure::of(plan, misplaced.collect())),
        Err(mut failure) => {
            failure.violations.extend(misplaced);
            failure.violations.truncate(Failure::MAX);
            Err(failure)
        }
    }
}

/// As [`verify`], of plans that have accesses, waits and posts at points where no template has a place for them, too: the proof of
/// what is ordered does not rest on their being elsewhere. Such a plan has no kernel.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_anywhere(plan: &Plan) -> Result<Proof, Failure> {
    look(plan, Ranks::Folded)
}

/// As [`verify_anywhere`], rank by rank, whether they are alike or not: the same verdict, found without `rotation.rs`.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_each_rank(plan: &Plan) -> Result<Proof, Failure> {
    look(plan, Ranks::Each)
}

/// Whether ranks that are alike are folded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// They are.
    Folded,
    /// Each rank is looked at.
    Each,
}

fn look(plan: &Plan, ranks: Ranks) -> Result<Proof, Failure> {
    well_formed(plan)?;
    match plan.runtime_dim() {
        Some((dim, max)) => runtime::verify(plan, dim, i64::from(max), ranks),
        None => of_value(plan, ranks),
    }
}

/// After how many launches a plan repeats: what its proof says, too.
///
/// # Errors
/// A plan that is not well formed, or does not repeat.
pub fn period(plan: &Plan) -> Result<u32, Failure> {
    well_formed(plan)?;
    epochs::period(plan).map_err(|violations| Failure::of(plan, violations))
}

fn well_formed(plan: &Plan) -> Result<(), Failure> {
    let structure = |errors: Vec<_>| errors.into_iter().map(Violation::Structure).collect();
    plan.check_structure().map_err(|errors| Failure::of(plan, structure(errors)))
}

/// Checks a plan against all six rules with the value that its run-time dimension has in it, in all launches: of other values,
/// and of launches with different ones, this says nothing. [`verify`] is for all of them.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_value(plan: &Plan) -> Result<Proof, Failure> {
    well_formed(plan)?;
    of_value(plan, Ranks::Folded)
}

fn of_value(plan: &Plan, ranks: Ranks) -> Result<Proof, Failure> {
    sampled(plan, ranks, Samples::ALL)
}

/// How much of tables of a launch a proof looks at.
#[derive(Clone, Copy)]
pub struct Samples {
    /// Contents on which all rules are run.
    pub kinds: &'static [TableKind],
    /// Most visits of tasks over all counts.
    pub work: u64,
    /// Steps from the greatest count to the least one, at least, whatever they cost.
    pub counts: u64,
}

impl Samples {
    /// What [`verify`] looks at.
    pub const ALL: Samples = Samples { kinds: TableKind::ALL, work: MAX_WORK, counts: 4 };
}

/// As [`verify_value`], with fewer samples of tables.
pub fn sampled(plan: &Plan, ranks: Ranks, samples: Samples) -> Result<Proof, Failure> {
    let fail = |violations: Vec<Violation>| Failure::of(plan, violations);
    let fixed = capacity::check(plan);
    if !fixed.is_empty() {
        return Err(fail(fixed));
    }
    let period = epochs::period(plan).map_err(&fail)?;
    let strangers = origins::check(plan, period);
    if !strangers.is_empty() {
        return Err(fail(strangers));
    }
    let shown = ragged::check(plan, period, &samples);
    if !shown.violations.is_empty() {
        return Err(fail(shown.violations));
    }
    let mut proof = Proof {
        plan: plan.name.clone(),
        period,
        epochs: (period + 2).max(2 * period),
        counts: shown.counts,
        exhaustive: shown.exhaustive,
        ..Proof::default()
    };
    let run_time = plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. }));
    let sets: Vec<TableSet> = match run_time {
        true => samples.kinds.iter().map(|k| sample_tables(plan, *k)).collect(),
        false => vec![TableSet::new(plan, |_, _| Vec::new())],
    };
    let mut used = BTreeSet::new();
    if ranks == Ranks::Folded
        && !run_time
        && let Some(proof) = folded(plan, &proof, &sets[0])
    {
        return Ok(proof);
    }
    // Each launch brings other tables. Where the plan repeats with them, they follow each other in one world: each set is the last one's, behind as
    // many launches as a proof looks back to, and is unrolled once.
    let n = sets.len() as u32;
    let (turns, later) = if n.is_multiple_of(period) { (period, n) } else { (n, period) };
    let launches = later + proof.epochs - period;
    for first in 0..turns {
        let epochs: Vec<_> = (0..launches).map(|e| ((first + e) % n) as usize).collect();
        let mut world = World::new(plan, period, &epochs, &sets).map_err(&fail)?;
        world.window = Window { later, back: proof.epochs - 1 };
        let of_class = |c| sets.get(epochs[world.class_of.iter().position(|x| *x == c)?]);
        let class_sets: Vec<&TableSet> = (0..world.classes.len()).filter_map(of_class).collect();
        run(&world, &mut proof, &mut used, |world, groups, overlaps| {
            coverage::check(world, groups, overlaps, &class_sets).into()
        })
        .map_err(|found| fail(found.violations))?;
    }
    proof.tables = sets.len();
    proof.name_waits(plan, used);
    Ok(proof)
}

/// The proof of a plan that is the same from every rank; `None` if it is not, or is not proved.
fn folded(plan: &Plan, proof: &Proof, tables: &TableSet) -> Option<Proof> {
    let (mut proof, mut used) = (proof.clone(), BTreeSet::new());
    let epochs = vec![0; proof.epochs as usize];
    let world = World::folded(plan, proof.period, &epochs, tables)?;
    let class_sets = vec![tables; world.classes.len()];
    run(&world, &mut proof, &mut used, |world, groups, overlaps| {
        coverage::check(world, groups, overlaps, &class_sets).into()
    })
    .ok()?;
    proof.tables += 1;
    proof.name_waits(plan, used);
    Some(proof)
}

/// What is wrong with a plan; with a run-time dimension also values of it with which it may be.
struct Found {
    violations: Vec<Violation>,
    values: Vec<i64>,
}

impl From<Vec<Violation>> for Found {
    fn from(violations: Vec<Violation>) -> Found {
        Found { violations, values: Vec::new() }
    }
}

/// Accesses from which on regions are looked at on a thread of its own.
const WORTH_A_THREAD: usize = 1 << 12;

/// Regions: which overlap, which accesses they have, and what rule 5 says. `None`: too many overlap.
type Regions = Option<(Vec<Vec<boxes::BoxId>>, Vec<Vec<races::Group>>, Found)>;

/// Rules 1 to 5 for one choice of tables, or of values of the run-time dimension, in every epoch. `cover` is rule 5. Regions and events
/// are looked at side by side: neither needs the other before rule 1.
fn run(
    world: &World<'_>,
    proof: &mut Proof,
    used: &mut BTreeSet<EdgeId>,
    cover: impl Fn(&World<'_>, &[Vec<races::Group>], &[Vec<boxes::BoxId>]) -> Found + Sync,
) -> Result<(), Found> {
    let too_much =
        |what: &str| Found::from(vec![Violation::Limit { what: what.into(), limit: MAX_PAIRS }]);
    let table = (world.words.total * world.ranks) as u64 * u64::from(world.epochs());
    if table > MAX_PAIRS {
        return Err(too_much("signal words times ranks and epochs"));
    }
    let regions = || -> Regions {
        let overlaps = world.boxes.overlaps(MAX_PAIRS)?;
        let groups = races::groups(world);
        let found = cover(world, &groups, &overlaps);
        Some((overlaps, groups, found))
    };
    let accesses: usize = world.classes.iter().map(|c| c.accs.len()).sum();
    let (regions, events) = thread::scope(|threads| {
        let beside = match accesses < WORTH_A_THREAD {
            true => None,
            false => thread::Builder::new().spawn_scoped(threads, regions).ok(),
        };
        let events = events(world);
        let beside = beside.map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)));
        (beside.unwrap_or_else(regions), events)
    });
    let (overlaps, groups, uncovered) = regions.ok_or_else(|| too_much("overlapping regions"))?;
    let Events { mut found, thresholds, paths } = events;
    found.extend(uncovered.violations);
    found.extend(thresholds);
    let mut found = Found { violations: found, values: uncovered.values };
    let mut paths = match paths {
        None => return Err(found),
        Some(Ok(paths)) => paths,
        Some(Err(v)) => {
            found.violations.extend(v);
            return Err(found);
        }
    };
    let races = races::check(&mut paths, &groups, &overlaps);
    found.violations.extend(races.violations);
    found.values.extend(races.suspects.iter().flat_map(|(a, b)| runtime::meeting(world, *a, *b)));
    let (pairs, searched) = (races.pairs, races.searched);
    if !found.violations.is_empty() {
        return Err(found);
    }
    let fold = world.rotation.fold();
    proof.pairs += pairs * fold;
    proof.searched += searched * fold;
    let most = |count: fn(&world::Class) -> usize| {
        world.classes.iter().map(count).max().unwrap_or(0) * fold as usize
    };
    proof.tasks = proof.tasks.max(most(|c| c.tasks.len()));
    proof.accesses = proof.accesses.max(most(|c| c.accs.len()));
    proof.folded = world.rotation.is_folded();
    used.extend(paths.used.iter().copied());
    Ok(())
}

/// What events show without their regions.
struct Events<'w, 'a> {
    /// Of queue pairs and of who reaches which node.
    found: Vec<Violation>,
    /// Of rule 3.
    thresholds: Vec<Violation>,
    /// Who comes before whom; or who waits for ever, by rule 2. `None` if rule 3 is broken: without thresholds that are sums there is
    /// no run to speak of.
    paths: Option<Result<paths::Paths<'w, 'a>, Vec<Violation>>>,
}

fn events<'w, 'a>(world: &'w World<'a>) -> Events<'w, 'a> {
    let mut found = capacity::queue_pairs(world);
    found.extend(net::check(world));
    let thresholds = signals::check(world);
    let broken = found.iter().chain(&thresholds).any(|v| v.rule() == 3);
    let ended = (!broken).then(|| deadlock::run(world));
    let paths = ended.map(|ended| ended.map(|order| paths::Paths::new(world, &order)));
    Events { found, thresholds, paths }
}
