//! Mutants that are the same at every point: of those, one is judged.
//!
//! All that judge a plan evaluate its expressions at points. Where no expression of an access looks anything up, its values at all points
//! of its family, on all ranks, in all launches until the plan repeats, are all that they see of it.

use mk_codegen::{
    plan::{Access, Entity, Expr, FamId, Family, Plan, PointError, Points, TableSet, Task},
    valid,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
};

/// What is seen of a family's accesses.
#[derive(PartialEq, Eq, Hash)]
struct Seen {
    family: usize,
    lines: Vec<(Line, Option<Expr>)>,
}

#[derive(PartialEq, Eq, Hash)]
enum Line {
    /// Where something is looked up, or has no value: the line itself.
    Text(String),
    /// The line without its expressions, and two hashes of what they are at all points.
    Values(String, [u64; 2]),
}

/// For each mutant of a plan, the first one that is the same at every point: itself, or one before it.
pub fn first_alike<'p>(original: &Plan, plans: impl Iterator<Item = &'p Plan>) -> Vec<usize> {
    let period = i64::from(valid::period(original).unwrap_or(1));
    let tables = TableSet::new(original, |_, _| Vec::new());
    let mut first = HashMap::new();
    let one = |(i, plan): (usize, &'p Plan)| {
        let rest = |p: &Plan| Plan { families: original.families.clone(), ..p.clone() };
        let changed = |id: &FamId| plan.families[*id] != original.families[*id];
        let changed: Vec<FamId> = original.families.keys().filter(changed).collect();
        // One family's accesses, and nothing else.
        let [family] = changed[..] else { return i };
        let bare = |f: &Family| Family { accesses: Vec::new(), ..f.clone() };
        let [ours, theirs] = [&plan.families[family], &original.families[family]];
        if rest(plan) != *original || bare(ours) != bare(theirs) {
            return i;
        }
        match first.entry(seen(plan, &tables, period, family)) {
            Entry::Occupied(e) => *e.get(),
            Entry::Vacant(e) => *e.insert(i),
        }
    };
    plans.enumerate().map(one).collect()
}

fn seen(plan: &Plan, tables: &TableSet, period: i64, id: FamId) -> Seen {
    let points = Points::new(plan, tables);
    let f = &plan.families[id];
    let looks_up =
        f.domain.iter().map(|d| &d.1).chain(&f.order).chain(f.inner.iter().map(|i| &i.1));
    let looks_up = looks_up.into_iter().any(|e| e.has_table());
    let line = |a: &Access| match looks_up || has_table(a) {
        true => Line::Text(format!("{a:?}")),
        false => values(&points, period, id, a).unwrap_or_else(|_| Line::Text(format!("{a:?}"))),
    };
    // The rank that a message goes to is compared with others as an expression.
    let line = |a: &Access| (line(a), f.leaf.sends().then(|| a.rank.clone()));
    Seen { family: id.index(), lines: f.accesses.iter().map(line).collect() }
}

fn has_table(a: &Access) -> bool {
    let dims = a.region.iter().flat_map(|(base, len)| [base, len]);
    let repeats = a.each.iter().map(|e| &e.extent).chain(&a.when);
    dims.chain([&a.rank, &a.version]).chain(repeats).any(|e| e.has_table())
}

fn values(points: &Points<'_>, period: i64, id: FamId, a: &Access) -> Result<Line, PointError> {
    let mut hashes = [0u64, 1].map(|salt| {
        let mut hash = DefaultHasher::new();
        salt.hash(&mut hash);
        hash
    });
    for epoch in 1..=period {
        for rank in 0..points.plan.mesh.size() as usize {
            for task in points.tasks(id, rank, epoch)? {
                for inner in 0..points.inner(&task)? {
                    points.for_each(
                        &task,
                        inner,
                        a.each.as_ref(),
                        a.when.as_ref(),
                        |at: &Task| {
                            let region = points.region(at, a)?;
                            let to = points.rank(at, &a.rank)?;
                            hashes.iter_mut().for_each(|h| (&at.vars, to, &region).hash(h));
                            Ok::<_, PointError>(())
                        },
                    )?;
                }
            }
        }
    }
    let bare = format!("{} {:?} {} {:?} {}", a.operand, a.mode, a.buffer, a.at, a.region.len());
    Ok(Line::Values(bare, hashes.map(|h| h.finish())))
}
