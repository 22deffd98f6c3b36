//! Which tables and lines say how much there is, and whether a proof may take groups and flags one at a time.

use crate::valid::{coverage::run_time, report::Violation};
use mk_plan::{Access, BinOp, Entity, Expr, Family, Plan, TabId, TableSource};
use std::collections::BTreeSet;

/// Tables that decide how much there is: those that come with a launch, and the rows of blocks.
pub(super) fn count_tables(plan: &Plan) -> BTreeSet<usize> {
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
pub(super) fn flag_tables(plan: &Plan) -> BTreeSet<usize> {
    let mut out = BTreeSet::new();
    for when in plan.families.values().flat_map(|x| &x.accesses).filter_map(|a| a.when.as_ref()) {
        when.visit(&mut |e| {
            let Expr::Table(t, _) = e else { return };
            let table = &plan.tables[*t];
            if table.stored.is_some() && table.source == (TableSource::Runtime { min: 0, max: 1 }) {
                out.insert(t.index());
            }
        });
    }
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
    let access = |a: &Access| format!("access {}", a.operand);
    let accesses =
        x.accesses.iter().map(|a| (access(a), a.region.iter().map(|r| &r.1).collect(), &a.when));
    let waits = x.waits.iter().map(|w| (w.edge.to_string(), vec![&w.count], &w.when));
    let posts = x.posts.iter().map(|p| (p.edge.to_string(), vec![&p.add], &p.when));
    let all = accesses.chain(waits).chain(posts);
    all.map(|(what, of, when): (_, Vec<_>, _)| (what, of.into_iter().chain(when).collect()))
        .collect()
}

/// Whether an expression is the look-up of a count, among these tables: of a table of blocks only rows are.
pub(super) fn is_count(counts: &BTreeSet<usize>, plan: &Plan, e: &Expr) -> bool {
    let Expr::Table(t, index) = e else { return false };
    let rows = index.last() == Some(&Expr::Const(1));
    let blocks = matches!(plan.tables[*t].source, TableSource::Blocks { .. });
    counts.contains(&t.index()) && (rows || !blocks)
}

/// Amounts follow from no group of a block, and from no place: those only choose memory.
pub(super) fn chosen(plan: &Plan) -> Vec<Violation> {
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
            if list.iter().any(|e| e.any(chooses)) {
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
pub(super) fn prefix_of(plan: &Plan, e: &Expr) -> Option<(TabId, Vec<Expr>)> {
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

/// Whether no line that looks up a count has a flag say how much of it there is, or whether it is there: flags only
/// choose memory beside counts, and are samples there.
pub(super) fn apart(plan: &Plan, counts: &BTreeSet<usize>, flags: &BTreeSet<usize>) -> bool {
    let flag = |e: &Expr| matches!(e, Expr::Table(t, _) if flags.contains(&t.index()));
    let count = |e: &Expr| is_count(counts, plan, e) || prefix_of(plan, e).is_some();
    let finds = |list: &[&Expr], found: &dyn Fn(&Expr) -> bool| list.iter().any(|e| e.any(found));
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

/// Every line looks up the count of one group only, and one flag, and prefix sums stand alone in a sum.
pub(super) fn groups(
    plan: &Plan,
    counts: &BTreeSet<usize>,
    flags: &BTreeSet<usize>,
) -> Vec<Violation> {
    let mut out = Vec::new();
    for (id, x) in plan.families.iter() {
        let loops: Vec<&Expr> = x.domain.iter().chain(&x.inner).map(|d| &d.1).collect();
        let mut line = |what: String, list: &mut dyn Iterator<Item = &'_ Expr>| {
            let (mut index, mut flag, mut mixed) = (None::<Vec<Expr>>, None::<Expr>, false);
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
