//! Where the boxes that TMA moves may begin and end.

use super::{context::Emitter, error::EmitError, maps::View};
use mk_plan::{Access, Expr, FamId, Point, Space};

impl Emitter<'_> {
    /// A box begins at a multiple of 16 bytes along the last dimension: TMA takes anything else for an illegal
    /// instruction.
    pub(super) fn check_starts(&self, id: FamId, a: &Access) -> Result<(), EmitError> {
        let size = self.plan.buffers[a.buffer].dtype.size_bytes() as i64;
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                let iterations = if a.at == Point::Inner { self.points.inner(&task)? } else { 1 };
                for i in 0..iterations {
                    let mut start = 0;
                    self.points.for_each::<EmitError>(&task, i, None, None, |at| {
                        start = self.points.eval(at, &a.region[a.region.len() - 1].0)?;
                        Ok(())
                    })?;
                    if start * size % 16 != 0 {
                        let what = format!(
                            "task {:?} of rank {rank} begins {} at element {start} of a row, which is not a multiple of 16 bytes",
                            task.domain(),
                            a.operand
                        );
                        return Err(EmitError::unsupported(id.to_string(), what));
                    }
                }
            }
        }
        Ok(())
    }

    /// TMA stores whole boxes.
    pub(super) fn check_clipped(
        &self,
        id: FamId,
        c: &Access,
        block: [u32; 2],
    ) -> Result<(), EmitError> {
        let Some(task) = self.points.clipped(id, c, block)? else { return Ok(()) };
        let what = format!("task {:?} ends inside the tensor: use store=direct", task.domain());
        Err(EmitError::unsupported(id.to_string(), what))
    }

    /// Boxes of `columns` that are sent as wholes end where the region does.
    pub(super) fn check_panels(
        &self,
        id: FamId,
        c: &Access,
        columns: u32,
    ) -> Result<(), EmitError> {
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                let Some(region) = self.points.region(&task, c)? else { continue };
                let n = region.dims.last().map_or(0, |d| d.1);
                if n % i64::from(columns) != 0 {
                    let what = format!(
                        "task {:?} of rank {rank} has {n} columns of one half, no multiple of {columns}: use store=direct",
                        task.domain()
                    );
                    return Err(EmitError::unsupported(id.to_string(), what));
                }
            }
        }
        Ok(())
    }

    /// Rows that leave through registers do so in up to 16 bytes at once: a part of one begins at a multiple of that,
    /// and ends at one, or where the row does, behind which nothing may be that a pair of elements would take in.
    pub(super) fn check_lines(&self, id: FamId, a: &Access) -> Result<(), EmitError> {
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
                        "task {:?} of rank {rank} writes elements {start} to {end} of rows of {columns} to `{}`: parts of rows are multiples of 16 bytes, and rows of an odd number lie side by side",
                        task.domain(),
                        a.operand
                    );
                    return Err(EmitError::unsupported(id.to_string(), what));
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
    ) -> Result<(), EmitError> {
        let mut runtime = self.plan.dims.iter().filter(|(_, d)| d.runtime_max.is_some());
        if runtime.any(|(dim, _)| a.region[k].1.names_dim(dim)) {
            // A caller's tensor, whose map ends where it does, in each launch.
            let caller = self.plan.buffers[a.buffer].space == Space::In;
            if caller && a.region[k] == (Expr::Const(0), self.extent(a.buffer, k)) {
                return Ok(());
            }
            let what = format!("no launch decides how deep `{}` is", a.operand);
            return Err(EmitError::unsupported(id.to_string(), what));
        }
        // What is behind is zeros for those who multiply.
        if self.plan.names_stored(&a.region[k].1) {
            return Ok(());
        }
        for rank in 0..self.plan.mesh.size() as usize {
            let shape = self.points.shape(a.buffer, rank)?;
            for task in self.points.tasks(id, rank, 1)? {
                let Some(region) = self.points.region(&task, a)? else { continue };
                let ends = |d: usize| region.dims[d].0 + region.dims[d].1 == shape[d];
                // Where the map merges dimensions, what they hold is contiguous.
                let last = view.merged(shape.len(), k).all(ends);
                if region.dims[k].1 % i64::from(step) != 0 && !last {
                    let what = format!(
                        "task {:?} of rank {rank} reads {} of `{}` along k, which are no multiple of {step} and end inside the tensor",
                        task.domain(),
                        region.dims[k].1,
                        a.operand
                    );
                    return Err(EmitError::unsupported(id.to_string(), what));
                }
            }
        }
        Ok(())
    }
}
