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

use super::{
    boxes::BoxId,
    coverage::{self, run_time},
    limits::MAX_PAIRS,
    races,
    report::Violation,
    sample::{self, Samples},
    signals,
    world::World,
};
use mk_plan::{
    Access, BinOp, EdgeId, Entity, Expr, FamId, Family, Plan, Point, PointError, Points, TabId,
    TableSet, TableSource, Task, Var,
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

/// Tables that decide how much there is: those that come with a launch, and the rows of blocks.
fn count_tables(plan: &Plan) -> BTreeSet<usize> {
    let mut out = BTreeSet::new();
    let mut add = |e: &Expr| {
        e.visit(&mut |e| {
            if let Expr::Table(t, _) = e {
                let mut t = *t;
                while let TableSource::Prefix { of, .. } = plan.tables[t].source {
                    t = of;
                }
                let counts = |s: &TableSource| {
                    matches!(s, TableSource::Runtime { .. } | TableSource::Blocks { .. })
                };
                if counts(&plan.tables[t].source) {
                    out.insert(t.index());
                }
            }
        });
    };
    for x in plan.families.values() {
        extents(x).into_iter().for_each(&mut add);
        amounts(x).into_iter().flat_map(|line| line.1).for_each(&mut add);
        for a in &x.accesses {
            a.region.iter().filter(|r| prefix_of(plan, &r.0).is_some()).for_each(|r| add(&r.0));
        }
    }
    out
}

/// Tables of 0 and 1 in memory that decide in accesses alone, whether they are there, and where. An entry that says
/// which entry of another table is looked up, or merely where something is, is a number, however few numbers there are.
fn flag_tables(plan: &Plan) -> BTreeSet<usize> {
    let mut out: BTreeSet<usize> = plan
        .tables
        .iter()
        .filter_map(|(id, t)| {
            let flags = t.stored.is_some() && t.source == TableSource::Runtime { min: 0, max: 1 };
            flags.then_some(id.index())
        })
        .collect();
    let mut decides = BTreeSet::new();
    for when in plan.families.values().flat_map(|x| &x.accesses).filter_map(|a| a.when.as_ref()) {
        when.visit(&mut |e| {
            if let Expr::Table(t, _) = e {
                decides.insert(t.index());
            }
        });
    }
    out.retain(|t| decides.contains(t));
    let mut count = |e: &Expr| {
        e.visit(&mut |e| {
            if let Expr::Table(t, _) = e {
                out.remove(&t.index());
            }
        });
    };
    for x in plan.families.values() {
        extents(x).into_iter().for_each(&mut count);
        x.accesses.iter().flat_map(|a| a.region.iter().map(|r| &r.1)).for_each(&mut count);
        x.waits.iter().flat_map(|w| [&w.count].into_iter().chain(&w.when)).for_each(&mut count);
        x.posts.iter().flat_map(|p| [&p.add].into_iter().chain(&p.when)).for_each(&mut count);
        let bases = x.accesses.iter().flat_map(|a| a.region.iter().map(|r| &r.0).chain([&a.rank]));
        for e in bases {
            e.visit(&mut |e| {
                if let Expr::Table(_, index) = e {
                    index.iter().for_each(&mut count);
                }
            });
        }
    }
    out
}

/// The expressions of each line that say how much of it there is, apart from [`extents`].
fn amounts(x: &Family) -> Vec<(String, Vec<&Expr>)> {
    let access = |a: &'_ Access| format!("access {}", a.operand);
    let accesses = x
        .accesses
        .iter()
        .map(|a| (access(a), a.region.iter().map(|r| &r.1).chain(&a.when).collect()));
    let waits = x
        .waits
        .iter()
        .map(|w| (w.edge.to_string(), [&w.count].into_iter().chain(&w.when).collect::<Vec<_>>()));
    let posts = x
        .posts
        .iter()
        .map(|p| (p.edge.to_string(), [&p.add].into_iter().chain(&p.when).collect::<Vec<_>>()));
    accesses.chain(waits).chain(posts).collect()
}

/// Whether an expression is the look-up of a count, among these tables: of a table of blocks only rows are.
fn is_count(counts: &BTreeSet<usize>, plan: &Plan, e: &Expr) -> bool {
    let Expr::Table(t, index) = e else { return false };
    let rows = index.last() == Some(&Expr::Const(1));
    let blocks = matches!(plan.tables[*t].source, TableSource::Blocks { .. });
    counts.contains(&t.index()) && (rows || !blocks)
}

/// Amounts follow from no group of a block, and from no place: those only choose memory.
fn chosen(plan: &Plan) -> Vec<Violation> {
    let chooses = |e: &Expr| match e {
        Expr::Table(t, index) => match plan.tables[*t].source {
            TableSource::Blocks { .. } => index.last() != Some(&Expr::Const(1)),
            TableSource::Places { .. } => true,
            _ => false,
        },
        _ => false,
    };
    let mut out = Vec::new();
    for (id, x) in plan.families.iter() {
        let loops = ("loops".to_string(), extents(x));
        for (what, list) in amounts(x).into_iter().chain([loops]) {
            let mut found = false;
            list.iter().for_each(|e| e.visit(&mut |e| found |= chooses(e)));
            if found {
                let message = "a block's group, or a place, decides how much there is; \
                    only the rows of blocks may (column 1)";
                out.push(Violation::Ragged {
                    place: format!("{id} {:?}: {what}", x.name),
                    message: message.into(),
                });
            }
        }
    }
    out
}

fn extents(x: &Family) -> Vec<&Expr> {
    let each = x.accesses.iter().flat_map(|a| &a.each).map(|e| &e.extent);
    let loops = x.domain.iter().chain(&x.inner).map(|d| &d.1);
    loops.chain(each).collect()
}

/// The look-up of a run-time prefix sum in an expression.
fn prefix_of(plan: &Plan, e: &Expr) -> Option<(TabId, Vec<Expr>)> {
    let mut found = None;
    e.visit(&mut |e| {
        if let Expr::Table(t, index) = e
            && matches!(plan.tables[*t].source, TableSource::Prefix { .. })
            && run_time(plan, e)
        {
            found = Some((*t, index.clone()));
        }
    });
    found
}

/// Tables with as much of everything as there can be: every block full.
pub(super) fn greatest(plan: &Plan) -> Vec<TableSet> {
    let flags = flag_tables(plan);
    let tables: BTreeSet<usize> = count_tables(plan).difference(&flags).copied().collect();
    let most = tables.iter().map(|t| sample::bounds(plan, TabId::new(*t)).2).max().unwrap_or(0);
    sample::uniform(plan, &tables, i64::from(most), (&flags, 1))
}

/// Whether no line that looks up a count has a flag say how much of it there is, or whether it is there: flags only
/// choose memory beside counts, and are samples there.
fn apart(plan: &Plan, counts: &BTreeSet<usize>, flags: &BTreeSet<usize>) -> bool {
    let flag = |e: &Expr| matches!(e, Expr::Table(t, _) if flags.contains(&t.index()));
    let count = |e: &Expr| is_count(counts, plan, e) || prefix_of(plan, e).is_some();
    let finds = |list: &[&Expr], found: &dyn Fn(&Expr) -> bool| {
        let mut any = false;
        list.iter().for_each(|e| e.visit(&mut |e| any |= found(e)));
        any
    };
    plan.families.values().all(|x| {
        let loops = extents(x);
        let bases: Vec<_> = x.accesses.iter().flat_map(|a| &a.region).map(|r| &r.0).collect();
        // The bases of one access are not apart from those of the others: at worst both flags are looked at.
        let counted = finds(&bases, &count) || finds(&loops, &count);
        let fine = |(_, amounts): &(String, Vec<&Expr>)| {
            !(finds(amounts, &flag) && (counted || finds(amounts, &count)))
        };
        !(finds(&loops, &flag) && counted) && amounts(x).iter().all(fine)
    })
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

/// Every line looks up the count of one group only, and one flag, and prefix sums stand alone in a sum.
fn groups(plan: &Plan, counts: &BTreeSet<usize>, flags: &BTreeSet<usize>) -> Vec<Violation> {
    let mut out = Vec::new();
    for (id, x) in plan.families.iter() {
        let loops: Vec<&Expr> = x.domain.iter().chain(&x.inner).map(|d| &d.1).collect();
        let mut line = |what: String, list: &mut dyn Iterator<Item = &'_ Expr>| {
            let mut index: Option<Vec<Expr>> = None;
            let mut flag: Option<Expr> = None;
            let mut mixed = false;
            let mut look = |e: &Expr| {
                e.visit(&mut |e| {
                    if matches!(e, Expr::Table(t, _) if flags.contains(&t.index())) {
                        mixed |= flag.get_or_insert_with(|| e.clone()) != e;
                    } else if let Expr::Table(_, i) = e
                        && (is_count(counts, plan, e) || prefix_of(plan, e).is_some())
                    {
                        mixed |= index.get_or_insert_with(|| i.clone()) != i;
                    }
                });
            };
            list.for_each(&mut look);
            loops.iter().for_each(|e| look(e));
            if mixed {
                let message = "looks up the counts of two groups, or two flags; a proof for every table takes one of \
                    each at a time";
                out.push(Violation::Ragged {
                    place: format!("{id} {:?}: {what}", x.name),
                    message: message.into(),
                });
            }
        };
        for a in &x.accesses {
            let region = a.region.iter().flat_map(|r| [&r.0, &r.1]);
            let each = a.each.iter().map(|e| &e.extent);
            line(format!("access {}", a.operand), &mut region.chain(&a.when).chain(each));
        }
        for w in &x.waits {
            line(w.edge.to_string(), &mut [&w.count].into_iter().chain(&w.when));
        }
        for p in &x.posts {
            line(p.edge.to_string(), &mut [&p.add].into_iter().chain(&p.when));
        }
        for a in &x.accesses {
            for (base, _) in a.region.iter().filter(|r| prefix_of(plan, &r.0).is_some()) {
                if terms(plan, base) != Some(1) {
                    out.push(Violation::Ragged {
                        place: format!("{id} {:?}: access {}", x.name, a.operand),
                        message: format!(
                            "`{}` is not one prefix sum plus something",
                            plan.text(Some(x), a.each.as_ref(), base)
                        ),
                    });
                }
            }
        }
    }
    out
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

/// Prefix sums that are terms of a sum; `None` if one stands elsewhere.
fn terms(plan: &Plan, e: &Expr) -> Option<u32> {
    match e {
        Expr::Bin(BinOp::Add, a, b) => Some(terms(plan, a)? + terms(plan, b)?),
        Expr::Bin(BinOp::Sub, a, b) if prefix_of(plan, b).is_none() => terms(plan, a),
        Expr::Table(..) if prefix_of(plan, e).is_some() => Some(1),
        e if prefix_of(plan, e).is_some() => None,
        _ => Some(0),
    }
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
    a: &mk_plan::Access,
    at: &mk_plan::Task,
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
        let text = "plan \"p\"\nmesh world=2\ntarget sm_90a\ntable tab0 \"n\" [1] runtime 0..=9\nsignal sig0 \"s\" [1]\nrole role0 compute ctas 1\nfamily fam0 \"f\" role0 {\n  leaf signal\n  inner k in 3\n  post e0 sig0[0] @ rank += 1 by lead after program_order scope gpu at inner each i in 1000 + k when tab0[0] < 0\n  post e1 sig0[0] @ rank += tab0[0] by lead after program_order scope gpu at end\n}\n";
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
