//! Tables of which parts of a sequence meet ([`mk_plan::TableSource::Meets`]): rules 5 and 6 for all their entries. An
//! entry is the same on all ranks, and only decides whether accesses are made.
//!
//! *Every read follows its writes.* A read has one entry as its condition. Writes that overlap it have the same one, or
//! none. So a read that is made finds all of its writes, as with the table in which every entry is 1: that table is among
//! the samples. No wait and no post has an entry as its condition, so the order of accesses is that of the sample.
//!
//! *A kernel reads no more than its plan.* A tile that masks by bounds looks up no entry: it reads the blocks that its
//! bounds meet. Table and bounds have the same documents, side and mask; the check of a plan's structure compares them.
//! An entry of 0 then means: no row of the place meets a row of the part. This holds for the tile if the entry is that
//! of the place with all rows of the tile, and of the part with all rows of the step. Both are checked here.

use super::{limits::MAX_PAIRS, report::Violation, unroll::MAX_EVENTS};
use mk_plan::{
    Access, BufId, FamId, Family, MAX_TASKS, Meeting, Mode, Operand, Plan, Point, PointError,
    Points, Region, TabId, TableSet, Task, row_dim,
};
use std::collections::{BTreeMap, BTreeSet};

/// Accesses whose entry is not that of their rows, and reads whose entry is not that of their writes.
pub(super) fn check(plan: &Plan, period: u32) -> Vec<Violation> {
    let met = plan.tables.keys().any(|id| plan.parts(id).is_some());
    if !met {
        return Vec::new();
    }
    // Every entry is 1.
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    (1..=i64::from(period))
        .find_map(|epoch| Walk::new(&points).launch(epoch).err())
        .into_iter()
        .collect()
}

/// An entry of a table.
type Entry = (TabId, Vec<i64>);
/// A box, and the entry that it depends on.
type Boxed = (Vec<(i64, i64)>, Option<Entry>);

/// What accesses touch of a buffer of a rank, each with who does it.
#[derive(Default)]
struct Touched {
    reads: BTreeMap<Boxed, String>,
    writes: BTreeSet<Boxed>,
}

struct Walk<'p> {
    points: &'p Points<'p>,
    plan: &'p Plan,
    /// Memory of which entries decide whether it is written.
    chosen: BTreeSet<BufId>,
    memory: BTreeMap<(BufId, usize, i64), Touched>,
    events: u64,
}

impl<'p> Walk<'p> {
    fn new(points: &'p Points<'p>) -> Walk<'p> {
        let plan = points.plan;
        let accesses = plan.families.values().flat_map(|x| &x.accesses);
        let chosen =
            accesses.filter(|a| a.mode != Mode::Read && plan.meeting(a.when.as_ref()).is_some());
        let chosen = chosen.map(|a| a.buffer).collect();
        Walk { points, plan, chosen, memory: BTreeMap::new(), events: 0 }
    }

    fn launch(mut self, epoch: i64) -> Result<(), Violation> {
        let plan = self.plan;
        let mut tasks = 0;
        for (id, x) in plan.families.iter() {
            let lines: Vec<_> = x.accesses.iter().filter(|a| self.looked_at(a)).collect();
            if lines.is_empty() {
                continue;
            }
            self.decided(id, x, &lines)?;
            for rank in 0..plan.mesh.size() as usize {
                let left = MAX_TASKS - tasks;
                tasks += self.points.count(id, rank, epoch, left)?;
                if tasks > MAX_TASKS {
                    return Err(Violation::Limit { what: "tasks".into(), limit: MAX_TASKS });
                }
                for task in self.points.tasks(id, rank, epoch)? {
                    for a in &lines {
                        self.access(&task, a)?;
                    }
                }
            }
        }
        self.paired()
    }

    fn looked_at(&self, a: &Access) -> bool {
        self.chosen.contains(&a.buffer) || self.plan.meeting(a.when.as_ref()).is_some()
    }

    /// Nothing else that a launch brings decides what these accesses are of, or whether they are there.
    fn decided(&self, id: FamId, x: &Family, lines: &[&Access]) -> Result<(), Violation> {
        let plan = self.plan;
        let loops = x.domain.iter().chain(&x.inner).map(|(_, n)| n).chain(&x.order);
        let touched = lines.iter().flat_map(|a| {
            let region = a.region.iter().flat_map(|(base, n)| [base, n]);
            let whole = a.each.iter().map(|e| &e.extent).chain([&a.rank, &a.version]);
            region.chain(whole).chain(plan.beside_meeting(a.when.as_ref()))
        });
        let comes = |e: &mk_plan::Expr| e.any_table(|t| plan.tables[t].source.comes());
        match loops.chain(touched).any(comes) {
            true => Err(Violation::Capacity {
                place: format!("{id} {:?}", x.name),
                message: "touches what is written where parts meet, and other tables of the launch say where".into(),
            }),
            false => Ok(()),
        }
    }

    fn access(&mut self, task: &Task, a: &Access) -> Result<(), Violation> {
        let (points, plan) = (self.points, self.plan);
        let x = &plan.families[task.family];
        let meeting = plan.meeting(a.when.as_ref());
        let steps = if a.at == Point::Inner { points.inner(task)? } else { 1 };
        for step in 0..steps {
            let mut at = task.clone();
            at.vars[usize::from(mk_plan::Var::INNER.0)] = step;
            let each = a.each.as_ref().map_or(Ok(1), |e| points.eval(&at, &e.extent))?;
            self.events =
                self.events.saturating_add(u64::try_from(each.max(1)).unwrap_or(u64::MAX));
            if self.events > MAX_EVENTS {
                return Err(Violation::Limit { what: "accesses".into(), limit: MAX_EVENTS });
            }
            let mut found = Vec::new();
            points.for_each(
                task,
                step,
                a.each.as_ref(),
                a.when.as_ref(),
                |at| -> Result<(), PointError> {
                    let index =
                        meeting.map(|m| m.index.iter().map(|e| points.eval(at, e)).collect());
                    let index: Option<Vec<i64>> = index.transpose()?;
                    found.push((index, points.region(at, a)?));
                    Ok(())
                },
            )?;
            for (index, region) in found {
                let Some(region) = region else { continue };
                if let (Some(meeting), Some(index), true) =
                    (meeting, &index, plan.knows_meetings(x))
                {
                    self.known(task, step, a, (meeting, index), &region)?;
                }
                if self.chosen.contains(&a.buffer) {
                    let entry = meeting.map(|m| m.table).zip(index);
                    self.note(task, a, region, entry);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, task: &Task, a: &Access, region: Region, entry: Option<Entry>) {
        let place = (region.buffer, region.rank, region.version);
        let of = self.memory.entry(place).or_default();
        let boxed = (region.dims, entry);
        if a.mode != Mode::Write && !of.reads.contains_key(&boxed) {
            let x = &self.plan.families[task.family];
            let who = format!(
                "{} {:?}: `{}` (tile {:?} of rank {})",
                task.family,
                x.name,
                a.operand,
                task.domain(),
                task.rank()
            );
            of.reads.insert(boxed.clone(), who);
        }
        if a.mode != Mode::Read {
            of.writes.insert(boxed);
        }
    }

    /// The condition of a tile's read is the entry of its own rows, and of those that it reads.
    fn known(
        &self,
        task: &Task,
        step: i64,
        a: &Access,
        (meeting, index): (Meeting<'_>, &[i64]),
        region: &Region,
    ) -> Result<(), Violation> {
        let (points, x) = (self.points, &self.plan.families[task.family]);
        let wrong = |what: &str| {
            Err(Violation::Capacity {
                place: format!("{} {:?}", task.family, x.name),
                message: format!(
                    "`{}` {what} (tile {:?} of rank {})",
                    a.operand,
                    task.domain(),
                    task.rank()
                ),
            })
        };
        let bounds = x.accesses.iter().find(|a| a.operand == Operand::Bounds);
        let rows = bounds.and_then(|a| a.region.first()).map(|(_, n)| points.eval(task, n));
        let along = row_dim(a).filter(|_| a.at == Point::Inner);
        let at = points.positions(task, step)?;
        let (Some(held), Some(along), Some([q, k])) = (rows.transpose()?, along, at) else {
            return wrong(
                "depends on whether parts meet, and is of no rows at places of a sequence",
            );
        };
        let Some(parts) = self.plan.parts(meeting.table) else {
            return wrong("depends on parts of no sequence");
        };
        // A tile of no rows goes through no blocks.
        if held < 1 {
            return Ok(());
        }
        let [own, other] = if x.leaf.queries_move() { [k, q] } else { [q, k] };
        let part = |first: i64, n: i64| {
            let of = |row: i64| row.div_euclid(i64::from(parts.rows.max(1)));
            (of(first) == of(first + n - 1)).then(|| of(first))
        };
        let moving = region.dims[along].1;
        let place = part(own, held).and_then(|part| i32::try_from(part).ok());
        let place = place.map(|part| i64::from(parts.place(part)));
        match (place, part(other, moving)) {
            (Some(place), Some(part)) if index == [place, part] => Ok(()),
            _ => wrong(&format!(
                "depends on whether {index:?} meet, and is of rows {own} : {held} and {other} : {moving}"
            )),
        }
    }

    /// Reads depend on the entries of their writes.
    fn paired(&self) -> Result<(), Violation> {
        let mut pairs = 0u64;
        for ((buffer, rank, _), touched) in &self.memory {
            pairs += touched.reads.len() as u64 * touched.writes.len() as u64;
            if pairs > MAX_PAIRS {
                let what = "reads and writes where parts meet".into();
                return Err(Violation::Limit { what, limit: MAX_PAIRS });
            }
            for ((read, entry), who) in &touched.reads {
                let overlaps = |write: &[(i64, i64)]| {
                    let mut dims = read.iter().zip(write);
                    dims.all(|(r, w)| r.0.max(w.0) < (r.0 + r.1).min(w.0 + w.1))
                };
                let other = |(write, of): &&Boxed| of.is_some() && of != entry && overlaps(write);
                if let Some((_, Some((table, index)))) = touched.writes.iter().find(other) {
                    return Err(Violation::Capacity {
                        place: who.clone(),
                        message: format!(
                            "reads {buffer} of rank {rank}, which is written where {table}{index:?} is 1, and depends \
                             on {}",
                            match entry {
                                Some((table, index)) => format!("{table}{index:?}"),
                                None => "none".into(),
                            }
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}
