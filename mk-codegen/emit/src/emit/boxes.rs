//! Where the boxes that TMA moves may begin and end.

use super::{EmitError, Result, context::Emitter, maps::View};
use mk_plan::{Access, Expr, FamId, Family, Point, Space, Task, Var};

impl Emitter<'_> {
    /// Tasks of a family on a rank: of those in which these expressions have one value, one, in no order.
    fn tasks_by(&self, id: FamId, rank: usize, list: &[&Expr]) -> Result<Vec<Task>> {
        let f = &self.plan.families[id];
        let named: Vec<bool> = (0..f.domain.len())
            .map(|d| {
                let extents = f.domain[d + 1..].iter().map(|(_, extent)| extent);
                list.iter().copied().chain(extents).any(|e| e.mentions(Var::domain(d)))
            })
            .collect();
        let vars = vec![0; usize::from(Var::DOMAIN) + f.domain.len()];
        let mut task = Task { family: id, vars };
        task.vars[usize::from(Var::RANK.0)] = rank as i64;
        task.vars[usize::from(Var::EPOCH.0)] = 1;
        let mut out = Vec::new();
        self.nest(&mut task, f, &named, &mut out)?;
        Ok(out)
    }

    /// `named`: loops that are gone through, from the one at which `task` is on.
    fn nest(&self, task: &mut Task, f: &Family, named: &[bool], out: &mut Vec<Task>) -> Result<()> {
        let Some((goes, rest)) = named.split_first() else {
            out.push(task.clone());
            return Ok(());
        };
        let d = f.domain.len() - named.len();
        let n = self.points.eval(task, &f.domain[d].1)?;
        for i in 0..if *goes { n } else { n.min(1) } {
            task.vars[usize::from(Var::domain(d).0)] = i;
            self.nest(task, f, rest, out)?;
        }
        task.vars[usize::from(Var::domain(d).0)] = 0;
        Ok(())
    }

    /// A box begins at a multiple of 16 bytes along the last dimension: TMA takes anything else for an illegal
    /// instruction.
    pub(super) fn check_starts(&self, id: FamId, a: &Access) -> Result<()> {
        let size = self.plan.buffers[a.buffer].dtype.size_bytes() as i64;
        let inner = self.plan.families[id].inner.iter().map(|(_, extent)| extent);
        let names: Vec<&Expr> = inner.chain(a.region.last().map(|(base, _)| base)).collect();
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.tasks_by(id, rank, &names)? {
                let iterations = if a.at == Point::Inner { self.points.inner(&task)? } else { 1 };
                for i in 0..iterations {
                    let mut start = 0;
                    self.points.for_each::<EmitError>(&task, i, None, None, |at| {
                        start = self.points.eval(at, &a.region[a.region.len() - 1].0)?;
                        Ok(())
                    })?;
                    if start * size % 16 != 0 {
                        let what = format!(
                            "task {:?} of rank {rank} begins {} at element {start} of a row, which is not a multiple \
                             of 16 bytes",
                            task.domain(),
                            a.operand
                        );
                        return EmitError::refuse(id.to_string(), what);
                    }
                }
            }
        }
        Ok(())
    }

    /// TMA stores whole boxes.
    pub(super) fn check_clipped(&self, id: FamId, c: &Access, block: [u32; 2]) -> Result<()> {
        let Some(task) = self.points.clipped(id, c, block)? else { return Ok(()) };
        let what = format!("task {:?} ends inside the tensor: use store=direct", task.domain());
        EmitError::refuse(id.to_string(), what)
    }

    /// Boxes of `columns` that are sent as wholes end where the region does.
    pub(super) fn check_panels(&self, id: FamId, c: &Access, columns: u32) -> Result<()> {
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                let Some(region) = self.points.region(&task, c)? else { continue };
                let n = region.dims.last().map_or(0, |d| d.1);
                if n % i64::from(columns) != 0 {
                    let what = format!(
                        "task {:?} of rank {rank} has {n} columns of one half, no multiple of {columns}: use \
                         store=direct",
                        task.domain()
                    );
                    return EmitError::refuse(id.to_string(), what);
                }
            }
        }
        Ok(())
    }

    /// Rows that leave through registers do so in up to 16 bytes at once: a part of one begins at a multiple of that,
    /// and ends at one, or where the row does, behind which nothing may be that a pair of elements would take in.
    pub(super) fn check_lines(&self, id: FamId, a: &Access) -> Result<()> {
        let size = self.plan.buffers[a.buffer].dtype.size_bytes() as i64;
        for rank in 0..self.plan.mesh.size() as usize {
            let shape = self.points.shape(a.buffer, rank)?;
            let Some(columns) = shape.last().copied() else {
                let what = format!("{} has no dimensions", a.buffer);
                return Err(EmitError::internal("emit/boxes.rs", what));
            };
            let gap = self.points.pitch(a.buffer, rank)? != columns && columns % 2 != 0;
            for task in self.points.tasks(id, rank, 1)? {
                let Some(region) = self.points.region(&task, a)? else { continue };
                let (start, len) = region.dims[region.dims.len() - 1];
                let end = start + len;
                let whole = start * size % 16 == 0 && (end == columns || end * size % 16 == 0);
                if gap || !whole {
                    let what = format!(
                        "task {:?} of rank {rank} writes elements {start} to {end} of rows of {columns} to `{}`: \
                         parts of rows are multiples of 16 bytes, and rows of an odd number lie side by side",
                        task.domain(),
                        a.operand
                    );
                    return EmitError::refuse(id.to_string(), what);
                }
            }
        }
        Ok(())
    }

    /// Operands are multiplied in whole boxes of `step` along dimension `k`. A part of one must end where that
    /// dimension of `view` does, behind which TMA reads zeros: it would multiply what lies there.
    pub(super) fn check_depth(
        &self,
        id: FamId,
        a: &Access,
        k: usize,
        view: &View,
        step: u32,
    ) -> Result<()> {
        let mut runtime = self.plan.dims.iter().filter(|(_, d)| d.runtime_max.is_some());
        if runtime.any(|(dim, _)| a.region[k].1.names_dim(dim)) {
            // A caller's tensor, whose map ends where it does, in each launch.
            let caller = self.plan.buffers[a.buffer].space == Space::In;
            if caller && a.region[k] == (Expr::Const(0), self.extent(a.buffer, k)) {
                return Ok(());
            }
            let what = format!("no launch decides how deep `{}` is", a.operand);
            return EmitError::refuse(id.to_string(), what);
        }
        // Consumers read zeros beyond it.
        if self.plan.names_stored(&a.region[k].1) {
            return Ok(());
        }
        for rank in 0..self.plan.mesh.size() as usize {
            let shape = self.points.shape(a.buffer, rank)?;
            // Dimensions that the map merges are contiguous.
            let merged: Vec<usize> = view.merged(shape.len(), k).collect();
            let names = merged.iter().flat_map(|d| [&a.region[*d].0, &a.region[*d].1]);
            for task in self.tasks_by(id, rank, &names.collect::<Vec<_>>())? {
                let (mut depth, mut last) = (0, true);
                for d in &merged {
                    let (base, len) = &a.region[*d];
                    let len = self.points.eval(&task, len)?;
                    last &= self.points.eval(&task, base)? + len == shape[*d];
                    if *d == k {
                        depth = len;
                    }
                }
                if depth > 0 && depth % i64::from(step) != 0 && !last {
                    let what = format!(
                        "task {:?} of rank {rank} reads {depth} of `{}` along k, which are no multiple of {step} and \
                         end inside the tensor",
                        task.domain(),
                        a.operand
                    );
                    return EmitError::refuse(id.to_string(), what);
                }
            }
        }
        Ok(())
    }
}
