//! One launch of a plan, unrolled: which memory each task touches, at which of its steps.
//!
//! Waits and posts are left out. In a plan that verifies, a read sees the writes of its own version (rules 1 and 5), so
//! that what is written where decides what is read. Tasks that move integers are apart from those that move numbers
//! (`integers.rs`).

use super::{FieldError, Result};
use crate::hash::FastMap;
use mk_plan::{
    Access, BufId, Entity, Env, EvalError, Expr, FamId, Family, Mode, Operand, Plan, Point,
    PointError, Points, TabId, Task, Var,
};

/// Most regions that a launch touches, of a plan that is evaluated.
const MAX_TOUCHES: usize = 1 << 24;

/// A region that a task touches at a step.
#[derive(Clone, Copy)]
pub(super) struct Touch {
    pub operand: Operand,
    pub write: bool,
    /// 0 is the start of the task, 1 to n are the iterations of its inner loop, n + 1 its end.
    pub phase: u32,
    /// The value of `each`, if the access repeats.
    pub each: Option<i32>,
    /// Number of the access in its family.
    pub access: u16,
    /// The memory.
    pub slab: u32,
    /// Where its bases and lengths begin in [`Unrolled::dims`].
    dims: u32,
}

/// One version of a buffer on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slab {
    pub buffer: BufId,
    pub rank: usize,
    pub version: i64,
}

/// One task.
pub(super) struct TaskRun {
    pub family: FamId,
    pub rank: u32,
    /// The last phase, that of its end.
    pub last: u32,
    /// Its touches, by phase; of a phase, reads first.
    pub touches: std::ops::Range<u32>,
    domain: u32,
}

/// All tasks of one launch on all ranks.
pub(super) struct Unrolled<'a> {
    pub plan: &'a Plan,
    pub tasks: Vec<TaskRun>,
    pub touches: Vec<Touch>,
    pub slabs: Vec<Slab>,
    /// Places in the sequence of the first query and the first key, by task and phase, of attention that masks by them.
    pub positions: FastMap<(u32, u32), [i32; 2]>,
    /// The bounds by which a task masks, two of each of its rows, and those behind them, by task.
    pub bounds: FastMap<u32, &'a [i32]>,
    /// Extents by buffer and rank.
    pub shapes: Vec<Vec<Vec<i64>>>,
    dims: Vec<(i32, i32)>,
    domains: Vec<i32>,
}

impl Unrolled<'_> {
    /// Bases and lengths of a touch.
    pub fn region(&self, t: &Touch) -> &[(i32, i32)] {
        let rank = self.plan.buffers[self.slabs[t.slab as usize].buffer].shape.len();
        &self.dims[t.dims as usize..t.dims as usize + rank]
    }

    /// A region, for messages.
    pub fn described(&self, t: &Touch) -> String {
        let slab = &self.slabs[t.slab as usize];
        let region = self.region(t).iter().map(|(base, len)| format!("{base}:{}", base + len));
        let name = &self.plan.buffers[slab.buffer].name;
        format!("{name}[{}] of rank {}", region.collect::<Vec<_>>().join(", "), slab.rank)
    }

    /// A task, for messages.
    pub fn place(&self, task: usize) -> String {
        let t = &self.tasks[task];
        let family = &self.plan.families[t.family];
        let at = &self.domains[t.domain as usize..t.domain as usize + family.domain.len()];
        let vars = family.domain.iter().zip(at).map(|((name, _), v)| format!("{name} = {v}"));
        let vars = vars.collect::<Vec<_>>().join(", ");
        let name = &family.name;
        let id = t.family;
        match vars.is_empty() {
            true => format!("{id} {name:?} on rank {}", t.rank),
            false => format!("{id} {name:?} ({vars}) on rank {}", t.rank),
        }
    }
}

/// What tasks move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// Numbers, which cells stand for.
    Numbers,
    /// Integers, each by itself.
    Integers,
}

impl Moved {
    /// Whether this is what a family moves; looking up is nothing that it moves.
    pub fn by(self, plan: &Plan, f: &Family) -> Result<bool> {
        let integers = |a: &&Access| plan.buffers[a.buffer].dtype.is_integer();
        let moved = || f.accesses.iter().filter(|a| !a.operand.looks_up());
        let (whole, other) = (moved().find(integers), moved().find(|a| !integers(a)));
        if let (Some(a), Some(b)) = (whole, other) {
            let name = |a: &Access| plan.buffers[a.buffer].dtype.name();
            let (is, and) = (format!("`{}` is {}", a.operand, name(a)), name(b));
            let message = format!("{is}, and `{}` {and}: integers are no numbers", b.operand);
            return Err(FieldError::misfit(format!("{:?}", f.name), message));
        }
        Ok(match self {
            Moved::Numbers => other.is_some(),
            Moved::Integers => whole.is_some(),
        })
    }
}

/// Unrolls a launch.
pub(super) fn unroll<'a>(points: &Points<'a>, epoch: i64, moved: Moved) -> Result<Unrolled<'a>> {
    let plan = points.plan;
    let ranks = plan.mesh.size() as usize;
    let mut shapes = Vec::new();
    for (id, _) in plan.buffers.iter() {
        shapes.push((0..ranks).map(|r| points.shape(id, r)).collect::<Result<Vec<_>, _>>()?);
    }
    let mut walk = Walk {
        points,
        out: Unrolled {
            plan,
            tasks: Vec::new(),
            touches: Vec::new(),
            slabs: Vec::new(),
            positions: FastMap::default(),
            bounds: FastMap::default(),
            shapes,
            dims: Vec::new(),
            domains: Vec::new(),
        },
        slabs: FastMap::default(),
    };
    for (id, family) in plan.families.iter() {
        if !moved.by(plan, family)? {
            continue;
        }
        for rank in 0..ranks {
            walk.family(id, family, rank, epoch)?;
        }
    }
    Ok(walk.out)
}

/// An access with constants for the rank, the epoch and dimensions.
struct KnownAccess<'a> {
    number: u16,
    access: &'a Access,
    rank: Expr,
    region: Vec<(Expr, Expr)>,
    version: Expr,
    each: Option<Expr>,
    when: Option<Expr>,
}

/// What tasks of a family do on a rank.
struct Body<'a> {
    inner: Option<Expr>,
    positions: Option<[Expr; 2]>,
    /// The table by whose rows its tasks mask, and the first of these rows.
    bounds: Option<(TabId, Expr)>,
    accesses: Vec<KnownAccess<'a>>,
}

struct Walk<'p, 'a> {
    points: &'p Points<'a>,
    out: Unrolled<'a>,
    slabs: FastMap<Slab, u32>,
}

impl<'a> Walk<'_, 'a> {
    fn family(&mut self, id: FamId, family: &'a Family, rank: usize, epoch: i64) -> Result<()> {
        let known = |e: &Expr| specialised(self.points, e, rank as i64, epoch);
        let known_access = |(number, a): (usize, &'a Access)| KnownAccess {
            number: number as u16,
            access: a,
            rank: known(&a.rank),
            region: a.region.iter().map(|(b, l)| (known(b), known(l))).collect(),
            version: known(&a.version),
            each: a.each.as_ref().map(|e| known(&e.extent)),
            when: a.when.as_ref().map(known),
        };
        let accesses = family.accesses.iter().enumerate();
        let accesses = accesses.filter(|(_, a)| !a.operand.looks_up());
        let mut accesses: Vec<_> = accesses.map(known_access).collect();
        accesses.sort_by_key(|a| a.access.mode != Mode::Read);
        let extents: Vec<_> = family.domain.iter().map(|(_, e)| known(e)).collect();
        let inner = family.inner.as_ref().map(|(_, e)| known(e));
        let positions = family.positions.as_ref().map(|p| [known(&p.q), known(&p.k)]);
        let by = family.accesses.iter().find(|a| a.operand == Operand::Bounds);
        let bounds = by.and_then(|a| {
            let mut tables = self.points.plan.tables.iter();
            let (table, _) = tables.find(|(_, t)| t.stored == Some(a.buffer))?;
            Some((table, known(&a.region.first()?.0)))
        });
        let mut vars = vec![0; Var::DOMAIN as usize + extents.len()];
        vars[Var::RANK.0 as usize] = rank as i64;
        vars[Var::EPOCH.0 as usize] = epoch;
        let mut task = Task { family: id, vars };
        let body = Body { inner, positions, bounds, accesses };
        self.nest(&mut task, &extents, &body)
    }

    fn value(&self, task: &Task, e: &Expr) -> Result<i64> {
        if let Expr::Const(c) = e {
            return Ok(i64::from(*c));
        }
        let tables = |id: TabId, index: &[i64]| self.points.look_up(task.rank(), id, index);
        e.eval(&Env { dims: &[], vars: &task.vars, tables: &tables })
            .map_err(|source| self.no_value(task, e, source))
    }

    #[cold]
    fn no_value(&self, task: &Task, e: &Expr, source: EvalError) -> FieldError {
        let plan = self.points.plan;
        let family = &plan.families[task.family];
        FieldError::Point(PointError {
            rank: task.rank(),
            place: format!("{} {:?} {:?}", task.family, family.name, task.domain()),
            text: plan.text(Some(family), None, e).to_string(),
            source,
        })
    }

    fn nest(&mut self, task: &mut Task, rest: &[Expr], body: &Body<'a>) -> Result<()> {
        let Some((extent, rest)) = rest.split_first() else {
            return self.task(task, body);
        };
        let depth = task.vars.len() - rest.len() - 1;
        for i in 0..self.value(task, extent)?.max(0) {
            task.vars[depth] = i;
            self.nest(task, rest, body)?;
        }
        task.vars[depth] = 0;
        Ok(())
    }

    fn task(&mut self, task: &mut Task, body: &Body<'a>) -> Result<()> {
        let n = match &body.inner {
            Some(e) => self.value(task, e)?.max(0),
            None => 0,
        };
        let first = self.out.touches.len() as u32;
        for phase in 0..=n + 1 {
            let point = match phase {
                0 => Point::Start,
                p if p > n => Point::End,
                _ => Point::Inner,
            };
            task.vars[Var::INNER.0 as usize] = if point == Point::Inner { phase - 1 } else { 0 };
            let before = self.out.touches.len();
            for a in body.accesses.iter().filter(|a| a.access.at == point) {
                self.access(task, a, phase as u32)?;
            }
            // Where one of both comes in blocks, at each of them.
            let moves = |t: &Touch| matches!(t.operand, Operand::K | Operand::Q);
            let both = self.out.touches[before..].iter().any(moves);
            if let (Some([q, k]), true) = (&body.positions, both) {
                let at = [self.value(task, q)? as i32, self.value(task, k)? as i32];
                self.out.positions.insert((self.out.tasks.len() as u32, phase as u32), at);
            }
        }
        task.vars[Var::INNER.0 as usize] = 0;
        let touches = first..self.out.touches.len() as u32;
        if touches.is_empty() {
            return Ok(());
        }
        if let Some((table, first)) = &body.bounds {
            let first = 2 * self.value(task, first)?;
            let entries = self.points.contents(task.rank(), *table);
            let own = usize::try_from(first).ok().and_then(|first| entries.get(first..));
            self.out.bounds.insert(self.out.tasks.len() as u32, own.unwrap_or(&[]));
        }
        let domain = self.out.domains.len() as u32;
        self.out.domains.extend(task.domain().iter().map(|v| *v as i32));
        let rank = task.rank() as u32;
        let run = TaskRun { family: task.family, rank, last: n as u32 + 1, touches, domain };
        self.out.tasks.push(run);
        Ok(())
    }

    fn access(&mut self, task: &mut Task, a: &KnownAccess<'a>, phase: u32) -> Result<()> {
        let repeats = a.each.as_ref().map(|e| self.value(task, e)).transpose()?;
        for i in 0..repeats.unwrap_or(1) {
            task.vars[Var::EACH.0 as usize] = i;
            if let Some(when) = &a.when
                && self.value(task, when)? == 0
            {
                continue;
            }
            self.touch(task, a, phase, repeats.map(|_| i as i32))?;
        }
        task.vars[Var::EACH.0 as usize] = 0;
        Ok(())
    }

    fn touch(
        &mut self,
        task: &Task,
        a: &KnownAccess<'a>,
        phase: u32,
        each: Option<i32>,
    ) -> Result<()> {
        let dims = self.out.dims.len();
        for (base, len) in &a.region {
            let len = self.value(task, len)?;
            if len < 1 {
                self.out.dims.truncate(dims);
                return Ok(());
            }
            let base = self.value(task, base)?;
            self.out.dims.push((base as i32, len as i32));
        }
        let rank = self.value(task, &a.rank)?;
        let world = self.out.shapes.first().map_or(0, Vec::len);
        let Some(rank) = usize::try_from(rank).ok().filter(|r| *r < world) else {
            let source = EvalError::Rank { rank, world: world as i64 };
            return Err(self.no_value(task, &a.access.rank, source));
        };
        let buffer = a.access.buffer;
        let shape = &self.out.shapes[buffer.index()][rank];
        let mut bounds = self.out.dims[dims..].iter().zip(shape);
        let inside = bounds.all(|((b, l), n)| *b >= 0 && i64::from(*b) + i64::from(*l) <= *n);
        if !inside || self.out.touches.len() >= MAX_TOUCHES {
            let task = format!("{} on rank {}: `{}`", task.family, task.rank(), a.access.operand);
            return Err(match inside {
                false => FieldError::misfit(task, "its region leaves the buffer"),
                true => FieldError::TooLarge { what: "regions that tasks touch".into() },
            });
        }
        if a.access.mode == Mode::Accumulate {
            return Err(FieldError::unsupported(
                "a sum that is added up in memory (`accumulate`)",
                "write contributions to slots, and add them by a `reduce_tile`",
            ));
        }
        let slab = Slab { buffer, rank, version: self.value(task, &a.version)? };
        let next = self.slabs.len() as u32;
        let id = *self.slabs.entry(slab).or_insert(next);
        if id == next {
            self.out.slabs.push(slab);
        }
        self.out.touches.push(Touch {
            operand: a.access.operand,
            write: a.access.mode != Mode::Read,
            phase,
            each,
            access: a.number,
            slab: id,
            dims: dims as u32,
        });
        Ok(())
    }
}

/// An expression with constants for what does not change within a family on a rank.
fn specialised(points: &Points<'_>, e: &Expr, rank: i64, epoch: i64) -> Expr {
    let known = |e: &Expr| specialised(points, e, rank, epoch);
    match e {
        Expr::Var(Var::RANK) => Expr::Const(rank as i32),
        Expr::Var(Var::EPOCH) => Expr::Const(epoch as i32),
        Expr::Dim(d) => points.plan.dims.get(*d).map_or(e.clone(), |d| Expr::Const(d.value)),
        Expr::Const(_) | Expr::Var(_) => e.clone(),
        Expr::Bin(op, a, b) => Expr::bin(*op, known(a), known(b)),
        Expr::Select(c) => match known(&c[0]) {
            Expr::Const(0) => known(&c[2]),
            Expr::Const(_) => known(&c[1]),
            chosen => Expr::Select(Box::new([chosen, known(&c[1]), known(&c[2])])),
        },
        Expr::Table(t, index) => Expr::Table(*t, index.iter().map(known).collect()),
    }
}
