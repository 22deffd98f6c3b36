//! Whether a plan computes its pipeline: both are evaluated over finite fields, with random inputs, and every element
//! is compared.
//!
//! The verifier proves that a plan's accesses are ordered. That each reads the right memory is another matter, and is
//! decided here:
//!
//! - Sums and products are those of the fields, exact and in any order, as a legal plan may add in any order.
//!   Elementwise functions, casts to 16 bits among them, are random functions: a plan has to apply the same ones to the
//!   same values. Storing a value rounds it in a kernel, and is nothing here; how far roundings may lead is the
//!   executor's business. A softmax's exponential goes from one field into the other, and takes sums to products there
//!   (`number.rs`); its maximum is any number.
//! - A dimension is cut into *cells* by all regions of all tasks and by what tasks do (`cells.rs`). A cell keeps one or
//!   two of its elements: the plan is evaluated as it stands, with every task and every region, at extents that are
//!   scaled down.
//! - In a plan that verifies, a read sees what was written to its memory in its own version. So tasks run in any order
//!   in which what they read is there (`launch.rs`), and waits and posts have no part in it.
//! - Integers are evaluated one by one (`integers.rs`): tables in memory must be those of the launch, before anything
//!   is looked up, and results those of the pipeline.
//!
//! What this rests on, and how probable it is that a wrong plan passes, is in docs/verification.md.

mod algebra;
mod attend;
mod budget;
mod cells;
mod compare;
mod context;
mod dims;
mod error;
mod gradients;
mod integers;
mod launch;
mod leaf;
mod linker;
mod links;
mod norm;
mod number;
mod program;
mod quant;
mod ragged;
mod rope;
mod routings;
mod softmax;
#[cfg(test)]
mod tests;
mod tile;
mod unroll;

use error::Result;
pub use error::{FieldError, WrongElement};

use algebra::{Contributions, Numbers};
use budget::Budget;
use cells::Lines;
use compare::Case;
use dims::{Counts, Dims};
use mk_plan::{Plan, Points, Table, TableSource};
use mk_syntax::{Bound, Op, Program, SymbolId};
use std::{collections::BTreeMap, ops::RangeInclusive};
use unroll::Moved;

/// How a plan is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where random numbers begin.
    pub seed: u64,
    /// Launches after which the plan repeats: [`Proof::period`](crate::valid::Proof::period).
    pub period: u32,
    /// Most values of a run-time dimension at which it is evaluated.
    pub values: usize,
    /// With tables that differ from launch to launch, most of the launches that are looked at: the last ones.
    pub routings: usize,
}

impl Default for Options {
    /// Seed 0, plans of which all launches are alike, 4 values, all routings.
    fn default() -> Options {
        Options { seed: 0, period: 1, values: 4, routings: usize::MAX }
    }
}

/// What was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Elements of results on all ranks, all launches together; each stands for a block of like ones, or for itself.
    pub elements: u64,
    /// Of how many they are.
    pub of: u64,
    /// The values of the run-time dimension, if there is one.
    pub values: Vec<i32>,
}

/// Whether a plan that verifies computes a pipeline.
///
/// # Errors
/// [`FieldError::Wrong`] if it computes something else; [`FieldError::Interface`] if its tensors are not the
/// pipeline's; others where it cannot be evaluated.
pub fn evaluate(
    plan: &Plan,
    program: &Program,
    bound: &Bound,
    options: &Options,
) -> Result<Evaluation> {
    let program = &*program.over_placed_axes();
    if program.nodes().iter().any(|n| n.op == Op::View) {
        return Err(FieldError::unsupported("`view` inside a kernel", "kernels end there"));
    }
    let unknown = |t: &Table| match t.source {
        _ if t.routed.is_some() => false,
        // The caller's, who has it as a tensor.
        TableSource::Runtime { .. } => t.stored.is_none(),
        TableSource::Places { .. } => true,
        _ => false,
    };
    if plan.tables.values().any(unknown) {
        let help =
            "no pipeline has such tables yet; `mk check` without `--against` proves the rest";
        let what = "a plan with tables that come with a launch, and are not in memory,";
        return Err(FieldError::unsupported(what, help));
    }
    let mut all = Evaluation { elements: 0, of: 0, values: Vec::new() };
    let Some((dim, max)) = plan.runtime_dim() else {
        // Where ranks have their own numbers of rows, a launch of fewer has the most, of which others are nobody's.
        let most;
        let bound = match plan.buffers.values().any(|b| b.own_rows) {
            true => {
                most = at_most(program, bound)?;
                &most
            }
            false => bound,
        };
        launches(plan, program, bound, options, "", &mut all)?;
        return Ok(all);
    };
    let name = plan.dims[dim].name.clone();
    all.values = values(plan, plan.dims[dim].least()..=max, options.values);
    for value in all.values.clone() {
        let sizes = BTreeMap::from([(name.clone(), value as u64)]);
        let bound = program
            .rebind(bound, &sizes)
            .map_err(|e| FieldError::Interface { what: format!("{name} = {value}: {e}") })?;
        let with = format!("{name} = {value}");
        launches(&plan.at(dim, value), program, &bound, options, &with, &mut all)?;
    }
    Ok(all)
}

/// The sizes of a launch that has the most of all that comes with it.
fn at_most(program: &Program, bound: &Bound) -> Result<Bound> {
    if bound.runtime().is_empty() {
        return Ok(bound.clone());
    }
    let of = |s: &SymbolId| {
        let name = program.symbols().get(s.index())?.name.clone();
        Some((name, *bound.max_sizes().get(s.index())?))
    };
    let most = bound.runtime().iter().filter_map(of).collect();
    let found = program.rebind(bound, &most);
    found.map_err(|e| FieldError::Interface { what: format!("at its bound: {e}") })
}

/// Whether a plan has room for some routing of all its tokens, of the most that a launch has; true of one that routes
/// nothing.
///
/// # Errors
/// [`FieldError::Room`].
pub fn has_room(plan: &Plan, program: &Program, bound: &Bound) -> Result<()> {
    ragged::rooms(plan, program, &at_most(program, bound)?).map(drop)
}

/// Values of a run-time dimension that are worth a look: the ends, and beside what the plan's expressions compare with,
/// some of them.
fn values(plan: &Plan, range: RangeInclusive<i32>, most: usize) -> Vec<i32> {
    let (least, max) = (*range.start(), *range.end());
    let world = plan.mesh.size() as i32;
    let mut steps = std::collections::BTreeSet::new();
    for (_, family) in plan.families.iter() {
        for e in family.expressions() {
            e.visit(&mut |e| {
                if let mk_plan::Expr::Const(c) = e
                    && *c > 1
                {
                    steps.insert(*c);
                }
            });
        }
    }
    let near = |n: i32| [n, n - 1, n + 1];
    let of_ranks = steps.iter().rev().flat_map(|n| near(n.saturating_mul(world.min(2))));
    let wanted = [max, least, 1, world + 1]
        .into_iter()
        .chain(of_ranks)
        .chain([max - 1, max / 2 + 1, max / 3])
        .chain(steps.iter().flat_map(|n| near(*n)));
    let mut list = Vec::new();
    for value in wanted.filter(|v| range.contains(v)) {
        if list.len() < most && !list.contains(&value) {
            list.push(value);
        }
    }
    list
}

/// Evaluates each launch after which the plan does not repeat.
fn launches(
    plan: &Plan,
    program: &Program,
    bound: &Bound,
    options: &Options,
    with: &str,
    all: &mut Evaluation,
) -> Result<()> {
    let launches = ragged::launches(plan, program, bound)?;
    if launches.is_empty() {
        let help = "raise the capacity: rows that are even over experts should fit";
        return Err(FieldError::unsupported("a plan with room for few rows", help));
    }
    let skipped = launches.len().saturating_sub(options.routings.max(1));
    for (tables, counts) in launches.into_iter().skip(skipped) {
        with_tables(&Points::new(plan, &tables), counts, program, bound, options, with, all)?;
    }
    Ok(())
}

fn with_tables(
    points: &Points<'_>,
    counts: Counts,
    program: &Program,
    bound: &Bound,
    options: &Options,
    with: &str,
    all: &mut Evaluation,
) -> Result<()> {
    let plan = points.plan;
    for epoch in 1..=i64::from(options.period.max(1)) {
        let mut lines = Lines::default();
        let dims = Dims::new(program, bound, &plan.mesh, counts.clone(), &mut lines)?;
        integers::check(points, epoch, &dims)?;
        let unrolled = unroll::unroll(points, epoch, Moved::Numbers)?;
        let budget = Budget::of(&unrolled);
        let case = Case::new(&unrolled, dims, budget, &mut lines)?;
        let cells = lines.cells(budget.cuts)?;
        let found = case.compare(&mut Numbers::new(options.seed), &cells)?;
        let Some(first) = found.wrong else {
            all.elements += found.elements;
            all.of += found.of;
            continue;
        };
        let mut launch = with.to_string();
        if options.period > 1 {
            let comma = if launch.is_empty() { "" } else { ", " };
            launch = format!("{launch}{comma}launch {epoch} of {}", options.period);
        }
        let wrong = case.explain(&mut Contributions::new(), &cells, first, launch)?;
        return Err(FieldError::Wrong(Box::new(wrong)));
    }
    Ok(())
}
