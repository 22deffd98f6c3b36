//! Plans with a run-time dimension, proved for all its values.
//!
//! The dimension comes with each launch: ranks agree on it within one, and the next launch may have another value. One
//! proof holds for all of them, with regions as exact functions of the dimension (`spans/`):
//!
//! - Tasks, waits and posts are the same for all values (`skeleton.rs`). So are the sums of rule 3. The run that
//!   decides deadlock, and so do back-pressure and internal edges in it, takes an access to be there if it is for some
//!   value: that holds agents back more often, and no step ever disables another one.
//! - Two accesses of one epoch are a pair if they overlap for some value (`overlaps.rs`). Two of different epochs are a
//!   pair whatever the values of the two launches are.
//! - An edge inside a task orders a pair only if something passes along it for all values for which the access is there
//!   (`within.rs`); in tasks between the two, for all values.
//! - Bounds, sizes of operands and cover are decided at the breakpoints of these functions (`regions.rs`, `cover.rs`):
//!   ends of their linear pieces, and where two of them cross.
//!
//! A division of the dimension gives a class of values for each remainder, and functions that are linear within a
//! class. Where tasks, waits or posts do depend on the dimension, its values are divided into *cells* in which they do
//! not, and all sequences of cells are proved, one for each epoch. What is neither is refused.
//!
//! With tables of a launch, too, values are sampled: see `tables.rs`.
//!
//! When something is not proved, the plan is verified for values with which that may go wrong, and the counterexample
//! is one of those. Nothing here is therefore trusted to find the cause, only to find all there are.

mod cover;
mod skeleton;
mod tables;

use super::{
    capacity,
    cells::{Cell, Halt, Shapes, undecided},
    epochs,
    report::{Failure, Found, OverValues, Proof, Violation},
    spans::{
        LiveId,
        domain::{Domain, Places, Run},
        function::{self, Functions, Stop},
        meet,
    },
    unroll::MAX_ELEMENTS,
    value::{self, Ranks, verify_value},
    world::World,
};
use mk_plan::{DimId, Plan, Points, TableSet, TableSource};
use std::collections::BTreeSet;

/// Most classes of remainders, over all cells.
pub const MAX_RUNS: usize = 1 << 10;
/// Most values that are looked at one by one, where an expression is not linear in pieces.
pub const MAX_VALUES: i64 = 1 << 10;
/// Most sequences of cells.
pub const MAX_SEQUENCES: usize = 64;

/// What came of looking at some cells together: what is to be done about which.
enum Trouble {
    Halt(usize, Halt),
    /// Violations, and values of the dimension with which they may show.
    Found(Found),
}

/// Proves a plan for all values of its run-time dimension.
pub(super) fn verify(plan: &Plan, dim: DimId, max: i64, ranks: Ranks) -> Result<Proof, Failure> {
    let name = plan.dims[dim].name.clone();
    let refuse = |violations| Failure::of(plan, violations);
    let dims = plan.dims.values().filter(|d| d.runtime_max.is_some()).count();
    if dims > 1 {
        let message = "is one of several run-time dimensions, and a proof is about one".into();
        return Err(refuse(vec![undecided(format!("{dim} {name:?}"), message)]));
    }
    let fixed = capacity::check(plan);
    if !fixed.is_empty() {
        return Err(refuse(fixed));
    }
    let period = epochs::period(plan).map_err(refuse)?;
    if plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. })) {
        return tables::verify(plan, (dim, max), period, ranks);
    }
    let mut cells = vec![Domain::up_to(max)];
    // Why there is more than one.
    let mut divided = String::new();
    loop {
        let too_many = cells.len().checked_pow((period + 2).max(2 * period));
        if too_many.is_none_or(|n| n > MAX_SEQUENCES) {
            let message = format!(
                "depends on {name} in {} ways or more, and launches of all of them may follow each other: let regions \
                 depend on it, and not tasks, waits or posts",
                cells.len()
            );
            return Err(refuse(vec![undecided(divided, message)]));
        }
        let trouble = match attempt(plan, dim, period, &cells, ranks) {
            Ok(mut proof) => {
                proof.values = Some(OverValues { name, max, cells: cells.len() });
                return Ok(proof);
            }
            Err(trouble) => trouble,
        };
        match trouble {
            Trouble::Halt(cell, Halt::Stop { stop: Stop::Refine(factor), place, text }) => {
                let others: usize = cells.iter().map(|c| c.runs.len()).sum();
                let left = MAX_RUNS.saturating_sub(others - cells[cell].runs.len());
                cells[cell] = match cells[cell].refined(factor, left) {
                    Some(refined) => refined,
                    None => points(&cells[cell], &place, &text, &name).map_err(refuse)?,
                };
            }
            Trouble::Halt(cell, Halt::Stop { stop: Stop::Curved, place, text }) => {
                cells[cell] = points(&cells[cell], &place, &text, &name).map_err(refuse)?;
            }
            Trouble::Halt(cell, Halt::Split { parts, place, text }) => {
                divided = format!("{place}: `{text}`");
                let first: usize = cells.iter().take(cell).map(|c| c.runs.len()).sum();
                let old = cells.remove(cell);
                cells.extend(divide(&old, first as u32, parts));
            }
            Trouble::Halt(_, Halt::Stop { stop: Stop::Work, place, .. }) => {
                let what = format!("operations of expressions, with {place}");
                return Err(refuse(vec![Violation::Limit { what, limit: function::MAX_WORK }]));
            }
            Trouble::Halt(_, Halt::Stop { stop: Stop::At(value), place, text }) => {
                at_values(plan, dim, [value], max)?;
                let message = format!("`{text}` is wrong with {name} = {value}");
                return Err(refuse(vec![undecided(place, message)]));
            }
            Trouble::Halt(_, Halt::Broken(violations)) => {
                if violations.iter().any(|v| !matches!(v, Violation::Limit { .. })) {
                    at_values(plan, dim, [max, 1], max)?;
                }
                return Err(refuse(violations));
            }
            Trouble::Found(found) => {
                at_values(plan, dim, found.values, max)?;
                // Each of these values is right by itself: what is wrong is between launches, or not shown to be right.
                return Err(refuse(found.violations));
            }
        }
    }
}

/// Verifies a plan with single values, the greatest first.
fn at_values(
    plan: &Plan,
    dim: DimId,
    values: impl IntoIterator<Item = i64>,
    max: i64,
) -> Result<(), Failure> {
    /// Most values that are tried.
    const MOST: usize = 24;
    let mut values: BTreeSet<i64> = values.into_iter().filter(|v| (1..=max).contains(v)).collect();
    if values.len() > MOST {
        let all: Vec<i64> = values.iter().copied().collect();
        values = (0..MOST).map(|i| all[i * (all.len() - 1) / (MOST - 1)]).collect();
    }
    for value in values.into_iter().rev() {
        let value = value as i32;
        verify_value(&plan.at(dim, value)).map_err(|failure| failure.with(plan, dim, value))?;
    }
    Ok(())
}

/// Each value by itself, where expressions are no lines.
fn points(cell: &Domain, place: &str, text: &str, name: &str) -> Result<Domain, Vec<Violation>> {
    let whole = cell.runs.iter().all(|r| r.n == 1);
    if cell.len() > MAX_VALUES || whole {
        return Err(vec![undecided(
            place.into(),
            format!(
                "`{text}` is not linear in {name} piece by piece, for which all values can be proved together: use \
                 sums, multiples, min, max, select, and / and % by small numbers; or let {name} be at most \
                 {MAX_VALUES}, up to which each value is looked at"
            ),
        )]);
    }
    let runs = cell.runs.iter().flat_map(|r| (0..r.n).map(|k| r.part(k, k))).collect();
    Ok(Domain { runs })
}

/// Parts of a cell, given by places of its runs, of which `first` is the first; halves if there are none.
fn divide(cell: &Domain, first: u32, parts: Vec<Vec<Places>>) -> Vec<Domain> {
    if parts.is_empty() {
        let middle = cell.first() + (cell.last() - cell.first()) / 2;
        let halves = cell.halves(middle);
        return halves.into_iter().filter(|d| !d.runs.is_empty()).collect();
    }
    let run = |p: &Places| cell.runs[(p.run - first) as usize].part(p.lo, p.hi);
    let part = |list: Vec<Places>| Domain { runs: list.iter().map(run).collect() };
    parts.into_iter().map(part).collect()
}

/// Looks at all cells together.
fn attempt(
    plan: &Plan,
    dim: DimId,
    period: u32,
    cells: &[Domain],
    ranks: Ranks,
) -> Result<Proof, Trouble> {
    let runs: Vec<Run> = cells.iter().flat_map(|c| c.runs.iter().copied()).collect();
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let plans: Vec<Plan> = cells.iter().map(|c| plan.at(dim, c.last() as i32)).collect();
    let points: Vec<Points<'_>> = plans.iter().map(|p| Points::new(p, &tables)).collect();
    let mut first = 0u32;
    let mut made = Vec::new();
    for (i, (domain, points)) in cells.iter().zip(&points).enumerate() {
        let numbered = domain.runs.iter().zip(first..);
        let places = numbered.map(|(r, run)| Places { run, lo: 0, hi: r.n - 1 }).collect();
        first += domain.runs.len() as u32;
        let mut cell = Cell {
            points,
            functions: Functions { points, dim, runs: &runs, work: Default::default() },
            places,
            whole: i as LiveId + 1,
            shapes: Vec::new(),
            period,
        };
        let prepared = shapes(&cell).and_then(|shapes| {
            cell.shapes = shapes;
            skeleton::check(&cell)
        });
        prepared.map_err(|halt| Trouble::Halt(i, halt))?;
        made.push(cell);
    }
    let epochs = (period + 2).max(2 * period) as usize;
    let mut proof = Proof {
        plan: plan.name.clone(),
        period,
        epochs: epochs as u32,
        tables: 1,
        ..Proof::default()
    };
    let mut used = BTreeSet::new();
    for sequence in 0..made.len().pow(epochs as u32) {
        let of_epoch: Vec<usize> =
            (0..epochs as u32).map(|e| sequence / made.len().pow(e) % made.len()).collect();
        let mut look = |world: World<'_>| {
            let shapes: Vec<&Shapes> = (0..world.classes.len())
                .filter_map(|c| world.class_of.iter().position(|x| *x == c))
                .map(|e| &made[of_epoch[e]].shapes)
                .collect();
            value::run(&world, &mut proof, &mut used, |world, groups, overlaps| {
                cover::check(world, groups, overlaps, &shapes)
            })
        };
        if ranks == Ranks::Folded
            && let Some(world) = World::folded_over(plan, period, &of_epoch, &made)
            && look(world).is_ok()
        {
            continue;
        }
        let world = World::over(plan, period, &of_epoch, &made);
        look(world.map_err(|(cell, halt)| Trouble::Halt(cell, halt))?).map_err(Trouble::Found)?;
    }
    proof.name_waits(plan, used);
    Ok(proof)
}

/// Extents of all buffers, which must be sizes, and whose rows must not lie in each other.
fn shapes(cell: &Cell<'_>) -> Result<Shapes, Halt> {
    let plan = cell.points.plan;
    let mut out = Vec::new();
    for (id, b) in plan.buffers.iter() {
        let mut of_ranks = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let function = |e: &mk_plan::Expr| {
                let pieces = cell.functions.of(rank, &[rank as i64], e, &cell.places);
                pieces.map_err(|stop| Halt::Stop {
                    stop,
                    place: format!("{id} {:?}", b.name),
                    text: plan.text(None, None, e).to_string(),
                })
            };
            let shape = b.shape.iter().map(function).collect::<Result<Vec<_>, _>>()?;
            let wrong = |run: u32, k: i64| Halt::Stop {
                stop: Stop::At(cell.functions.value(run, k)),
                place: format!("{id} {:?}", b.name),
                text: "its shape".into(),
            };
            let mut greatest = Vec::new();
            for pieces in &shape {
                let mut most = 0;
                for p in pieces {
                    for k in [p.lo, p.hi] {
                        if p.line.at(k) < 0 {
                            return Err(wrong(p.run, k));
                        }
                        most = most.max(p.line.at(k));
                    }
                }
                greatest.push(most);
            }
            let pitch = match &b.pitch {
                Some(e) => {
                    let (pitch, row) = (function(e)?, shape.last().map_or(&[][..], |r| r));
                    let mut short = None;
                    meet(&pitch, row, |at, pitch, row| {
                        let close = row.line.minus(pitch.line).positive(at.lo, at.hi);
                        short = short.or(close.map(|(k, _)| (at.run, k)));
                    });
                    if let Some((run, k)) = short {
                        return Err(wrong(run, k));
                    }
                    pitch.iter().flat_map(|p| [p.line.at(p.lo), p.line.at(p.hi)]).max().unwrap_or(0)
                }
                None => greatest.last().copied().unwrap_or(1),
            };
            let rows = greatest.iter().rev().skip(1).try_fold(1i64, |n, x| n.checked_mul(*x));
            let spread = rows.and_then(|n| n.checked_mul(pitch.max(1)));
            if spread.is_none_or(|n| n > MAX_ELEMENTS) {
                return Err(wrong(cell.places[0].run, cell.places[0].hi));
            }
            of_ranks.push(shape);
        }
        out.push(of_ranks);
    }
    Ok(out)
}
