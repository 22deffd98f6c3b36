//! What must not depend on the run-time dimension for one proof to hold for all its values: which tasks there are, in
//! which order, how often their lines repeat, which words they wait for and post to, with which counts, on which rank
//! and in which version they touch memory.
//!
//! Where something of it does, the values are divided into cells for which it does not.

use crate::valid::{
    cells::{Cell, Halt},
    report::Violation,
    spans::domain::Places,
    unroll::MAX_EVENTS,
};
use mk_plan::{Each, Expr, FamId, Family, MAX_TASKS, Plan, Point, Task, Var};
use std::collections::BTreeMap;

/// Most forms that one expression is told apart in at once; beyond that values are halved.
const MAX_FORMS: usize = 4;

/// Whether everything but regions is the same for all values of a cell.
///
/// # Errors
/// How to divide the cell, or why it cannot be done.
pub(super) fn check(cell: &Cell<'_>) -> Result<(), Halt> {
    let plan = cell.points.plan;
    let named = |e: &Expr| e.names_dim(cell.functions.dim);
    for (id, signal) in plan.signals.iter() {
        if let Some(e) = signal.shape.iter().find(|e| named(e)) {
            return Err(Halt::Broken(vec![Violation::RunTime {
                place: format!("{id} {:?}", signal.name),
                message: format!(
                    "`{}` depends on the run-time dimension, and words count over launches with different ones: use \
                     its bound",
                    plan.text(None, None, e)
                ),
            }]));
        }
    }
    let events = std::cell::Cell::new(0u64);
    for (id, x) in plan.families.iter() {
        let loops: Vec<&Expr> = x.domain.iter().chain(&x.inner).map(|d| &d.1).collect();
        let tasks_named = loops.iter().copied().chain(&x.order).any(named);
        if !tasks_named && !lines(x).iter().any(|l| l.all().any(named)) {
            continue;
        }
        for rank in 0..plan.mesh.size() as usize {
            let broken = |v: Violation| Halt::Broken(vec![v]);
            for epoch in 1..=cell.period {
                let look = Look { cell, id, x, events: &events };
                let mut task = Task { family: id, vars: vec![0; usize::from(Var::DOMAIN)] };
                task.vars[usize::from(Var::RANK.0)] = rank as i64;
                task.vars[usize::from(Var::EPOCH.0)] = i64::from(epoch);
                task.vars.resize(task.vars.len() + x.domain.len(), 0);
                let points = cell.points;
                let count = points.count(id, rank, i64::from(epoch), MAX_TASKS);
                if count.map_err(|e| broken(Violation::Point(e)))? > MAX_TASKS {
                    return Err(broken(Violation::Limit {
                        what: format!("tasks, with {id}"),
                        limit: MAX_TASKS,
                    }));
                }
                if tasks_named {
                    look.loops(&mut task, 0)?;
                }
                let tasks = points.tasks(id, rank, i64::from(epoch));
                for task in tasks.map_err(|e| broken(Violation::Point(e)))? {
                    look.task(&task)?;
                }
            }
        }
    }
    Ok(())
}

/// A line of a family: when, how often, and which of its expressions must be constant where it happens.
struct Line<'p> {
    at: Point,
    each: Option<&'p Each>,
    when: Option<&'p Expr>,
    exprs: Vec<&'p Expr>,
}

impl Line<'_> {
    fn all(&self) -> impl Iterator<Item = &Expr> {
        self.each.iter().map(|e| &e.extent).chain(self.when).chain(self.exprs.iter().copied())
    }
}

fn lines(x: &Family) -> Vec<Line<'_>> {
    let accesses = x.accesses.iter().map(|a| Line {
        at: a.at,
        each: a.each.as_ref(),
        when: a.when.as_ref(),
        exprs: vec![&a.rank, &a.version],
    });
    let waits = x.waits.iter().map(|w| Line {
        at: w.at,
        each: w.each.as_ref(),
        when: w.when.as_ref(),
        exprs: w.index.iter().chain([&w.count]).collect(),
    });
    let posts = x.posts.iter().map(|p| Line {
        at: p.at,
        each: p.each.as_ref(),
        when: p.when.as_ref(),
        exprs: p.index.iter().chain([&p.rank, &p.add]).collect(),
    });
    accesses.chain(waits).chain(posts).collect()
}

struct Look<'l> {
    cell: &'l Cell<'l>,
    id: FamId,
    x: &'l Family,
    /// Repetitions of lines so far.
    events: &'l std::cell::Cell<u64>,
}

impl Look<'_> {
    /// Extents of the loops from a depth on.
    fn loops(&self, task: &mut Task, depth: usize) -> Result<(), Halt> {
        let Some((_, extent)) = self.x.domain.get(depth) else { return Ok(()) };
        let n = self.constant(task, None, extent)?;
        // Only where extents of inner loops depend on it.
        let slot = usize::from(Var::domain(depth).0);
        let inner = &self.x.domain[depth + 1..];
        let mentioned = inner.iter().any(|d| d.1.mentions(Var::domain(depth)));
        for i in 0..if mentioned { n } else { n.min(1) } {
            task.vars[slot] = i;
            self.loops(task, depth + 1)?;
        }
        task.vars[slot] = 0;
        Ok(())
    }

    fn task(&self, task: &Task) -> Result<(), Halt> {
        for e in &self.x.order {
            // Decoded variables are not in the scope of `order`, and it names none.
            self.constant(task, None, e)?;
        }
        let inner = match &self.x.inner {
            Some((_, extent)) => self.constant(task, None, extent)?.max(0),
            None => 0,
        };
        for line in lines(self.x) {
            if !line.all().any(|e| e.names_dim(self.cell.functions.dim)) {
                continue;
            }
            let steps = match line.at {
                Point::Start => 0..1,
                Point::Inner => 0..inner,
                Point::End => inner..inner + 1,
            };
            self.spend(steps.end - steps.start)?;
            for step in steps {
                let mut at = task.clone();
                at.vars[usize::from(Var::INNER.0)] = step;
                let n =
                    line.each.map_or(Ok(1), |each| self.constant(&at, line.each, &each.extent))?;
                self.spend(n.max(1))?;
                for i in 0..n {
                    at.vars[usize::from(Var::EACH.0)] = i;
                    // Whether it holds, and not its value, must be the same.
                    let holds = line.when.map(|when| when.clone().select(1, 0));
                    if let Some(when) = holds
                        && self.constant(&at, line.each, &when)? == 0
                    {
                        continue;
                    }
                    for e in &line.exprs {
                        self.constant(&at, line.each, e)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Bounds the work.
    fn spend(&self, n: i64) -> Result<(), Halt> {
        self.events.set(self.events.get().saturating_add(n.max(0) as u64));
        if self.events.get() <= MAX_EVENTS {
            return Ok(());
        }
        let what = format!("accesses, waits and posts, with {}", self.id);
        Err(Halt::Broken(vec![Violation::Limit { what, limit: MAX_EVENTS }]))
    }

    /// The value of an expression that is the same for all values of the dimension.
    fn constant(&self, task: &Task, each: Option<&Each>, e: &Expr) -> Result<i64, Halt> {
        let cell = self.cell;
        if !e.names_dim(cell.functions.dim) {
            return cell.points.eval(task, e).map_err(|e| Halt::Broken(vec![Violation::Point(e)]));
        }
        let plan: &Plan = cell.points.plan;
        let place = || format!("{} {:?} {:?}", self.id, self.x.name, task.domain());
        let text = || plan.text(Some(self.x), each, e).to_string();
        let pieces = cell
            .functions
            .of(task.rank(), &task.vars, e, &cell.places)
            .map_err(|stop| Halt::Stop { stop, place: place(), text: text() })?;
        let first = pieces.first().map_or(0, |p| p.line.at(p.lo));
        if pieces.iter().all(|p| [p.lo, p.hi].iter().all(|k| p.line.at(*k) == first)) {
            return Ok(first);
        }
        let mut forms: BTreeMap<i64, Vec<Places>> = BTreeMap::new();
        for p in &pieces {
            let steady = p.line.slope == 0;
            if !steady && p.hi - p.lo >= MAX_FORMS as i64 {
                return Err(Halt::Split { parts: Vec::new(), place: place(), text: text() });
            }
            let mut add = |lo, hi| {
                forms.entry(p.line.at(lo)).or_default().push(Places { run: p.run, lo, hi });
            };
            if steady { add(p.lo, p.hi) } else { (p.lo..=p.hi).for_each(|k| add(k, k)) }
        }
        let parts =
            if forms.len() > MAX_FORMS { Vec::new() } else { forms.into_values().collect() };
        Err(Halt::Split { parts, place: place(), text: text() })
    }
}
