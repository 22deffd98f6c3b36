//! Rule 5 for run-time tables: what a proof for one set of tables says about all of them.
//!
//! *Groups are independent.* Every line that depends on counts (in lengths, conditions, extents, amounts) looks up the
//! count of one group, and a region that begins at a prefix sum is `off[g] + rest` with `0 <= rest` and
//! `rest + len <= round_up(count[g])`. The latter is shown for every count that the table allows, at every point. So a
//! group's regions stay in the group's rows, whatever the other groups' counts are, and different groups share nothing.
//!
//! *Within a group* disjointness, cover, and the sums of rule 3 depend on that group's count alone. They are checked
//! for every count: tables in which all groups have count c check all groups at c at once.
//!
//! Counts are enumerated up to [`sample::MAX_WORK`] task visits, or as much work on tables, words and repetitions;
//! beyond that a spread of counts is taken, and the proof says so. Tables that only choose *which* memory is read (a
//! source rank, a row) are not counts. They are sampled.
//!
//! *Blocks* are groups of their own: of the rows of a block nothing is used but that they are at most as many as it has
//! room for, so that what is shown for any rows of each block holds for those that follow from the counts. The group of
//! a block chooses memory; it decides no amount. Places choose memory, too, in rows that are there.
//!
//! *Flags* are entries of 0 or 1 that say whether an access is there, or choose its memory. A line looks up one of
//! them, and everything is shown for each count with all flags 0, and with all 1: a task's accesses depend on no other
//! one. Where flags choose memory, and nothing else, beside counts, both are shown at the greatest count, and by turns
//! at others. Samples mix them.

mod lines;

use super::{
    boxes::BoxId,
    coverage,
    limits::MAX_PAIRS,
    races,
    report::Violation,
    sample::{self, Samples},
    signals,
    world::World,
};
use lines::{apart, chosen, count_tables, flag_tables, groups, is_count, prefix_of};
use mk_plan::{
    Access, EdgeId, Entity, Expr, FamId, Plan, Point, PointError, Points, TabId, TableSet, Task,
    Var,
};
use std::collections::{BTreeSet, HashMap};

/// Entries of tables, signal words and repetitions of lines that take as long as one visit, at most.
const PER_VISIT: u64 = 32;

/// What was shown.
#[derive(Default)]
pub(super) struct Shown {
    pub violations: Vec<Violation>,
    pub counts: u64,
    pub exhaustive: bool,
}

/// Tables with as much of everything as there can be: every block full.
pub(super) fn greatest(plan: &Plan) -> Vec<TableSet> {
    let flags = flag_tables(plan);
    let tables: BTreeSet<usize> = count_tables(plan).difference(&flags).copied().collect();
    let most = tables.iter().map(|t| sample::bounds(plan, TabId::new(*t)).2).max().unwrap_or(0);
    sample::uniform(plan, &tables, i64::from(most), (&flags, 1))
}

/// Shows rule 5, and the sums of rule 3, for every count, as far as so many visits of tasks go.
pub(super) fn check(plan: &Plan, period: u32, samples: &Samples) -> Shown {
    let flags = flag_tables(plan);
    let tables: BTreeSet<usize> = count_tables(plan).difference(&flags).copied().collect();
    let violations = groups(plan, &tables, &flags).into_iter().chain(chosen(plan)).collect();
    let mut shown = Shown { violations, ..Shown::default() };
    if tables.is_empty() || !shown.violations.is_empty() {
        return shown;
    }
    let ids: Vec<TabId> = tables.iter().map(|t| TabId::new(*t)).collect();
    let range = |id: TabId| sample::bounds(plan, id);
    let low = ids.iter().map(|t| range(*t).1).min().unwrap_or(0);
    let high = ids.iter().map(|t| range(*t).2).max().unwrap_or(0);
    let wanted = (i64::from(high) - i64::from(low) + 1) as u64;
    let by_turns = apart(plan, &tables, &flags);
    let mut afforded_at = 0u64;
    let mut step = 1i64;
    let mut c = i64::from(high);
    // From the greatest count down, which costs most: the first one decides how many can be afforded, unless a later
    // one costs twice as much.
    while c >= i64::from(low) {
        let both = shown.counts == 0 || !by_turns;
        let mut sets = Vec::new();
        for flag in [0, 1] {
            let turn = both || shown.counts % 2 == u64::from(flag == 1);
            if (flags.is_empty() && flag == 0) || (!flags.is_empty() && turn) {
                sets.extend(sample::uniform(plan, &tables, c, (&flags, flag)));
            }
        }
        // Once, behind what bounds the work.
        let apart = |spent| match shown.counts {
            0 => words(plan, &tables, &sets[0]).map(|()| spent),
            _ => Ok(spent),
        };
        let spent = sets.iter().try_fold(0, |spent, set| Ok(spent + one(plan, period, set)?));
        match spent.and_then(apart) {
            Ok(spent) if spent >= 2 * afforded_at => {
                afforded_at = spent.max(1);
                let afforded = (samples.work / afforded_at).max(samples.counts);
                step = i64::try_from(wanted.div_ceil(afforded)).unwrap_or(i64::MAX).max(1);
            }
            Ok(_) => {}
            Err(v) => {
                shown.violations = v;
                return shown;
            }
        }
        shown.counts += 1;
        // An odd step meets every remainder of a block size.
        c = if step > 1 && c > i64::from(low) {
            (c - (step | 1)).max(i64::from(low))
        } else {
            c - 1
        };
    }
    shown.exhaustive = step == 1 && ids.len() == 1;
    shown
}

/// One uniform count: containment, cover, and sums. Returns the work, in visits of tasks and accesses.
fn one(plan: &Plan, period: u32, set: &TableSet) -> Result<u64, Vec<Violation>> {
    let sets = [set.clone()];
    let epochs = vec![0; period as usize];
    // First of all this bounds the work.
    let world = World::new(plan, period, &epochs, &sets)?;
    let contained = contained(plan, set)?;
    let groups = races::groups(&world);
    let limit = MAX_PAIRS;
    let Some(overlaps) = world.boxes.overlaps(limit) else {
        return Err(vec![Violation::Limit { what: "overlapping regions".into(), limit }]);
    };
    let mut out = signals::check(&world);
    let tables = vec![set; world.classes.len()];
    out.extend(coverage::check(&world, &groups, &overlaps, &tables));
    out.extend(twice(&world, &groups, &overlaps));
    let visits = world.classes.iter().map(|c| c.tasks.len() + c.accs.len()).sum::<usize>() as u64;
    if !out.is_empty() {
        return Err(out);
    }
    let entries: usize = plan.tables.keys().map(|t| sample::bounds(plan, t).0).sum();
    let flat = entries * world.ranks + world.words.total * world.classes.len();
    let looked_at = repetitions(&Points::new(plan, set), period)
        .map_err(|e| vec![Violation::Point(e)])?
        .saturating_add(flat as u64);
    Ok((contained + visits).max(looked_at / PER_VISIT))
}

/// Repetitions of all lines, of those that come to nothing, too.
fn repetitions(points: &Points<'_>, period: u32) -> Result<u64, PointError> {
    let mut total = 0u64;
    for (id, x) in points.plan.families.iter() {
        let accesses = x.accesses.iter().map(|a| (a.at, &a.each));
        let waits = x.waits.iter().map(|w| (w.at, &w.each));
        let lines: Vec<_> =
            accesses.chain(waits).chain(x.posts.iter().map(|p| (p.at, &p.each))).collect();
        for (rank, epoch) in
            (0..points.plan.mesh.size() as usize).flat_map(|r| (1..=period).map(move |e| (r, e)))
        {
            for mut task in points.tasks(id, rank, i64::from(epoch))? {
                let inner = points.inner(&task)?;
                for (at, each) in &lines {
                    for i in 0..if *at == Point::Inner { inner } else { 1 } {
                        task.vars[usize::from(Var::INNER.0)] = i;
                        let n = each.as_ref().map_or(Ok(1), |e| points.eval(&task, &e.extent))?;
                        total = total.saturating_add(n.max(1) as u64);
                    }
                }
            }
        }
    }
    Ok(total)
}

/// Overlapping writes of one stamp.
fn twice(world: &World<'_>, groups: &[races::Groups], overlaps: &[Vec<BoxId>]) -> Vec<Violation> {
    let mut work = 0u64;
    for (c, class) in world.classes.iter().enumerate() {
        let epoch = world.class_of.iter().position(|x| *x == c).unwrap_or(0) as u32 + 1;
        for (i, list) in overlaps.iter().enumerate() {
            let gi = groups[c].get(i as BoxId);
            for &j in list.iter().filter(|j| **j as usize >= i) {
                let gj = groups[c].get(j);
                work += gi.writers as u64 * gj.writers as u64;
                if work > MAX_PAIRS {
                    return vec![Violation::Limit {
                        what: "overlapping writes".into(),
                        limit: MAX_PAIRS,
                    }];
                }
                for (n, &x) in gi.accs[..gi.writers].iter().enumerate() {
                    let from = if i == j as usize { n + 1 } else { 0 };
                    for &y in &gj.accs[from..gj.writers.max(from)] {
                        let (a, b) = (&class.accs[x as usize], &class.accs[y as usize]);
                        if let Some(v) = races::twice(world, epoch, a, b) {
                            return vec![v];
                        }
                    }
                }
            }
        }
    }
    Vec::new()
}

/// Rank, signal and index.
type Word = (i64, usize, Vec<i64>);

/// What is posted to a word, and awaited there, follows from the count of one group, whatever lines say it.
fn words(plan: &Plan, counts: &BTreeSet<usize>, set: &TableSet) -> Result<(), Vec<Violation>> {
    let group = |list: &mut dyn Iterator<Item = &Expr>| {
        let mut index: Option<Vec<Expr>> = None;
        for e in list {
            e.visit(&mut |e| {
                if let Expr::Table(_, i) = e
                    && (is_count(counts, plan, e) || prefix_of(plan, e).is_some())
                {
                    index.get_or_insert_with(|| i.clone());
                }
            });
        }
        index
    };
    let points = Points::new(plan, set);
    let mut known: HashMap<Word, (Vec<i64>, EdgeId)> = HashMap::new();
    let own = Expr::Var(Var::RANK);
    for (id, x) in plan.families.iter() {
        // A word counts up whether or not a task waits for it.
        let waits = x.waits.iter().map(|w| {
            (w.edge, w.signal, &w.index, &own, w.each.as_ref(), group(&mut [&w.count].into_iter()))
        });
        let posts = x.posts.iter().map(|p| {
            let inner = x.inner.iter().filter(|_| p.at == Point::Inner);
            let loops = x.domain.iter().chain(inner).map(|d| &d.1);
            let extent = p.each.as_ref().map(|e| &e.extent);
            let list = &mut loops.chain(extent).chain([&p.add]).chain(&p.when);
            (p.edge, p.signal, &p.index, &p.rank, p.each.as_ref(), group(list))
        });
        for (edge, signal, index, rank, each, group) in waits.chain(posts) {
            let Some(group) = group else { continue };
            for on in 0..plan.mesh.size() as usize {
                for task in points.tasks(id, on, 1).map_err(|e| vec![Violation::Point(e)])? {
                    let mut mixed = None;
                    // Also where the condition does not hold: with other counts it may. What has no value there is
                    // nobody's word.
                    let look = |here: &Task| -> Result<(), PointError> {
                        let eval = |list: &[Expr]| {
                            list.iter().map(|e| points.eval(here, e)).collect::<Result<Vec<_>, _>>()
                        };
                        if let (Ok(word), Ok(to), Ok(of)) =
                            (eval(index), points.eval(here, rank), eval(&group))
                        {
                            let first = known
                                .entry((to, signal.index(), word))
                                .or_insert_with(|| (of.clone(), edge));
                            if first.0 != of {
                                mixed = Some(first.1);
                            }
                        }
                        Ok(())
                    };
                    let _ = points.for_each(&task, 0, each, None, look);
                    if let Some(other) = mixed {
                        return Err(vec![Violation::Ragged {
                            place: format!("{id} {:?}: {edge}", x.name),
                            message: format!(
                                "its word follows from the counts of two groups, here and at {other}; a proof for \
                                 every table takes one group at a time"
                            ),
                        }]);
                    }
                }
            }
        }
    }
    Ok(())
}

/// `off[g] <= base` and `base + len <= off[g + 1]` for every region that begins at a prefix sum.
fn contained(plan: &Plan, set: &TableSet) -> Result<u64, Vec<Violation>> {
    let points = Points::new(plan, set);
    let mut visits = 0u64;
    for (id, x) in plan.families.iter() {
        let ragged: Vec<_> = x
            .accesses
            .iter()
            .filter(|a| a.region.iter().any(|r| prefix_of(plan, &r.0).is_some()))
            .collect();
        if ragged.is_empty() {
            continue;
        }
        for rank in 0..plan.mesh.size() as usize {
            for task in points.tasks(id, rank, 1).map_err(|e| vec![Violation::Point(e)])? {
                for a in &ragged {
                    visits += 1;
                    let inner = if a.at == Point::Inner {
                        points.inner(&task).map_err(|e| vec![Violation::Point(e)])?
                    } else {
                        1
                    };
                    for i in 0..inner {
                        points
                            .for_each(&task, i, a.each.as_ref(), a.when.as_ref(), |at| {
                                inside(&points, id, a, at, set)
                            })
                            .map_err(|e: Bad| vec![e.0])?;
                    }
                }
            }
        }
    }
    Ok(visits)
}

/// A violation on its way out of a loop over points.
struct Bad(Violation);

impl From<PointError> for Bad {
    fn from(e: PointError) -> Bad {
        Bad(Violation::Point(e))
    }
}

fn inside(
    points: &Points<'_>,
    id: FamId,
    a: &Access,
    at: &Task,
    set: &TableSet,
) -> Result<(), Bad> {
    let plan = points.plan;
    let Some(region) = points.region(at, a)? else { return Ok(()) };
    for ((base, _), (from, len)) in a.region.iter().zip(&region.dims) {
        let Some((table, index)) = prefix_of(plan, base) else { continue };
        let Some(g) = index.first() else { continue };
        let g = points.eval(at, g)?;
        let off = set.values(at.rank(), table);
        let bounds = usize::try_from(g).ok().and_then(|g| Some((*off.get(g)?, *off.get(g + 1)?)));
        let ok =
            bounds.is_some_and(|(lo, hi)| i64::from(lo) <= *from && from + len <= i64::from(hi));
        if !ok {
            let x = &plan.families[id];
            let (lo, hi) = bounds.unwrap_or_default();
            return Err(Bad(Violation::Ragged {
                place: format!(
                    "{id} {:?} {:?} on rank {}: access {}",
                    x.name,
                    at.domain(),
                    at.rank(),
                    a.operand
                ),
                message: format!(
                    "with {} rows in each group, [{from} : {len}] leaves the rows of group {g}, which are {lo} to {hi}",
                    hi - lo
                ),
            }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_is_work() {
        let text = "\
plan \"p\"
mesh world=2
target sm_90a
table tab0 \"n\" [1] runtime 0..=9
signal sig0 \"s\" [1]
role role0 compute ctas 1
family fam0 \"f\" role0 {
  leaf signal
  inner k in 3
  post e0 sig0[0] @ rank += 1 by lead after program_order scope gpu at inner each i in 1000 + k when tab0[0] < 0
  post e1 sig0[0] @ rank += tab0[0] by lead after program_order scope gpu at end
}
";
        let plan: Plan = text.parse().expect("a plan");
        let sets = sample::uniform(&plan, &BTreeSet::new(), 0, (&BTreeSet::new(), 0));
        let [set] = sets.try_into().expect("one set");
        let lines = 2 * (3 * 1000 + 3 + 1);
        assert_eq!(repetitions(&Points::new(&plan, &set), 1), Ok(lines));
        assert_eq!(repetitions(&Points::new(&plan, &set), 2), Ok(2 * lines));
        // Two entries, and two words.
        assert_eq!(one(&plan, 1, &set), Ok((lines + 4) / PER_VISIT));
    }
}
