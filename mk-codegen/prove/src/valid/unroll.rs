//! Unrolling: from families to tasks and their events.
//!
//! Work is bounded: see the `MAX_` constants. What does not evaluate, or lies outside its buffer or signal array, is a
//! violation of rule 6 and is left out.

use super::{
    actor::Actor,
    boxes::BoxId,
    cells::{Cell, Halt, Regions},
    hoist::{Hoisted, Lines},
    leaf,
    report::Violation,
    rotation::Turned,
    site, symmetry,
    touched::{Operated, Touched},
    world::{AccRec, Class, NamedRec, PostRec, TaskRec, WaitRec, World},
};
use crate::hash::FastSet;
use mk_plan::{
    Access, BufId, Each, EdgeId, Entity, Expr, FamId, Family, MAX_TASKS, Operand, Point,
    PointError, Points, Region, SigId, TabId, TableSource, Task, Var,
};
use std::collections::HashSet;

/// Most accesses, waits and posts of one epoch, over all ranks, repetitions by `each` and `inner` included.
pub const MAX_EVENTS: u64 = 1 << 23;
/// Most signal words, over all ranks.
pub const MAX_WORDS: u64 = 1 << 20;
/// Most elements of a buffer.
pub const MAX_ELEMENTS: i64 = 1 << 48;

/// Fills one class.
pub(super) struct Unroller<'w, 'a> {
    world: &'w mut World<'a>,
    points: &'w Points<'w>,
    /// For all values of the run-time dimension in a cell.
    over: Option<Regions<'w>>,
    class: Class,
    epoch: i64,
    errors: Vec<Violation>,
    /// What has been reported already: family and line.
    told: HashSet<(FamId, String)>,
    tasks: u64,
    events: u64,
    /// Some region lies outside its buffer, and was left out.
    outside: bool,
    /// Something may go from node to node.
    far: bool,
    /// Room for the variables of the line that is unrolled.
    here: Task,
    /// Room for the place of a word in its signal.
    index: Vec<i64>,
    /// Room for a region.
    found: Region,
    /// Room for what a task touches.
    touched: Vec<Operated>,
    /// Room for what a task looks up.
    entries: Vec<(TabId, usize)>,
    /// Of ranks that are folded: the task of rank 0 that the next one of another rank must be like.
    next: u32,
    /// One was not, or a region does not turn as a whole.
    unlike: bool,
    /// Operands of tasks that fit each other: the family, and for each region operand, step, repetition and extents.
    fitted: FastSet<Vec<i64>>,
    sizes: Vec<i64>,
}

impl<'w, 'a> Unroller<'w, 'a> {
    pub fn run(
        world: &'w mut World<'a>,
        points: &'w Points<'w>,
        cell: Option<&'w Cell<'w>>,
        epoch: i64,
    ) -> Result<Class, Halt> {
        let (ranks, words, far) = (world.ranks, world.words.total, world.is_far());
        let class = world.classes.last().map(Class::with_room).unwrap_or_default();
        let mut u = Unroller {
            world,
            points,
            over: cell.map(Regions::new),
            class,
            epoch,
            errors: Vec::new(),
            told: HashSet::new(),
            tasks: 0,
            events: 0,
            outside: false,
            far,
            here: Task { family: FamId::new(0), vars: Vec::new() },
            index: Vec::new(),
            found: Region::none(),
            touched: Vec::new(),
            entries: Vec::new(),
            next: 0,
            unlike: false,
            fitted: FastSet::default(),
            sizes: Vec::new(),
        };
        for rank in 0..ranks {
            let first = u.class.tasks.len() as u32;
            u.next = 0;
            for family in u.world.plan.families.keys() {
                if let Err(v) = u.family(family, rank) {
                    u.tell(family, "", v);
                }
                if let Some(halt) = u.over.as_mut().and_then(|over| over.halt.take()) {
                    return Err(halt);
                }
                if u.tasks > MAX_TASKS || u.events > MAX_EVENTS || u.unlike {
                    return Err(Halt::Broken(u.errors));
                }
            }
            if rank == 0 || !u.world.rotation.is_folded() {
                u.class.ranks.push(first..u.class.tasks.len() as u32);
            } else if u.next != first {
                return Err(Halt::Broken(u.errors));
            }
        }
        if !u.errors.is_empty() {
            return Err(Halt::Broken(u.errors));
        }
        u.class.index_words(words, u.world.rotation);
        Ok(u.class)
    }

    fn tell(&mut self, family: FamId, line: &str, v: Violation) {
        if self.told.insert((family, line.to_string())) {
            self.errors.push(v);
        }
    }

    fn family(&mut self, family: FamId, rank: usize) -> Result<(), Violation> {
        let tasks = if self.world.ends_only {
            self.points.ends(family, rank, self.epoch)
        } else {
            self.count(family, rank)?;
            self.points.tasks(family, rank, self.epoch)
        };
        let tasks = tasks.map_err(Violation::Point)?;
        self.order(family, &tasks)?;
        let x = &self.world.plan.families[family];
        let lines = if self.over.is_none() { Lines::of(x) } else { Lines::as_they_are(x) };
        for task in &tasks {
            // Messages have the expressions of the plan.
            self.task(family, task, &lines)
                .map_err(|v| self.task(family, task, &Lines::as_they_are(x)).err().unwrap_or(v))?;
            if self.unlike {
                break;
            }
        }
        Ok(())
    }

    /// Counts tasks before they are made.
    fn count(&mut self, family: FamId, rank: usize) -> Result<(), Violation> {
        let left = MAX_TASKS.saturating_sub(self.tasks);
        let count = self.points.count(family, rank, self.epoch, left);
        self.tasks += count.map_err(Violation::Point)?;
        if self.tasks > MAX_TASKS {
            return Err(Violation::Limit {
                what: format!("tasks, with {family}"),
                limit: MAX_TASKS,
            });
        }
        Ok(())
    }

    /// `order` names every point of the domain exactly once.
    fn order(&self, family: FamId, tasks: &[Task]) -> Result<(), Violation> {
        let x = &self.world.plan.families[family];
        if x.order.is_empty() {
            return Ok(());
        }
        let wrong = |task: &Task, message: String| Violation::Capacity {
            place: format!("{family} {:?}", x.name),
            message: format!(
                "`order` at t = {} on rank {}: {:?} {message}",
                task.linear(),
                task.rank(),
                task.domain()
            ),
        };
        let mut seen: FastSet<&[i64]> = FastSet::default();
        for task in tasks {
            for (i, (name, extent)) in x.domain.iter().enumerate() {
                let n = self.points.eval(task, extent).map_err(Violation::Point)?;
                if !(0..n).contains(&task.domain()[i]) {
                    return Err(wrong(task, format!("is outside the domain: {name} in {n}")));
                }
            }
            if !seen.insert(task.domain()) {
                return Err(wrong(task, "comes a second time".into()));
            }
        }
        Ok(())
    }

    fn spend(&mut self, family: FamId, n: i64) -> Result<(), Violation> {
        self.events = self.events.saturating_add(u64::try_from(n.max(1)).unwrap_or(u64::MAX));
        if self.events > MAX_EVENTS {
            return Err(Violation::Limit {
                what: format!("accesses, waits and posts, with {family}"),
                limit: MAX_EVENTS,
            });
        }
        Ok(())
    }

    /// Places of queries and keys have values wherever a kernel asks for them.
    fn positions(&self, x: &Family, task: &Task, inner: u32) -> Result<(), PointError> {
        for step in 0..x.positions.as_ref().map_or(0, |_| inner.max(1)) {
            self.points.positions(task, i64::from(step))?;
        }
        Ok(())
    }

    fn task(&mut self, family: FamId, task: &Task, lines: &Lines) -> Result<(), Violation> {
        let plan = self.world.plan;
        let x = &plan.families[family];
        let inner = self.points.inner(task).map_err(Violation::Point)?;
        self.spend(family, inner)?;
        let inner = if x.inner.is_some() { inner as u32 } else { 0 };
        self.positions(x, task, inner).map_err(Violation::Point)?;
        let id = self.class.tasks.len() as u32;
        let start = (self.class.accs.len(), self.class.waits.len(), self.class.posts.len());
        let agent = |world: &World<'_>, a| world.info(family).index(a);
        let (far, mut touched) = (self.far, std::mem::take(&mut self.touched));
        touched.clear();
        for (line, a) in x.accesses.iter().enumerate() {
            let Some(spec) = self.world.info(family).contract.operand(a.operand).copied() else {
                continue;
            };
            let by = agent(self.world, spec.agent);
            let (a, more) = self.hoisted(task, a, &lines.accesses[line]);
            self.each(family, task, &more, a.at, inner, &a.each, &a.when, |u, at, step| {
                let found = u.region(family, line, at, a)?;
                if far && (found.is_none() || x.leaf.sends()) {
                    let rank = u.points.rank(at, &a.rank)? as u32;
                    u.class.named.push(NamedRec { task: id, line: line as u32, rank });
                }
                let each = a.each.is_some().then(|| at.vars[usize::from(Var::EACH.0)]);
                touched.push((a.operand, step, each, found.map(|f| f.0)));
                if let Some((boxed, version, home)) = found {
                    u.class.accs.push(AccRec {
                        task: id,
                        line: line as u32,
                        agent: by,
                        proxy: spec.proxy,
                        mode: a.mode,
                        step,
                        boxed,
                        version,
                        // To the same access to memory of rank 0.
                        turn: u.world.rotation.turn_between(home as u32, at.rank() as u32),
                    });
                }
                Ok(())
            })?;
        }
        let tab = |t: &Operated| t.0 == Operand::Tab;
        let looked_up: Vec<_> = touched.iter().filter(|t| tab(t)).filter_map(|t| t.3).collect();
        touched.retain(|t| !tab(t));
        if !self.outside {
            self.fit(family, task, &touched);
        }
        self.touched = touched;
        for (line, w) in (0..).zip(&x.waits) {
            let by = agent(self.world, w.by);
            let (w, more) = self.hoisted(task, w, &lines.waits[line as usize]);
            self.each(family, task, &more, w.at, inner, &w.each, &w.when, |u, at, step| {
                let count = u.points.eval(at, &w.count)?;
                if let Some(word) = u.word(family, w.edge, at, at.rank(), w.signal, &w.index)? {
                    u.class.waits.push(WaitRec { task: id, line, agent: by, step, word, count });
                }
                Ok(())
            })?;
        }
        for (line, p) in (0..).zip(&x.posts) {
            let by = agent(self.world, p.by);
            let (p, more) = self.hoisted(task, p, &lines.posts[line as usize]);
            self.each(family, task, &more, p.at, inner, &p.each, &p.when, |u, at, step| {
                let add = u.points.eval(at, &p.add)?;
                let rank = u.points.rank(at, &p.rank)?;
                if let Some(word) = u.word(family, p.edge, at, rank, p.signal, &p.index)?
                    && add != 0
                {
                    u.class.posts.push(PostRec { task: id, line, agent: by, step, word, add });
                }
                Ok(())
            })?;
        }
        self.looked_up(family, task, &looked_up);
        let c = &mut self.class;
        if self.world.rotation.is_folded() {
            symmetry::sort(c, start.0, start.1, start.2);
            if task.rank() > 0 {
                let of = c.tasks.get(self.next as usize);
                let (what, from) = ((family, inner + 2), [start.0, start.1, start.2]);
                self.unlike |= !of.is_some_and(|of| symmetry::alike(c, of, what, from));
                c.accs.truncate(start.0);
                c.waits.truncate(start.1);
                c.posts.truncate(start.2);
                self.next += 1;
                return Ok(());
            }
        } else {
            c.accs[start.0..].sort_by_key(|a| a.step);
            c.waits[start.1..].sort_by_key(|w| w.step);
            c.posts[start.2..].sort_by_key(|p| p.step);
        }
        c.tasks.push(TaskRec {
            family,
            rank: task.rank() as u32,
            steps: inner + 2,
            domain: task.domain().into(),
            accs: start.0 as u32..c.accs.len() as u32,
            waits: start.1 as u32..c.waits.len() as u32,
            posts: start.2 as u32..c.posts.len() as u32,
        });
        Ok(())
    }

    /// Everything that a task looks up in memory is in what it reads for that.
    fn looked_up(&mut self, family: FamId, task: &Task, tab: &[BoxId]) {
        let mut entries = std::mem::take(&mut self.entries);
        self.points.take_looked_up(&mut entries);
        entries.sort_unstable();
        entries.dedup();
        let plan = self.world.plan;
        if plan.knows_meetings(&plan.families[family]) {
            let met = |id: TabId| matches!(plan.tables[id].source, TableSource::Meets { .. });
            entries.retain(|(id, _)| !met(*id));
        }
        let mut index = std::mem::take(&mut self.index);
        let missing = entries.iter().copied().find(|(id, flat)| {
            let table = &plan.tables[*id];
            unflatten(*flat, &table.shape, &mut index);
            !tab.iter().any(|boxed| {
                let b = &self.world.boxes.all[*boxed as usize];
                let inside =
                    |(at, (base, len)): (&i64, &(i64, i64))| (*base..base + len).contains(at);
                Some(b.buffer) == table.stored && index.iter().zip(b.dims.iter()).all(inside)
            })
        });
        (self.entries, self.index) = (entries, index);
        let Some((id, flat)) = missing else { return };
        let x = &plan.families[family];
        let mut index = Vec::new();
        unflatten(flat, &plan.tables[id].shape, &mut index);
        let v = Violation::Capacity {
            place: format!("{family} {:?}", x.name),
            message: format!(
                "looks up {id}{index:?}, which no access `tab` of the task reads (tile {:?} of rank {})",
                task.domain(),
                task.rank()
            ),
        };
        self.tell(family, "looked up", v);
    }

    /// The operands of a task fit each other.
    fn fit(&mut self, family: FamId, task: &Task, touched: &[Operated]) {
        if let Some(over) = &mut self.over {
            over.fit(&self.world.boxes, family, touched);
            return;
        }
        let boxes = &self.world.boxes;
        // Only extents matter: most tasks of a family are alike.
        self.sizes.clear();
        self.sizes.push(family.index() as i64);
        for (operand, step, each, boxed) in touched {
            let dims = boxed.map_or(&[][..], |b| &boxes.all[b as usize].dims);
            let head = [*operand as i64, i64::from(*step), each.unwrap_or(-1), dims.len() as i64];
            self.sizes.extend(head);
            self.sizes.extend(dims.iter().map(|d| d.1));
        }
        if self.fitted.contains(&self.sizes) {
            return;
        }
        let regions: Vec<_> = touched
            .iter()
            .map(|(operand, step, each, boxed)| Touched {
                operand: *operand,
                step: *step,
                each: *each,
                extents: boxed.map(|b| &*boxes.all[b as usize].dims),
            })
            .collect();
        let x = &self.world.plan.families[family];
        if let Err(what) = leaf::misfit(x, &regions) {
            let (tile, rank) = (task.domain(), task.rank());
            let v = Violation::Capacity {
                place: format!("{family} {:?}", x.name),
                message: format!(
                    "its operands do not fit each other: {what} (tile {tile:?} of rank {rank})"
                ),
            };
            self.tell(family, "operands", v);
            return;
        }
        self.fitted.insert(self.sizes.clone());
    }

    /// A line with what its repetitions share, and the values of that: as it is where one of them has none.
    fn hoisted<'l, T>(
        &self,
        task: &Task,
        line: &'l T,
        hoisted: &'l Option<Hoisted<T>>,
    ) -> (&'l T, Vec<i64>) {
        let of = |h: &'l Hoisted<T>| {
            let values = h.values.iter().map(|e| self.points.eval(task, e).ok());
            Some((&h.line, values.collect::<Option<_>>()?))
        };
        hoisted.as_ref().and_then(of).unwrap_or((line, Vec::new()))
    }

    /// Runs `f` for every repetition of a line, with its step, and `more` variables behind those of the task.
    #[allow(clippy::too_many_arguments)]
    fn each(
        &mut self,
        family: FamId,
        task: &Task,
        more: &[i64],
        at: Point,
        inner: u32,
        each: &Option<Each>,
        when: &Option<Expr>,
        mut f: impl FnMut(&mut Self, &Task, u32) -> Result<(), PointError>,
    ) -> Result<(), Violation> {
        // The same as `Points::for_each`, without a task of its own for each step.
        let mut here = std::mem::replace(&mut self.here, Task { family, vars: Vec::new() });
        here.family = family;
        here.vars.clear();
        here.vars.extend_from_slice(&task.vars);
        here.vars.extend_from_slice(more);
        let steps = match at {
            Point::Start => 0..1,
            Point::Inner => 1..inner + 1,
            Point::End => inner + 1..inner + 2,
        };
        for step in steps {
            here.vars[usize::from(Var::INNER.0)] = (i64::from(step) - 1).max(0);
            here.vars[usize::from(Var::EACH.0)] = task.vars[usize::from(Var::EACH.0)];
            let mut n = 1;
            if let Some(each) = each {
                n = self.points.eval(&here, &each.extent).map_err(Violation::Point)?;
                self.spend(family, n)?;
            }
            self.spend(family, 1)?;
            for i in 0..n {
                here.vars[usize::from(Var::EACH.0)] = i;
                let there = match when {
                    Some(when) => self.points.eval(&here, when).map_err(Violation::Point)? != 0,
                    None => true,
                };
                if there {
                    f(self, &here, step).map_err(Violation::Point)?;
                }
            }
        }
        self.here = here;
        Ok(())
    }

    fn word(
        &mut self,
        family: FamId,
        edge: EdgeId,
        at: &Task,
        rank: usize,
        signal: SigId,
        index: &[Expr],
    ) -> Result<Option<u32>, PointError> {
        self.index.clear();
        for e in index {
            self.index.push(self.points.eval(at, e)?);
        }
        let index = &self.index;
        let word = self.world.words.find(rank, signal, index);
        if let (Some(_), Some(turned)) = (word, &self.world.turned) {
            return Ok(self.turned_word(at.rank(), rank, signal, index.clone(), turned));
        }
        if word.is_none() {
            let shape = self.world.words.shape(rank, signal);
            let x = &self.world.plan.families[family];
            let v = Violation::Capacity {
                place: format!("{family} {:?}: {edge}", x.name),
                message: format!(
                    "{signal}{index:?} is outside the array, which is {shape:?} on rank {rank} (tile {:?} of rank {})",
                    &at.domain()[..x.domain.len()],
                    at.rank()
                ),
            };
            self.tell(family, &edge.to_string(), v);
        }
        Ok(word)
    }

    fn region(
        &mut self,
        family: FamId,
        line: usize,
        at: &Task,
        a: &Access,
    ) -> Result<Option<(BoxId, i64, usize)>, PointError> {
        let turned = self.world.turned.as_ref().map(|t| &t.buffers[a.buffer.index()][..]);
        if let Some(over) = &mut self.over {
            let found = over.region(&mut self.world.boxes, family, line, at, a, turned);
            self.unlike |= over.unlike;
            return found;
        }
        let mut region = std::mem::replace(&mut self.found, Region::none());
        let there = self.points.region_into(at, a, &mut region)?;
        if !there {
            // A kernel computes where a region begins before it knows that nothing is in it.
            a.region.iter().try_for_each(|(base, _)| self.points.eval(at, base).map(drop))?;
        }
        let found = if there { self.boxed(family, line, at, &mut region) } else { None };
        self.found = region;
        Ok(found)
    }

    /// The box of a region, its version, and the rank whose memory it is; `None` if it lies outside its buffer.
    fn boxed(
        &mut self,
        family: FamId,
        line: usize,
        at: &Task,
        region: &mut Region,
    ) -> Option<(BoxId, i64, usize)> {
        let buffer: BufId = region.buffer;
        let turned = self.world.turned.as_ref().map(|t| &t.buffers[buffer.index()][..]);
        let shape = &self.world.shapes[buffer.index()][region.rank];
        let inside =
            region.dims.iter().zip(shape).all(|((base, len), n)| *base >= 0 && base + len <= *n);
        if !inside {
            self.outside = true;
            let shape = shape.clone();
            let access =
                Actor::Task(site::outside(self.world, family, at, line, region, self.epoch as u32));
            self.tell(
                family,
                &format!("access {line}"),
                Violation::Bounds { access: Box::new(access), shape },
            );
            return None;
        }
        let (version, home) = (region.version, region.rank);
        if let Some(turned) = turned {
            for (d, dim) in region.dims.iter_mut().enumerate() {
                let Some(way) = turned[d] else { continue };
                match way.turned_back(shape[d], *dim, home) {
                    Some(base) => dim.0 = base,
                    None => self.unlike = true,
                }
            }
            region.rank = 0;
        }
        Some((self.world.boxes.intern(region), version, home))
    }

    /// A word as rank 0 has it, seen from a task that rank 0's stands for.
    fn turned_word(
        &self,
        task: usize,
        home: usize,
        signal: SigId,
        mut index: Vec<i64>,
        turned: &Turned,
    ) -> Option<u32> {
        let words = &self.world.words;
        let shape = words.shape(home, signal);
        for (d, i) in index.iter_mut().enumerate() {
            if let Some(way) = turned.signals[signal.index()][d] {
                *i = way.turned_back(shape[d], (*i, 1), home)?;
            }
        }
        let own = words.find(0, signal, &index)?;
        let rotation = self.world.rotation;
        Some(rotation.word(own, rotation.turn_between(task as u32, home as u32)))
    }
}

/// The place of an entry of a table.
fn unflatten(mut flat: usize, shape: &[u32], index: &mut Vec<i64>) {
    index.clear();
    index.resize(shape.len(), 0);
    for (i, n) in index.iter_mut().zip(shape).rev() {
        *i = (flat % (*n).max(1) as usize) as i64;
        flat /= (*n).max(1) as usize;
    }
}
