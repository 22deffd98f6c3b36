//! Plans with tables of a launch, too: proved at the bound, and at some other values.
//!
//! Tasks, posts and counts of waits are the same for all values, or nothing is proved: a launch with fewer rows does
//! what one of the bound does in which the others go to no group, but for accesses to rows that it does not have. So
//! the bound is looked at as a plan without the dimension is, other values with fewer tables, and launches of different
//! values behind each other.

use super::super::{
    report::{Failure, Found, Proof, Sampled, Violation},
    sample::{OTHERS, Samples, TableKind, sample_tables},
    value::{self, Ranks},
    world::{Window, World},
};
use mk_plan::{DimId, EdgeId, Expr, Plan, Points, Space, TableSet};
use std::collections::BTreeSet;

/// Most values that are looked at.
const MOST: usize = 7;

/// Proves a plan at some values of its run-time dimension, the greatest one among them.
pub(super) fn verify(
    plan: &Plan,
    (dim, max): (DimId, i64),
    period: u32,
    ranks: Ranks,
) -> Result<Proof, Failure> {
    let at = |value: i64| plan.at(dim, value as i32);
    unchanging(plan, dim)?;
    let mut proof = value::sampled(&at(max), ranks, Samples::ALL)
        .map_err(|failure| failure.with(plan, dim, max as i32))?;
    let values = values(plan, dim, max);
    for value in values.iter().filter(|v| **v != max) {
        let found = value::sampled(&at(*value), ranks, OTHERS)
            .map_err(|failure| failure.with(plan, dim, *value as i32))?;
        proof.counts += found.counts;
        proof.exhaustive &= found.exhaustive;
        proof.exclusive.extend(found.exclusive);
    }
    let plans: Vec<Plan> = values.iter().map(|v| at(*v)).collect();
    let mut used: BTreeSet<_> = proof.waits_used.iter().copied().collect();
    in_turns(plan, &plans, period, &mut proof, &mut used)?;
    proof.name_waits(plan, used);
    let name = plan.dims[dim].name.clone();
    proof.sampled = Some(Sampled { name, max, values });
    Ok(proof)
}

/// What makes tasks, waits and posts, and their order, does not name the dimension.
fn unchanging(plan: &Plan, dim: DimId) -> Result<(), Failure> {
    let names = |e: &Expr| e.names_dim(dim);
    for (id, x) in plan.families.iter() {
        let loops = x.domain.iter().map(|d| &d.1).chain(x.inner.iter().map(|i| &i.1));
        let mut all: Vec<&Expr> = loops.chain(&x.order).collect();
        all.extend(x.waits.iter().map(|w| &w.count));
        for p in &x.posts {
            all.extend([&p.add, &p.rank]);
            all.extend(p.index.iter().chain(&p.when).chain(p.each.iter().map(|e| &e.extent)));
        }
        if let Some(e) = all.into_iter().find(|e| names(e)) {
            let text = plan.text(Some(x), None, e);
            let message = format!(
                "`{text}` depends on {}: with tables of a launch tasks, posts and counts of waits may not",
                plan.dims[dim].name
            );
            return Err(refused(plan, format!("{id} {:?}", x.name), message));
        }
    }
    for (id, b) in plan.buffers.iter() {
        if b.space != Space::In
            && b.space != Space::Out
            && b.shape.iter().chain(&b.pitch).any(names)
        {
            let message = format!(
                "has a shape that depends on {}: with tables of a launch only the caller's tensors may",
                plan.dims[dim].name
            );
            return Err(refused(plan, format!("{id} {:?}", b.name), message));
        }
    }
    match plan.signals.iter().find(|(_, s)| s.shape.iter().any(names)) {
        Some((id, s)) => {
            let message = "words count over launches of all values: use the bound".into();
            Err(refused(plan, format!("{id} {:?}", s.name), message))
        }
        None => Ok(()),
    }
}

fn refused(plan: &Plan, place: String, message: String) -> Failure {
    Failure::of(plan, vec![Violation::RunTime { place, message }])
}

/// Both ends, few more than there are ranks, and beside what expressions of the dimension compare with.
fn values(plan: &Plan, dim: DimId, max: i64) -> Vec<i64> {
    let mut steps = BTreeSet::new();
    for x in plan.families.values() {
        for e in x.expressions().into_iter().filter(|e| e.names_dim(dim)) {
            e.visit(&mut |e| {
                if let Expr::Const(c) = e
                    && *c > 1
                {
                    steps.insert(i64::from(*c));
                }
            });
        }
    }
    let world = i64::from(plan.mesh.size());
    let whole = steps.iter().rev().map(|n| n * world + 1);
    let least = i64::from(plan.dims[dim].least());
    let wanted = [max, least, 1, world + 1, max / 2 + 1, max - 1].into_iter().chain(whole);
    let mut list = Vec::new();
    for value in wanted.filter(|v| (least..=max).contains(v)) {
        if list.len() < MOST && !list.contains(&value) {
            list.push(value);
        }
    }
    list
}

/// Launches of different values behind each other: order and words. That each reads what it has written itself is shown
/// value by value.
fn in_turns(
    plan: &Plan,
    plans: &[Plan],
    period: u32,
    proof: &mut Proof,
    used: &mut BTreeSet<EdgeId>,
) -> Result<(), Failure> {
    let kinds = [TableKind::Random(4), TableKind::Max, TableKind::Random(5)];
    // The bound between others, and each value behind several.
    let others = (1..plans.len()).flat_map(|i| [i, plans.len() - i, 0]);
    let turns: Vec<usize> = [0].into_iter().chain(others).collect();
    let of = |(turn, i): (usize, &usize)| -> (usize, TableSet) {
        (*i, sample_tables(&plans[*i], kinds[turn % kinds.len()]))
    };
    let sets: Vec<(usize, TableSet)> = turns.iter().enumerate().map(of).collect();
    let points: Vec<_> = sets.iter().map(|(i, set)| Points::noting(&plans[*i], set)).collect();
    let n = points.len();
    let n = n.next_multiple_of(period.max(1) as usize);
    let later = n as u32;
    let launches = later + proof.epochs - period;
    let epochs: Vec<usize> = (0..launches as usize).map(|e| e % n % points.len()).collect();
    let fail = |violations: Vec<Violation>| Failure::of(plan, violations);
    let mut world = World::of(plan, period, &epochs, &points).map_err(fail)?;
    world.window = Window { later, near: 0, back: proof.epochs - 1 };
    let (tasks, accesses) = (proof.tasks, proof.accesses);
    value::run(&world, proof, used, |_, _, _| Found::default()).map_err(|f| fail(f.violations))?;
    (proof.tasks, proof.accesses) = (tasks.max(proof.tasks), accesses.max(proof.accesses));
    Ok(())
}
