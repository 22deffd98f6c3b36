//! How a [`World`] is made: all epochs unrolled, with ranks folded or each by itself, for one value or all of a cell.

use super::{
    boxes::Boxes,
    cells::{Cell, Halt, spans_of},
    family::FamInfo,
    report::Violation,
    rotation::{Rotation, Torus},
    spans::{ALWAYS, LiveId, function::Piece},
    symmetry,
    unroll::{MAX_ELEMENTS, MAX_WORDS, Unroller},
    world::{Class, Window, Words, World},
};
use mk_plan::{Expr, Plan, PointError, Points, TableSet};
use std::ptr;

/// A world, or why there is none.
type Built<'a> = Result<World<'a>, Vec<Violation>>;

impl<'a> World<'a> {
    /// Unrolls. `epochs[i]` is the set of tables of epoch `i + 1`; epochs share a class if they have the same tables
    /// and the same residue of `period`.
    pub fn new(plan: &'a Plan, period: u32, epochs: &[usize], tables: &[TableSet]) -> Built<'a> {
        let none = TableSet::default();
        let points: Vec<Points<'_>> = match tables {
            [] => vec![Points::new(plan, &none)],
            sets => sets.iter().map(|set| Points::noting(plan, set)).collect(),
        };
        World::of(plan, period, epochs, &points)
    }

    /// The same of `points[i]` for `i` of each epoch; memory has room for all.
    pub fn of(plan: &'a Plan, period: u32, epochs: &[usize], points: &[Points<'_>]) -> Built<'a> {
        let mut world = World::empty(plan, period, &points[0])?;
        // Of fewer rows, some ranks may have more than of the most.
        for of in points.iter().filter(|of| !ptr::eq(of.plan, points[0].plan)) {
            let ranks = world.shapes.iter_mut().zip(shapes(of.plan, of)?);
            let shapes = ranks.flat_map(|(most, here)| most.iter_mut().zip(here));
            for (most, n) in shapes.flat_map(|(most, here)| most.iter_mut().zip(here)) {
                *most = n.max(*most);
            }
        }
        world.unroll_tables(epochs, points).map_err(Halt::violations)?;
        Ok(world)
    }

    /// The same of the tasks at the ends of loops alone: for what is looked at task by task.
    pub fn ends(plan: &'a Plan, period: u32, epochs: &[usize], tables: &[TableSet]) -> Built<'a> {
        let points: Vec<_> = tables.iter().map(|set| Points::noting(plan, set)).collect();
        let mut world = World::empty(plan, period, &points[0])?;
        world.ends_only = true;
        world.unroll_tables(epochs, &points).map_err(Halt::violations)?;
        Ok(world)
    }

    /// The same with all ranks folded into rank 0, of a plan without tables of a launch. `None` where they are not
    /// alike, or anything is wrong.
    pub fn folded(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        tables: &TableSet,
    ) -> Option<World<'a>> {
        let points = [Points::noting(plan, tables)];
        let mut world = World::empty(plan, period, &points[0]).ok()?;
        world.fold(&points[0], |_| true)?;
        world.unroll_tables(epochs, &points).ok()?;
        Some(world)
    }

    fn unroll_tables(&mut self, epochs: &[usize], points: &[Points<'_>]) -> Result<(), Halt> {
        self.unroll(epochs, |world, set, epoch| {
            Unroller::run(world, points.get(set).unwrap_or(&points[0]), None, epoch)
                .map(|class| (class, ALWAYS))
        })
    }

    /// Sets out to fold ranks: `fixed` says which extents are the same for all values of a run-time dimension.
    fn fold(&mut self, points: &Points<'_>, fixed: impl Fn(&Expr) -> bool) -> Option<()> {
        if self.ranks < 2 || self.is_far() {
            return None;
        }
        let torus = Torus::of(&self.plan.mesh)?;
        self.turned = Some(symmetry::guess(self, points, torus, fixed)?);
        self.words.total /= self.ranks;
        self.rotation = Rotation::of(torus, self.words.total);
        Some(())
    }

    /// Unrolls for all values of the run-time dimension. `epochs[i]` is the cell of epoch `i + 1`. An error names the
    /// cell.
    pub fn over(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        cells: &[Cell<'_>],
    ) -> Result<World<'a>, (usize, Halt)> {
        let world = World::empty(plan, period, cells[0].points);
        let mut world = world.map_err(|v| (0, Halt::Broken(v)))?;
        world.unroll_cells(epochs, cells)?;
        Ok(world)
    }

    /// The same with all ranks folded into rank 0; `None` where they are not alike, or anything is wrong.
    pub fn folded_over(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        cells: &[Cell<'_>],
    ) -> Option<World<'a>> {
        let alike = |of_ranks: &Vec<Vec<Vec<Piece>>>| of_ranks.iter().all(|s| *s == of_ranks[0]);
        if cells.iter().any(|c| !c.shapes.iter().all(alike)) {
            return None;
        }
        let (mut world, dim) =
            (World::empty(plan, period, cells[0].points).ok()?, cells[0].functions.dim);
        world.fold(cells[0].points, |e| !e.names_dim(dim))?;
        world.unroll_cells(epochs, cells).ok()?;
        Some(world)
    }

    fn unroll_cells(&mut self, epochs: &[usize], cells: &[Cell<'_>]) -> Result<(), (usize, Halt)> {
        let world = self;
        world.boxes.spans = Some(spans_of(cells));
        world.mixed = cells.len() > 1;
        world.unroll(epochs, |world, id, epoch| {
            let cell = &cells[id];
            Unroller::run(world, cell.points, Some(cell), epoch)
                .map(|class| (class, cell.whole))
                .map_err(|halt| (id, halt))
        })
    }

    fn empty(plan: &'a Plan, period: u32, first: &Points<'_>) -> Built<'a> {
        let words = words(plan, first)?;
        Ok(World {
            plan,
            fams: plan.families.values().map(|x| FamInfo::new(plan, x)).collect(),
            ranks: plan.mesh.size() as usize,
            rotation: Rotation::none(words.total),
            turned: None,
            words,
            boxes: Boxes::default(),
            classes: Vec::new(),
            class_of: Vec::new(),
            period,
            window: Window { later: period, near: 0, back: u32::MAX },
            ends_only: false,
            shapes: shapes(plan, first)?,
            whole: Vec::new(),
            mixed: false,
        })
    }

    fn unroll<E>(
        &mut self,
        epochs: &[usize],
        mut class: impl FnMut(&mut Self, usize, i64) -> Result<(Class, LiveId), E>,
    ) -> Result<(), E> {
        let mut known: Vec<(u32, usize)> = Vec::new();
        for (i, source) in epochs.iter().enumerate() {
            let key = (i as u32 % self.period.max(1), *source);
            let id = known.iter().position(|k| *k == key).unwrap_or(known.len());
            if id == known.len() {
                known.push(key);
                let (class, whole) = class(self, *source, i as i64 + 1)?;
                self.classes.push(class);
                self.whole.push(whole);
            }
            self.class_of.push(id);
        }
        Ok(())
    }
}

fn one(e: PointError) -> Vec<Violation> {
    vec![Violation::Point(e)]
}

/// Memory and words that are more than anybody unrolls.
pub fn too_much(plan: &Plan) -> Option<Violation> {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    let found = shapes(plan, &points).err().or_else(|| words(plan, &points).err())?;
    found.into_iter().find(Violation::is_too_large)
}

fn shapes(plan: &Plan, points: &Points<'_>) -> Result<Vec<Vec<Vec<i64>>>, Vec<Violation>> {
    let mut out = Vec::new();
    for id in plan.buffers.keys() {
        let mut per_rank = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let shape = points.shape(id, rank).map_err(one)?;
            let place = || format!("{id} {:?}", plan.buffers[id].name);
            if shape.iter().any(|x| *x < 0) {
                let message = format!("{shape:?} on rank {rank} is negative");
                return Err(vec![Violation::Capacity { place: place(), message }]);
            }
            let elements = shape.iter().try_fold(1i64, |n, x| n.checked_mul(*x));
            if elements.is_none_or(|n| n > MAX_ELEMENTS) {
                let what = format!("elements of {}, {shape:?} on rank {rank}", place());
                return Err(vec![Violation::Limit { what, limit: MAX_ELEMENTS as u64 }]);
            }
            let (row, pitch) =
                (shape.last().copied().unwrap_or(0), points.pitch(id, rank).map_err(one)?);
            let rows = shape.iter().rev().skip(1).try_fold(1i64, |n, x| n.checked_mul(*x));
            let spread = rows.and_then(|n| n.checked_mul(pitch));
            if pitch < row {
                return Err(vec![Violation::Capacity {
                    place: place(),
                    message: format!(
                        "rows of {row} elements on rank {rank} are {pitch} apart: a pitch is at least a row"
                    ),
                }]);
            }
            if spread.is_none_or(|n| n > MAX_ELEMENTS) {
                let what = format!(
                    "elements that rows of {}, {pitch} apart on rank {rank}, lie in",
                    place()
                );
                return Err(vec![Violation::Limit { what, limit: MAX_ELEMENTS as u64 }]);
            }
            per_rank.push(shape);
        }
        out.push(per_rank);
    }
    Ok(out)
}

fn words(plan: &Plan, points: &Points<'_>) -> Result<Words, Vec<Violation>> {
    let mut total = 0u64;
    let mut arrays = Vec::new();
    for rank in 0..plan.mesh.size() as usize {
        let mut of_rank = Vec::new();
        for id in plan.signals.keys() {
            let shape = points.signal_shape(id, rank).map_err(one)?;
            let n = shape.iter().try_fold(1u64, |n, x| n.checked_mul(u64::try_from(*x).ok()?));
            of_rank.push((total as u32, shape));
            total = n.map_or(u64::MAX, |n| total.saturating_add(n));
            if total > MAX_WORDS {
                return Err(vec![Violation::Limit {
                    what: format!("signal words, with {id}"),
                    limit: MAX_WORDS,
                }]);
            }
        }
        arrays.push(of_rank);
    }
    Ok(Words { arrays, total: total as usize })
}
