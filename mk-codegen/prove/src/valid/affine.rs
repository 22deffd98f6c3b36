//! Proofs of a plan that is too large to look at whole, from smaller ones of which every number leads to its own.
//!
//! Assumes that the passes made all of these plans alike, and checks it: they are the same but for numbers, and each
//! number of the plan is where a plane through the smaller ones has it: `base + Σ steps · (along - base)`, the same
//! steps for all. So there is one family of plans, in which every number is affine in how large the plan is; the
//! smaller ones are proved whole, and the plan is a later one of them. What that shows of it, and what is looked at in
//! the plan itself, is in docs/verification.md.

use super::{
    capacity, epochs, meetings, origins, ragged,
    report::{Failure, Proof, Scaled, Violation},
    sample::{OTHERS, Samples, TableKind, sample_tables},
    value::{self, Ranks, well_formed},
    world::World,
};
use mk_plan::{Entity, FamId, Family, Plan, RoleKind};
use serde_json::Value;
use std::{panic::resume_unwind, thread};
use thiserror::Error;

/// A plan, and how to reach a large one from a small one: `steps` times what lies between them.
#[derive(Clone, Debug)]
pub struct Along {
    /// Larger than the base in one respect.
    pub plan: Plan,
    /// How many times.
    pub steps: i64,
}

/// Smaller plans that a plan is affine in.
#[derive(Clone, Debug)]
pub struct Relatives {
    /// The smallest.
    pub base: Plan,
    /// One for each respect in which the plan is larger.
    pub along: Vec<Along>,
}

/// Samples of the base.
const BASE: Samples = Samples { kinds: TableKind::ALL, work: 1 << 19, counts: 4 };

/// Samples of those along: fewer counts, since there are more of them.
const ALONG: Samples = Samples { counts: 1, ..OTHERS };

/// Why a plan is not what its relatives lead to: nothing is known of it then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unlike(String);

/// Whether the numbers of a plan are those to which its relatives lead, and its tasks end at any size.
///
/// # Errors
/// What is not.
pub fn is_affine(plan: &Plan, relatives: &Relatives) -> Result<(), Unlike> {
    let value = |p: &Plan| serde_json::to_value(p).map_err(|e| Unlike(e.to_string()));
    let (full, base) = (value(plan)?, value(&relatives.base)?);
    let along = relatives.along.iter().map(|a| Ok((value(&a.plan)?, a.steps)));
    let along: Vec<(Value, i64)> = along.collect::<Result<_, _>>()?;
    let others: Vec<_> = along.iter().map(|(v, steps)| (v, *steps)).collect();
    alike(&full, &base, &others, &mut String::from("plan"))?;
    in_order(plan)
}

fn alike(full: &Value, base: &Value, by: &[(&Value, i64)], at: &mut String) -> Result<(), Unlike> {
    let differ = |at: &str| Err(Unlike(format!("{at} is not the same at all sizes")));
    let mark = at.len();
    match (full, base) {
        (Value::Number(f), Value::Number(b)) => {
            let (Some(f), Some(b)) = (f.as_i64(), b.as_i64()) else {
                let same = by.iter().all(|(v, _)| *v == base) && full == base;
                return if same { Ok(()) } else { differ(at) };
            };
            let mut want = i128::from(b);
            for (v, steps) in by {
                let Some(v) = v.as_i64() else { return differ(at) };
                want += i128::from(*steps) * (i128::from(v) - i128::from(b));
            }
            if want == i128::from(f) {
                Ok(())
            } else {
                Err(Unlike(format!("{at} is {f}, and the smaller plans lead to {want}")))
            }
        }
        (Value::Array(f), Value::Array(b)) => {
            let lists: Option<Vec<_>> = by.iter().map(|(v, n)| Some((v.as_array()?, *n))).collect();
            let Some(lists) =
                lists.filter(|l| f.len() == b.len() && l.iter().all(|l| l.0.len() == f.len()))
            else {
                return differ(at);
            };
            for (i, (f, b)) in f.iter().zip(b).enumerate() {
                let others: Vec<_> = lists.iter().map(|(l, n)| (&l[i], *n)).collect();
                at.push_str(&format!("[{i}]"));
                alike(f, b, &others, at)?;
                at.truncate(mark);
            }
            Ok(())
        }
        (Value::Object(f), Value::Object(b)) => {
            if f.len() != b.len() {
                return differ(at);
            }
            for (name, f) in f {
                let others: Option<Vec<_>> =
                    by.iter().map(|(v, n)| Some((v.get(name)?, *n))).collect();
                let (Some(b), Some(others)) = (b.get(name), others) else { return differ(at) };
                at.push('.');
                at.push_str(name);
                alike(f, b, &others, at)?;
                at.truncate(mark);
            }
            // As many fields.
            let more = |v: &Value| v.as_object().is_none_or(|v| v.len() != b.len());
            if by.iter().any(|(v, _)| more(v)) { differ(at) } else { Ok(()) }
        }
        _ if full == base && by.iter().all(|(v, _)| *v == base) => Ok(()),
        _ => differ(at),
    }
}

/// The waiter of a word runs after all its posters: families of a role run one after the other on every CTA, so
/// that the first task in the order of families that has not ended waits for nothing, at any size.
fn in_order(plan: &Plan) -> Result<(), Unlike> {
    let place = |id: FamId| {
        let role = plan.roles[plan.families[id].role].kind;
        let part = match role {
            RoleKind::Prologue => 0,
            RoleKind::Epilogue => 2,
            _ => 1,
        };
        (part, id.index())
    };
    for (id, x) in plan.families.iter() {
        for w in &x.waits {
            let posts = |x: &Family| x.posts.iter().any(|p| p.signal == w.signal);
            if let Some((by, _)) =
                plan.families.iter().find(|(by, x)| posts(x) && place(*by) >= place(id))
            {
                return Err(Unlike(format!(
                    "{id} waits by {} for {by}, which does not come before it",
                    w.edge
                )));
            }
        }
    }
    Ok(())
}

/// Proves a plan that is affine in others ([`is_affine`]): all of those, and of the plan itself what stands where loops
/// begin and end.
///
/// # Errors
/// The violations, of the plan or of the first relative that has any.
pub fn verify_affine(plan: &Plan, relatives: &Relatives) -> Result<Proof, Failure> {
    ends(plan)?;
    let whole = |plan: &Plan, samples: Samples| {
        well_formed(plan)?;
        value::sampled(plan, Ranks::Each, samples)
    };
    let (base, others) = thread::scope(|threads| {
        let base = || whole(&relatives.base, BASE);
        let beside = thread::Builder::new().spawn_scoped(threads, base);
        let others: Vec<_> = relatives.along.iter().map(|a| whole(&a.plan, ALONG)).collect();
        let base = match beside {
            Ok(thread) => thread.join().unwrap_or_else(|e| resume_unwind(e)),
            Err(_) => base(),
        };
        (base, others)
    });
    let mut proof = base?;
    for other in others {
        let other = other?;
        proof.pairs += other.pairs;
        proof.searched += other.searched;
        proof.counts += other.counts;
        proof.exhaustive &= other.exhaustive;
        proof.tasks = proof.tasks.max(other.tasks);
        proof.accesses = proof.accesses.max(other.accesses);
        proof.waits_unused.retain(|e| other.waits_unused.contains(e));
        let found = other.waits_used.into_iter().filter(|e| !proof.waits_used.contains(e));
        let found: Vec<_> = found.collect();
        proof.waits_used.extend(found);
    }
    proof.waits_used.sort_unstable();
    proof.scaled = Some(Scaled { relatives: 1 + relatives.along.len() });
    Ok(proof)
}

/// Rule 6 of the plan itself: what needs no unrolling, and bounds, words, operands, look-ups and arithmetic of the
/// tasks at both ends, and in the middle, of every loop, on every rank.
fn ends(plan: &Plan) -> Result<(), Failure> {
    well_formed(plan)?;
    let fail = |violations: Vec<Violation>| Failure::of(plan, violations);
    let fixed = capacity::check(plan);
    if !fixed.is_empty() {
        return Err(fail(fixed));
    }
    plan.check_points().map_err(|list| {
        let list = list.into_iter();
        fail(list.map(|e| Violation::Capacity { place: e.place, message: e.message }).collect())
    })?;
    let period = epochs::period(plan).map_err(&fail)?;
    let mut strangers = origins::check(plan, period);
    strangers.extend(meetings::check(plan, period));
    if !strangers.is_empty() {
        return Err(fail(strangers));
    }
    let kinds = [TableKind::Random(1), TableKind::Max];
    let mut sets: Vec<_> = kinds.iter().map(|k| sample_tables(plan, *k)).collect();
    sets.extend(ragged::greatest(plan));
    for set in 0..sets.len() {
        World::ends(plan, period, &vec![set; period as usize], &sets).map_err(&fail)?;
    }
    Ok(())
}
