//! Proofs for the value that the run-time dimension has in a plan, and for the tables that its launches may bring.

use super::{
    boxes::BoxId,
    capacity, coverage, deadlock, epochs,
    limits::MAX_PAIRS,
    meetings, net, origins, paths, races, ragged,
    report::{Failure, Found, Proof, Violation},
    sample::{Samples, sample_tables},
    signals,
    world::{Class, Window, World},
};
use mk_plan::{EdgeId, Plan, TableSet, TableSource};
use std::{collections::BTreeSet, panic::resume_unwind, thread};

/// Whether ranks that are alike are folded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// They are.
    Folded,
    /// Each rank is looked at.
    Each,
}

pub(super) fn well_formed(plan: &Plan) -> Result<(), Failure> {
    let structure = |errors: Vec<_>| errors.into_iter().map(Violation::Structure).collect();
    plan.check_structure().map_err(|errors| Failure::of(plan, structure(errors)))
}

/// Checks a plan against all six rules with the value that its run-time dimension has in it, in all launches: of other
/// values, and of launches with different ones, this says nothing. [`super::verify`] is for all of them.
///
/// # Errors
/// The violations, as counterexamples.
pub fn verify_value(plan: &Plan) -> Result<Proof, Failure> {
    well_formed(plan)?;
    of_value(plan, Ranks::Folded)
}

pub(super) fn of_value(plan: &Plan, ranks: Ranks) -> Result<Proof, Failure> {
    sampled(plan, ranks, Samples::ALL)
}

/// As [`verify_value`], with fewer samples of tables.
pub fn sampled(plan: &Plan, ranks: Ranks, samples: Samples) -> Result<Proof, Failure> {
    let fail = |violations: Vec<Violation>| Failure::of(plan, violations);
    let fixed = capacity::check(plan);
    if !fixed.is_empty() {
        return Err(fail(fixed));
    }
    let period = epochs::period(plan).map_err(&fail)?;
    let mut strangers = origins::check(plan, period);
    strangers.extend(meetings::check(plan, period));
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
    // Each launch brings other tables. Where the plan repeats with them, they follow each other in one world: each set
    // is the last one's, behind as many launches as a proof looks back to, and is unrolled once.
    let order: Vec<usize> = (0..sets.len()).collect();
    let (turns, later) = turns(&order, period);
    let mut events = 0;
    for first in 0..turns {
        let epochs = follow(&order, first, later + proof.epochs - period);
        let mut world = World::new(plan, period, &epochs, &sets).map_err(&fail)?;
        world.window = Window { later, near: 0, back: proof.epochs - 1 };
        let of_class = |c| sets.get(epochs[world.class_of.iter().position(|x| *x == c)?]);
        let class_sets: Vec<&TableSet> = (0..world.classes.len()).filter_map(of_class).collect();
        run(&world, &mut proof, &mut used, |world, groups, overlaps| {
            coverage::check(world, groups, overlaps, &class_sets).into()
        })
        .map_err(|found| fail(found.violations))?;
        let of_class = |c: &Class| c.tasks.len() + c.accs.len() + world.words.total * world.ranks;
        events = events.max(world.classes.iter().map(of_class).max().unwrap_or(0) as u64);
    }
    // A launch may bring what any other one did, or the same again: between it and the last one, too, all is ordered.
    if run_time {
        let n = sets.len();
        let all = (n * n) as u64;
        let order = if events * all <= samples.work { each_behind_each(n) } else { twice_each(n) };
        let (turns, later) = self::turns(&order, period);
        for first in 0..turns {
            let epochs = follow(&order, first, later + proof.epochs - period);
            let mut world = World::new(plan, period, &epochs, &sets).map_err(&fail)?;
            world.window = Window { later, near: 1, back: 1 };
            run(&world, &mut proof, &mut used, |_, _, _| Found::default())
                .map_err(|found| fail(found.violations))?;
        }
    }
    proof.tables = sets.len();
    proof.name_waits(plan, used);
    Ok(proof)
}

/// Into how many worlds launches in this order go, each of them at each place of a period, and how many of each are
/// looked at.
fn turns(order: &[usize], period: u32) -> (u32, u32) {
    let n = order.len() as u32;
    if n.is_multiple_of(period) { (period, n) } else { (n, period) }
}

/// So many launches in this order, over and over, from the first one on.
fn follow(order: &[usize], first: u32, launches: u32) -> Vec<usize> {
    order.iter().cycle().skip(first as usize).take(launches as usize).copied().collect()
}

/// The shortest order of `n`, over and over, in which each comes right behind each, itself included.
fn each_behind_each(n: usize) -> Vec<usize> {
    let others = |a: usize| (a + 1..n).flat_map(move |b| [a, b]);
    (0..n).flat_map(|a| [a].into_iter().chain(others(a))).collect()
}

/// Of `n`, each behind itself.
fn twice_each(n: usize) -> Vec<usize> {
    (0..n).flat_map(|a| [a, a]).collect()
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

/// Accesses from which on regions are looked at on a thread of its own.
const WORTH_A_THREAD: usize = 1 << 12;

/// Regions: which overlap, which accesses they have, and what rule 5 says. `None`: too many overlap.
type Regions = Option<(Vec<Vec<BoxId>>, Vec<races::Groups>, Found)>;

/// Rules 1 to 5 for one choice of tables, or of values of the run-time dimension, in every epoch. `cover` is rule 5.
/// Regions and events are looked at side by side: neither needs the other before rule 1.
pub(super) fn run(
    world: &World<'_>,
    proof: &mut Proof,
    used: &mut BTreeSet<EdgeId>,
    cover: impl Fn(&World<'_>, &[races::Groups], &[Vec<BoxId>]) -> Found + Sync,
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
    found.values.extend(races.suspects.iter().flat_map(|(a, b)| world.boxes.meeting(*a, *b)));
    let (pairs, searched, exclusive) = (races.pairs, races.searched, races.exclusive);
    if !found.violations.is_empty() {
        return Err(found);
    }
    let fold = world.rotation.fold();
    proof.pairs += pairs * fold;
    proof.searched += searched * fold;
    proof.exclusive.extend(exclusive);
    let most = |count: fn(&Class) -> usize| {
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
    /// Who comes before whom; or who waits for ever, by rule 2. `None` if rule 3 is broken: without thresholds that are
    /// sums there is no run to speak of.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_behind_each() {
        for n in 1..10 {
            let order = each_behind_each(n);
            assert_eq!(order.len(), n * n);
            let pairs: BTreeSet<_> =
                order.iter().zip(follow(&order, 1, (n * n) as u32)).map(|(a, b)| (*a, b)).collect();
            assert_eq!(pairs.len(), n * n, "{order:?}");
        }
    }
}
