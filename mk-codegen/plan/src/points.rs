//! A plan at concrete points: its tasks on each rank, and the value of their expressions.
//!
//! The verifier, the CPU executor and the cost model all unroll a plan through this one module.

use super::{
    entity::{BufId, Entity, FamId, TabId},
    expr::{Env, EvalError, Expr, Var},
    mma::mma_swaps,
    names::Operand,
    plan::{Access, Each, Family, Plan, Positions},
    tables::TableSet,
};
use std::cell::RefCell;
use thiserror::Error;

/// Most tasks of one epoch, over all ranks, of a plan that anybody unrolls.
pub const MAX_TASKS: u64 = 1 << 20;

/// What has a value at a point.
pub(crate) type Result<T, E = PointError> = std::result::Result<T, E>;

/// An expression of a plan that has no value at a point that the plan reaches.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rank {rank}: {place}: `{text}`: {source}")]
pub struct PointError {
    /// The rank.
    pub rank: usize,
    /// The family or buffer.
    pub place: String,
    /// The expression.
    pub text: String,
    /// Why.
    pub source: EvalError,
}

/// One task: a point of a family's domain, on a rank, in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The family.
    pub family: FamId,
    /// Values of all variable slots; see [`Var`].
    pub vars: Vec<i64>,
}

impl Task {
    /// The rank that runs it.
    pub fn rank(&self) -> usize {
        self.vars[Var::RANK.0 as usize] as usize
    }
    /// The launch.
    pub fn epoch(&self) -> i64 {
        self.vars[Var::EPOCH.0 as usize]
    }
    /// Linear index in its family.
    pub fn linear(&self) -> i64 {
        self.vars[Var::LINEAR.0 as usize]
    }
    /// Values of the domain's variables.
    pub fn domain(&self) -> &[i64] {
        &self.vars[Var::DOMAIN as usize..]
    }
}

/// A box of a buffer on a rank; every length is at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The rank whose memory it is.
    pub rank: usize,
    /// The buffer.
    pub buffer: BufId,
    /// Base and length in each dimension.
    pub dims: Vec<(i64, i64)>,
    /// See [`Access::version`].
    pub version: i64,
}

impl Region {
    /// Room for one.
    pub fn none() -> Region {
        Region { rank: 0, buffer: BufId::new(0), dims: Vec::new(), version: 0 }
    }
    /// Number of elements.
    pub fn len(&self) -> i64 {
        self.dims.iter().map(|d| d.1).product()
    }
    /// Never: an empty region is not made.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Number of elements in both, 0 if they are of different memory.
    pub fn overlap(&self, other: &Region) -> i64 {
        if self.rank != other.rank
            || self.buffer != other.buffer
            || self.dims.len() != other.dims.len()
        {
            return 0;
        }
        let both = self.dims.iter().zip(&other.dims);
        both.map(|(a, b)| ((a.0 + a.1).min(b.0 + b.1) - a.0.max(b.0)).max(0)).product()
    }
}

/// Evaluates a plan's expressions for one set of tables.
#[derive(Clone, Debug)]
pub struct Points<'a> {
    /// The plan.
    pub plan: &'a Plan,
    tables: &'a TableSet,
    dims: Vec<i64>,
    /// What was looked up in memory, where that is noted.
    looked_up: Option<RefCell<Vec<(TabId, usize)>>>,
}

impl<'a> Points<'a> {
    /// For the plan's own dimension values.
    pub fn new(plan: &'a Plan, tables: &'a TableSet) -> Points<'a> {
        let dims = plan.dims.values().map(|d| i64::from(d.value)).collect();
        Points { plan, tables, dims, looked_up: None }
    }

    /// As [`Points::new`], noting what is looked up in memory: [`Points::take_looked_up`].
    pub fn noting(plan: &'a Plan, tables: &'a TableSet) -> Points<'a> {
        let stored = plan.tables.values().any(|t| t.stored.is_some());
        Points { looked_up: stored.then(RefCell::default), ..Points::new(plan, tables) }
    }

    /// Tables in memory, and numbers of entries, that expressions have looked up since the last call: in the place of
    /// what is in `into`.
    pub fn take_looked_up(&self, into: &mut Vec<(TabId, usize)>) {
        into.clear();
        if let Some(noted) = &self.looked_up {
            std::mem::swap(into, &mut noted.borrow_mut());
        }
    }

    fn raw(&self, rank: usize, vars: &[i64], e: &Expr) -> Result<i64, EvalError> {
        // Most are constants and variables.
        match e {
            Expr::Const(c) => return Ok(i64::from(*c)),
            Expr::Var(v) if usize::from(v.0) < vars.len() => return Ok(vars[usize::from(v.0)]),
            _ => {}
        }
        let tables = |id: TabId, index: &[i64]| self.look_up(rank, id, index);
        let found = e.value(&self.dims, vars, &tables);
        found.map_or_else(|| e.eval(&Env { dims: &self.dims, vars, tables: &tables }), Ok)
    }

    /// An entry of a table, as a rank sees it; `None` outside the table.
    pub fn look_up(&self, rank: usize, id: TabId, index: &[i64]) -> Option<i64> {
        let shape = &self.plan.tables.get(id)?.shape;
        if shape.len() != index.len() {
            return None;
        }
        let mut flat = 0usize;
        for (n, i) in shape.iter().zip(index) {
            let i = u32::try_from(*i).ok().filter(|i| i < n)?;
            flat = flat * *n as usize + i as usize;
        }
        if let Some(noted) = &self.looked_up
            && self.plan.is_stored(id)
        {
            noted.borrow_mut().push((id, flat));
        }
        self.tables.values(rank, id).get(flat).map(|v| i64::from(*v))
    }

    /// All entries of a table, as a rank sees it.
    pub fn contents(&self, rank: usize, id: TabId) -> &'a [i32] {
        self.tables.values(rank, id)
    }

    /// The value of one of a family's expressions in a task.
    ///
    /// # Errors
    /// Where the expression has no value.
    pub fn eval(&self, task: &Task, e: &Expr) -> Result<i64> {
        self.raw(task.rank(), &task.vars, e).map_err(|source| self.error(task, e, source))
    }

    fn error(&self, task: &Task, e: &Expr, source: EvalError) -> PointError {
        let family = &self.plan.families[task.family];
        let place = format!("{} {:?} {:?}", task.family, family.name, task.domain());
        PointError {
            rank: task.rank(),
            place,
            text: self.plan.text(Some(family), None, e).to_string(),
            source,
        }
    }

    /// A buffer's extents on a rank.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn shape(&self, buffer: BufId, rank: usize) -> Result<Vec<i64>> {
        self.plan_exprs(&self.plan.buffers[buffer].shape, rank, || buffer.to_string())
    }

    /// Whether what a family reads as `operand` passes through the last-level cache and is of no use there: every byte
    /// is read by one task, and there are more than the `cache_bytes` that stay until the next launch.
    ///
    /// # Errors
    /// As [`Self::shape`].
    pub fn streams(&self, family: FamId, operand: Operand, cache_bytes: f64) -> Result<bool> {
        let f = &self.plan.families[family];
        let access = f.accesses.iter().find(|a| a.operand == operand);
        let (Some(a), true) = (access, self.plan.reads_once(family, operand)) else {
            return Ok(false);
        };
        let elements: f64 = self.shape(a.buffer, 0)?.iter().map(|n| *n as f64).product();
        let bytes = elements * self.plan.buffers[a.buffer].dtype.size_bytes() as f64;
        Ok(bytes > cache_bytes)
    }

    /// The first task whose tile of `block` rows and columns TMA cannot store to the region of `c`. It stores whole
    /// boxes: rows that end inside the tensor are sent one by one, which takes rows of 128 bytes; columns must end
    /// where the tensor does, or the box would spill into what another task owns. Of tiles with swapped operands rows
    /// end there, too.
    ///
    /// # Errors
    /// Where a task or a region has no value.
    pub fn clipped(&self, family: FamId, c: &Access, block: [u32; 2]) -> Result<Option<Task>> {
        let product = self.plan.families[family].leaf.product();
        let swaps = product.is_some_and(|x| mma_swaps([x.block[0], x.block[1]]));
        let row_by_row = block[1].is_multiple_of(64) && !swaps;
        let runtime = self.plan.runtime_dim().is_some();
        for rank in 0..self.plan.mesh.size() as usize {
            let shape = self.shape(c.buffer, rank)?;
            for task in self.tasks(family, rank, 1)? {
                let Some(region) = self.region(&task, c)? else { continue };
                let n = region.dims.len();
                let ends = |d: usize, side: u32| {
                    let (base, len) = region.dims[d];
                    len >= i64::from(side) || base + len == shape[d]
                };
                let rows_end = !runtime
                    && ends(n - 2, block[0])
                    && (n == 2 || region.dims[n - 2].1 == i64::from(block[0]));
                if !ends(n - 1, block[1]) || !(row_by_row || rows_end) {
                    return Ok(Some(task));
                }
            }
        }
        Ok(None)
    }

    /// Elements from one row of a buffer to the next on a rank.
    ///
    /// # Errors
    /// Where the pitch has no value.
    pub fn pitch(&self, buffer: BufId, rank: usize) -> Result<i64> {
        let b = &self.plan.buffers[buffer];
        let row = b.pitch.as_ref().or(b.shape.last());
        let list = self
            .plan_exprs(row.map_or(&[][..], std::slice::from_ref), rank, || buffer.to_string())?;
        Ok(list.first().copied().unwrap_or(0))
    }

    /// Extents of a signal array on a rank.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn signal_shape(&self, signal: super::SigId, rank: usize) -> Result<Vec<i64>> {
        self.plan_exprs(&self.plan.signals[signal].shape, rank, || signal.to_string())
    }

    fn plan_exprs(&self, list: &[Expr], rank: usize, at: impl Fn() -> String) -> Result<Vec<i64>> {
        let one = |e: &Expr| {
            self.raw(rank, &[rank as i64], e).map_err(|source| PointError {
                rank,
                place: at(),
                text: self.plan.text(None, None, e).to_string(),
                source,
            })
        };
        list.iter().map(one).collect()
    }

    /// The tasks of a family on a rank, in the family's order.
    ///
    /// # Errors
    /// Where an extent or an `order` expression has no value. Whether `order` names every point once is the
    /// verifier's business.
    pub fn tasks(&self, family: FamId, rank: usize, epoch: i64) -> Result<Vec<Task>> {
        let x = &self.plan.families[family];
        let mut vars = vec![0; Var::DOMAIN as usize + x.domain.len()];
        vars[Var::RANK.0 as usize] = rank as i64;
        vars[Var::EPOCH.0 as usize] = epoch;
        let mut points = Vec::new();
        self.nest(&mut Task { family, vars }, x, 0, &|n| (0..n).collect(), &mut points)?;
        for (t, task) in points.iter_mut().enumerate() {
            task.vars[Var::LINEAR.0 as usize] = t as i64;
            if !x.order.is_empty() {
                let decoded =
                    x.order.iter().map(|e| self.eval(task, e)).collect::<Result<Vec<_>, _>>()?;
                task.vars.truncate(Var::DOMAIN as usize);
                task.vars.extend(decoded);
            }
        }
        Ok(points)
    }

    /// How many tasks [`Points::tasks`] would make, and a loop of none counts as one, so that loops of empty loops are
    /// bounded, too. Stops counting above `limit`.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn count(&self, family: FamId, rank: usize, epoch: i64, limit: u64) -> Result<u64> {
        let domain = &self.plan.families[family].domain;
        let mut vars = vec![0; Var::DOMAIN as usize + domain.len()];
        vars[Var::RANK.0 as usize] = rank as i64;
        vars[Var::EPOCH.0 as usize] = epoch;
        self.below(&mut Task { family, vars }, domain, limit)
    }

    fn below(&self, task: &mut Task, rest: &[(String, Expr)], limit: u64) -> Result<u64> {
        let depth = task.vars.len() - Var::DOMAIN as usize - rest.len();
        let Some(((_, extent), inner)) = rest.split_first() else { return Ok(1) };
        let n = self.eval(task, extent)?.max(0);
        if inner.is_empty() {
            return Ok((n as u64).max(1));
        }
        let mut total = 0;
        for i in 0..n {
            task.vars[Var::domain(depth).0 as usize] = i;
            total += self.below(task, inner, limit)?.max(1);
            if total > limit {
                break;
            }
        }
        task.vars[Var::domain(depth).0 as usize] = 0;
        Ok(total)
    }

    /// Tasks at both ends of each loop, and in its middle; where there is an `order`, those at the ends of all of it.
    ///
    /// # Errors
    /// As [`Points::tasks`].
    pub fn ends(&self, family: FamId, rank: usize, epoch: i64) -> Result<Vec<Task>> {
        let x = &self.plan.families[family];
        let mut task = Task { family, vars: vec![0; Var::DOMAIN as usize + x.domain.len()] };
        task.vars[Var::RANK.0 as usize] = rank as i64;
        task.vars[Var::EPOCH.0 as usize] = epoch;
        if x.order.is_empty() {
            let mut points = Vec::new();
            self.nest(&mut task, x, 0, &|n| some_of(n, 2), &mut points)?;
            return Ok(points);
        }
        let count = self.count(family, rank, epoch, u64::MAX)?;
        let one = |t: i64| {
            let mut task = task.clone();
            task.vars[Var::LINEAR.0 as usize] = t;
            let domain = x.order.iter().map(|e| self.eval(&task, e));
            let domain = domain.collect::<Result<Vec<_>, _>>()?;
            task.vars.truncate(Var::DOMAIN as usize);
            task.vars.extend(domain);
            Ok(task)
        };
        some_of(i64::try_from(count).unwrap_or(i64::MAX), 32).into_iter().map(one).collect()
    }

    fn nest(
        &self,
        task: &mut Task,
        x: &Family,
        depth: usize,
        some: &dyn Fn(i64) -> Vec<i64>,
        out: &mut Vec<Task>,
    ) -> Result<()> {
        let Some((_, extent)) = x.domain.get(depth) else {
            out.push(task.clone());
            return Ok(());
        };
        for i in some(self.eval(task, extent)?.max(0)) {
            task.vars[Var::domain(depth).0 as usize] = i;
            self.nest(task, x, depth + 1, some, out)?;
        }
        Ok(())
    }

    /// Iterations of a task's inner loop: 1 if it has none.
    ///
    /// # Errors
    /// Where the extent has no value.
    pub fn inner(&self, task: &Task) -> Result<i64> {
        match &self.plan.families[task.family].inner {
            Some((_, extent)) => Ok(self.eval(task, extent)?.max(0)),
            None => Ok(1),
        }
    }

    /// Places in the sequence of a task's first query and of the first key of an iteration; `None` where nothing is
    /// masked by position.
    ///
    /// # Errors
    /// Where a position has no value.
    pub fn positions(&self, task: &Task, inner: i64) -> Result<Option<[i64; 2]>> {
        let Some(Positions { q, k }) = &self.plan.families[task.family].positions else {
            return Ok(None);
        };
        let mut at = task.clone();
        at.vars[Var::INNER.0 as usize] = inner;
        Ok(Some([self.eval(&at, q)?, self.eval(&at, k)?]))
    }

    /// Runs `f` for every repetition of an access, wait or post whose condition holds, with `each` and `inner` bound.
    ///
    /// # Errors
    /// Where an extent or a condition has no value, and whatever `f` returns.
    pub fn for_each<E: From<PointError>>(
        &self,
        task: &Task,
        inner: i64,
        each: Option<&Each>,
        when: Option<&Expr>,
        mut f: impl FnMut(&Task) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = task.clone();
        at.vars[Var::INNER.0 as usize] = inner;
        let n = match each {
            Some(each) => self.eval(&at, &each.extent)?,
            None => 1,
        };
        for i in 0..n {
            at.vars[Var::EACH.0 as usize] = i;
            if let Some(when) = when
                && self.eval(&at, when)? == 0
            {
                continue;
            }
            f(&at)?;
        }
        Ok(())
    }

    /// The memory of one repetition of an access, or `None` where it is empty. `at` comes from [`Points::for_each`].
    ///
    /// # Errors
    /// Where an expression has no value, or the rank is outside the mesh.
    pub fn region(&self, at: &Task, access: &Access) -> Result<Option<Region>> {
        let mut region = Region { dims: Vec::with_capacity(access.region.len()), ..Region::none() };
        Ok(self.region_into(at, access, &mut region)?.then_some(region))
    }

    /// As [`Points::region`], in the place of another one. Whether there is one.
    pub fn region_into(&self, at: &Task, access: &Access, region: &mut Region) -> Result<bool> {
        region.dims.clear();
        // A kernel has the rank of a region in which there is nothing, too.
        region.rank = self.rank(at, &access.rank)?;
        for (base, len) in &access.region {
            let len = self.eval(at, len)?;
            if len < 1 {
                return Ok(false);
            }
            region.dims.push((self.eval(at, base)?, len));
        }
        region.buffer = access.buffer;
        region.version = self.eval(at, &access.version)?;
        Ok(true)
    }

    /// A rank expression's value, checked against the mesh.
    ///
    /// # Errors
    /// Where it has no value or names no rank.
    pub fn rank(&self, at: &Task, e: &Expr) -> Result<usize> {
        let rank = self.eval(at, e)?;
        let world = i64::from(self.plan.mesh.size());
        if (0..world).contains(&rank) {
            return Ok(rank as usize);
        }
        Err(self.error(at, e, EvalError::Rank { rank, world }))
    }
}

/// The first and the last few of so many numbers, and as many in the middle.
fn some_of(n: i64, few: i64) -> Vec<i64> {
    if n <= 3 * few {
        return (0..n).collect();
    }
    let middle = (n - few) / 2;
    (0..few).chain(middle..middle + few).chain(n - few..n).collect()
}
