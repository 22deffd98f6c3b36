//! Properties that follow from a plan for the agents that carry it out: the families they run on end, and how.
//!
//! Nothing here is written in a plan, and nothing here is the emitter's own choice: verifier, cost model and emitter
//! ask the same functions. `emit` prints the answers at the head of each kernel.

use super::{
    entity::{Entity, FamId, RoleId},
    epilogue::{EPILOGUE_OPERANDS, carry_last, named_operands},
    expr::Expr,
    leaf::{ALayout, BLayout, Consumers, Leaf, MmaTile, Store},
    mma::{
        mma_consumers, mma_panel_columns, mma_panels, mma_staging_panels, mma_swaps,
        mma_three_by_rows,
    },
    names::Operand,
    plan::{Access, Buffer, Family, Plan, Schedule, Space},
    points::{Points, Result, Task},
};
use mk_abi::DType;

/// Of memory, and of the caches.
const LINE_BYTES: i64 = 128;

impl Plan {
    /// A role's families in order, cut where the leaf, the schedule, the types or what an epilogue reads changes: one
    /// set of agents runs each piece on end.
    pub fn runs(&self, role: RoleId) -> Vec<Vec<FamId>> {
        let mut out: Vec<Vec<FamId>> = Vec::new();
        for (id, _) in self.families.iter().filter(|(_, f)| f.role == role) {
            match out.last_mut() {
                Some(run) if self.same_body(run[0], id) => run.push(id),
                _ => out.push(vec![id]),
            }
        }
        out
    }

    fn same_body(&self, a: FamId, b: FamId) -> bool {
        let extras = |f: FamId| {
            let reads = self.families[f].accesses.iter();
            // Factors of rows may come from several places.
            let mut named = named_operands(self.families[f].leaf.epilogue());
            let factors = named.find(|(op, _)| op.scales_rows()).map(|(_, o)| o);
            let reads = reads
                .filter(|x| EPILOGUE_OPERANDS.contains(&x.operand) && Some(x.operand) != factors);
            reads.map(|x| x.buffer).collect::<Vec<_>>()
        };
        let types = |f: FamId| {
            let all = self.families[f].accesses.iter();
            let all = all.map(|x| (x.operand, x.mode, self.buffers[x.buffer].dtype));
            all.collect::<Vec<_>>()
        };
        // Tiles of a stack of matrices come through another tensor map.
        let dims = |f: FamId| self.operand(f, Operand::B).map(|b| b.region.len());
        let (one, other) = (&self.families[a], &self.families[b]);
        let computes = one.leaf.computes();
        one.leaf == other.leaf
            && one.schedule == other.schedule
            && extras(a) == extras(b)
            && (!computes || types(a) == types(b) && dims(a) == dims(b))
    }

    /// CTAs of a cluster of a role, which share each of its tasks.
    pub fn cluster(&self, role: RoleId) -> u32 {
        let of_role = self.families.values().filter(|f| f.role == role);
        of_role.map(|f| f.leaf.cluster()).max().unwrap_or(1)
    }

    /// Workers of a role that tasks are dealt out to: its CTAs, or clusters of them.
    pub fn workers(&self, role: RoleId) -> u32 {
        self.roles[role].ctas / self.cluster(role)
    }

    /// The same of every role, by id.
    pub fn all_workers(&self) -> Vec<u32> {
        let mut clusters = vec![1; self.roles.len()];
        for f in self.families.values() {
            if let Some(most) = clusters.get_mut(f.role.index()) {
                *most = f.leaf.cluster().max(*most);
            }
        }
        self.roles.values().zip(clusters).map(|(role, cluster)| role.ctas / cluster).collect()
    }

    /// Whether some agent waits for what another task, rank or host does: then all CTAs have to run at once.
    pub fn waits(&self) -> bool {
        self.families.values().any(|f| !f.waits.is_empty())
    }

    /// Whether a launch reads and writes nothing but the caller's tensors, and nobody waits or counts: it has no epoch,
    /// and harms no other launch, whenever that runs.
    pub fn keeps_nothing(&self) -> bool {
        let quiet = |f: &Family| {
            let still = f.waits.is_empty() && f.posts.is_empty();
            still && f.schedule == Schedule::Static && !f.leaf.enters()
        };
        let caller = |b: &Buffer| matches!(b.space, Space::In | Space::Out);
        self.families.values().all(quiet) && self.buffers.values().all(caller)
    }

    /// The first access of a family that names an operand.
    pub fn operand(&self, family: FamId, operand: Operand) -> Option<&Access> {
        self.families[family].accesses.iter().find(|a| a.operand == operand)
    }
}

/// The dimension of an operand A that lies along k; `None` where several could.
pub fn depth_dim(a: &Access, layout: ALayout) -> Option<usize> {
    let last = a.region.len().checked_sub(1)?;
    match layout {
        ALayout::Mk => Some(last),
        ALayout::Km => row_dim(a),
    }
}

/// The dimension, of those before the last, that a matrix's rows lie along: the only one of which more than one index
/// is taken. `None` where there are several.
pub fn row_dim(a: &Access) -> Option<usize> {
    let leading = &a.region[..a.region.len().checked_sub(1)?];
    let mut wide = leading.iter().enumerate().filter(|(_, (_, len))| *len != Expr::Const(1));
    match (wide.next(), wide.next()) {
        (Some((d, _)), None) => Some(d),
        // One row: it lies along what is taken from its beginning, and not where a shard or a matrix is chosen.
        (None, _) => {
            let whole = leading.iter().rposition(|(base, _)| *base == Expr::Const(0));
            whole.or(leading.len().checked_sub(1))
        }
        (Some(_), Some(_)) => None,
    }
}

impl Points<'_> {
    /// Steps along k of one iteration of a GEMM's task, and its iterations; `None` for other leaves, and where no
    /// dimension is k.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn steps(&self, task: &Task) -> Result<Option<(i64, i64)>> {
        let f = &self.plan.families[task.family];
        let Some(MmaTile { block, a_layout, .. }) = f.leaf.product() else { return Ok(None) };
        let a = self.plan.operand(task.family, Operand::A);
        let Some((a, d)) = a.and_then(|a| Some((a, depth_dim(a, *a_layout)?))) else {
            return Ok(None);
        };
        let depth = self.eval(task, &a.region[d].1)?;
        let step = i64::from(block[2].max(1));
        Ok(Some(((depth + step - 1).div_euclid(step), self.inner(task)?)))
    }

    /// The least number of steps along k that a tile of some families has.
    ///
    /// # Errors
    /// As [`Self::steps`].
    fn least_steps(&self, run: &[FamId]) -> Result<i64> {
        // A launch may leave a tile without rows, which makes one step.
        let mut least = if self.plan.runtime_dim().is_some() { 1 } else { i64::MAX };
        for id in run {
            let looks_up = |a: &Access| a.region.iter().any(|r| self.plan.names_stored(&r.1));
            let f = &self.plan.families[*id];
            let ragged = |a: &Access| match f.leaf.product() {
                Some(MmaTile { a_layout: ALayout::Km, .. }) => {
                    a.operand == Operand::A && looks_up(a)
                }
                _ => false,
            };
            if f.accesses.iter().any(ragged) {
                least = least.min(1);
                continue;
            }
            for rank in 0..self.plan.mesh.size() as usize {
                for task in self.tasks(*id, rank, 1)? {
                    let (each, times) = self.steps(&task)?.unwrap_or((0, 0));
                    least = least.min(each * times);
                }
            }
        }
        Ok(least)
    }

    /// The GEMM of a [run](Plan::runs) that may hand results over outside of staging, whether they are f32, and the
    /// panels of a tile. Longer epilogues leave no registers for it.
    fn panels(&self, run: &[FamId]) -> Option<(&Leaf, &MmaTile, bool, u32)> {
        let first = *run.first()?;
        let leaf = &self.plan.families[first].leaf;
        let tile = leaf.product().filter(|tile| tile.epilogue.len() <= 2)?;
        let c = self.plan.operand(first, Operand::C);
        let f32 = c.is_some_and(|c| self.plan.buffers[c.buffer].dtype == DType::F32);
        Some((leaf, tile, f32, mma_panels(tile.block, leaf.out_columns(), f32)))
    }

    /// Whether the tiles of a [run](Plan::runs) borrow the stage of their last step for results that staging has no
    /// room for.
    ///
    /// Only where a warp then overwrites nothing but rows of A that its own part of the wgmmas has read, 128 bytes
    /// each; and where no tile has fewer steps than there are stages, so that a consumer that is through with a tile
    /// knows that the storer is through with the one before (three warpgroups, which take all of that stage, wait for
    /// each other, and lay results of 16 bits over any rows); not where a partial sum comes through the ring behind the
    /// last step; and not where CTAs load together, to all of which a stage goes back (slower in a trial where the
    /// storer did that). The storer hands such a stage back, later than the `empty` edge says and before any staging
    /// panel.
    ///
    /// # Errors
    /// As [`Self::steps`].
    pub fn borrowed_stage(&self, run: &[FamId]) -> Result<bool> {
        let Some((leaf, tile, f32, panels)) = self.panels(run) else { return Ok(false) };
        let MmaTile { block, stages, a_layout, b_layout, shifted, store, consumers, .. } = tile;
        // Swapped, a warp's columns of a panel lie where its columns of B do, if those are contiguous.
        let [m, n, _] = *block;
        let own_rows = *consumers == Consumers::Cooperative
            && *a_layout == ALayout::Mk
            && (!mma_swaps([m, n]) || *b_layout == BLayout::Kn && !shifted);
        // All of the stage, when all of three warpgroups have read it: room for results of 16 bits.
        let three = mma_three_by_rows([m, n]);
        let all = three && !f32;
        let together = leaf.multicast() != [1, 1];
        let behind = carry_last(leaf.epilogue());
        let whole = *store == Store::Tma && mma_panel_columns(block[1]) == 64;
        let more = panels > mma_staging_panels([block[0], block[1]], *stages);
        if together || behind || !((own_rows && !three || all) && whole && more) {
            return Ok(false);
        }
        Ok(self.least_steps(run)? >= i64::from(*stages))
    }

    /// Whether the consumers of a [run](Plan::runs) send their tiles by themselves, of which no CTA has two: nothing is
    /// loaded behind such a tile, so that all its panels find room at once, in the staging and where the consumer's own
    /// rows of A were. Only in a kernel of which nothing stays, where nobody hears of a tile.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn only_tile(&self, run: &[FamId]) -> Result<bool> {
        let Some((leaf, tile, _, panels)) = self.panels(run) else { return Ok(false) };
        let role = self.plan.families[run[0]].role;
        let MmaTile { block, stages, a_layout, shifted, store, consumers, .. } = tile;
        let beyond = panels.saturating_sub(mma_staging_panels([block[0], block[1]], *stages));
        // Of A, or of columns of B.
        let swaps = mma_swaps([block[0], block[1]]);
        let own_rows = *a_layout == ALayout::Mk
            && !shifted
            && (swaps || block[0] > 64)
            && mma_panel_columns(block[1]) == 64;
        let across = 64 * mma_consumers([block[0], block[1]]);
        let each = if swaps { leaf.out_columns() / across } else { block[0] / across };
        let room = beyond == 0 || own_rows && beyond <= stages * each;
        let sends =
            *store == Store::Tma && *consumers == Consumers::Cooperative && leaf.cluster() == 1;
        let whole = self.plan.families.values().filter(|f| f.role == role).count() == run.len();
        if !(sends && room && whole && self.plan.keeps_nothing()) {
            return Ok(false);
        }
        for rank in 0..self.plan.mesh.size() as usize {
            let mut tasks = 0;
            for id in run {
                tasks += self.tasks(*id, rank, 1)?.len();
            }
            if tasks > self.plan.workers(role) as usize {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the rows of a [run](Plan::runs)'s tiles end inside a panel somewhere, and only where those of the tensor
    /// do, so that TMA leaves out what is beyond.
    ///
    /// # Errors
    /// Where a region has no value.
    pub fn ends_clipped(&self, run: &[FamId]) -> Result<bool> {
        let mut ends = false;
        if self.plan.runtime_dim().is_some() {
            return Ok(false);
        }
        for id in run {
            let f = &self.plan.families[*id];
            if !f.leaf.product().is_some_and(|x| x.store == Store::Tma) {
                return Ok(false);
            }
            for c in f.accesses.iter().filter(|a| a.operand == Operand::C) {
                for rank in 0..self.plan.mesh.size() as usize {
                    let shape = self.shape(c.buffer, rank)?;
                    for task in self.tasks(*id, rank, 1)? {
                        let Some(region) = self.region(&task, c)? else { continue };
                        let [(base, len), _] = region.dims[..] else { return Ok(false) };
                        if len % 64 != 0 {
                            ends = true;
                            if base + len != shape[0] {
                                return Ok(false);
                            }
                        }
                    }
                }
            }
        }
        Ok(ends)
    }

    /// Whether the tiles of a [run](Plan::runs) load B with an evict-first hint: nobody reads again what a tile reads
    /// of it, and a cache of `cache_bytes` does not keep it until the next launch. Where rows begin inside lines, two
    /// tiles share each line between them.
    ///
    /// # Errors
    /// As [`Self::streams`].
    pub fn evict_first(&self, run: &[FamId], cache_bytes: f64) -> Result<bool> {
        for id in run {
            if !self.streams(*id, Operand::B, cache_bytes)? {
                return Ok(false);
            }
            for b in self.plan.families[*id].accesses.iter().filter(|a| a.operand == Operand::B) {
                let size = self.plan.buffers[b.buffer].dtype.size_bytes() as i64;
                if self.pitch(b.buffer, 0)? * size % LINE_BYTES != 0 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Teams that take turns at the sums of a [run](Plan::runs): two, each half of a CTA's computing threads, where
    /// some CTA of the role has several.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn teams(&self, run: &[FamId]) -> Result<u32> {
        let Some(first) = run.first() else { return Ok(1) };
        let ctas = self.plan.workers(self.plan.families[*first].role);
        let mut tasks = 0;
        for id in run {
            tasks += self.tasks(*id, 0, 1)?.len();
        }
        Ok(if tasks > ctas as usize { 2 } else { 1 })
    }
}
