//! GEMMs.

use super::{Cost, Done};
use crate::{
    CostError, Result,
    alone::shifted_step_s,
    model::TileRate,
    unroller::Unroller,
    work::{Flow, Kind, Out, Tile, gcd, link, memory},
};
use mk_plan::{
    ALayout, Access, BLayout, Consumers, Entity, Expr, FamId, Family, MmaTile, Mode, Operand,
    Region, RoleId, Schedule, Task, Var,
};
use std::collections::HashMap;

/// With fewer tiles per CTA than this, CTAs do not drift apart.
const SEVERAL: usize = 3;

/// A box of a buffer on a rank.
type Place = (usize, usize, Vec<(i64, i64)>);

/// The share of the time of matrices beside operands that the next tile's warpgroup notices (one H200, five sizes of
/// `swiglu_grad`, `gelu_grad`, `add` and a saved result: by turns .87 to .90 of the time of the best together, where
/// matrices are read).
const HELD: f64 = 0.3;

impl Cost for MmaTile {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, missed: f64) -> Done {
        let x = u.family(task);
        u.product(task, x, self, missed)
    }
}

impl Unroller<'_> {
    /// Families of a role with statically assigned tiles that are stored to peers, at least [`SEVERAL`] per CTA.
    pub(crate) fn uneven(&self, role: RoleId, tasks: &[Task], lanes: usize) -> Vec<FamId> {
        let leaves = |a: &Access| a.operand == Operand::C && a.rank != Expr::Var(Var::RANK);
        let dealt = |x: &Family| x.leaf.product().is_some() && x.schedule == Schedule::Static;
        let of_role = self.plan.families.iter().filter(|(_, x)| x.role == role && dealt(x));
        let leaving = of_role.filter(|(_, x)| x.accesses.iter().any(leaves)).map(|(id, _)| id);
        let several =
            |id: &FamId| tasks.iter().filter(|t| t.family == *id).count() >= SEVERAL * lanes;
        leaving.filter(several).collect()
    }

    /// Cache misses of a tile's operands in bytes, by an LRU model: bytes not touched before, or not since as much as
    /// the cache holds was touched. Tasks of a wave read concurrently, and share misses.
    pub(crate) fn misses(&self, tasks: &[Task], lanes: usize) -> Result<Vec<f64>> {
        let mut out = vec![0.0; tasks.len()];
        let mut seen: HashMap<Place, (f64, usize, FamId)> = HashMap::new();
        let mut clock = 0.0;
        let streams = |(id, _)| self.points.streams(id, Operand::B, self.model.l2_bytes);
        let once = self.plan.families.iter().map(streams).collect::<Result<Vec<bool>, _>>()?;
        for (wave, tasks) in tasks.chunks(lanes.max(1)).enumerate() {
            let (mut bytes, mut tiles) = (0.0, 0usize);
            // Row blocks of the wave, and what its other tiles read of them again.
            let (mut rows, mut again) = (0.0, 0.0);
            for task in tasks {
                let x = &self.plan.families[task.family];
                let Some(MmaTile { block, b_layout, .. }) = x.leaf.product() else { continue };
                tiles += 1;
                let right = match (b_layout, once[task.family.index()]) {
                    (_, true) => self.model.hbm_once_bytes_per_s,
                    (BLayout::Kn, false) => self.model.hbm_slices_bytes_per_s,
                    (BLayout::Nk, false) => self.model.hbm_bytes_per_s,
                };
                let narrow = match b_layout {
                    BLayout::Kn => (64.0 / f64::from(block[1].max(1))).max(1.0),
                    BLayout::Nk => 1.0,
                };
                let slices = narrow * self.model.hbm_bytes_per_s / right;
                for access in
                    x.accesses.iter().filter(|a| matches!(a.operand, Operand::A | Operand::B))
                {
                    // Of several places, a condition chooses one.
                    let elsewhere = match &access.when {
                        Some(when) => self.points.eval(task, when)? == 0,
                        None => false,
                    };
                    let region = self.points.region(task, access)?.filter(|_| !elsewhere);
                    let Some(region) = region else { continue };
                    // Iterations of an inner loop read as much each, of other places.
                    let size = self.bytes(&region) * self.points.inner(task)? as f64;
                    let key = (region.rank, region.buffer.index(), region.dims);
                    let last = seen.insert(key, (clock, wave, task.family));
                    // Tiles of own rows do not run when those of peers' do.
                    let beside = |of, family| of == wave && family == task.family;
                    let hit = |(at, of, family): (f64, usize, FamId)| {
                        beside(of, family) || clock - at <= self.model.l2_bytes
                    };
                    if access.operand == Operand::A {
                        match last {
                            Some((_, of, _)) if of == wave => again += size,
                            _ => rows += size,
                        }
                    }
                    if !last.is_some_and(hit) {
                        clock += size;
                        // As many bytes as memory would bring in that time.
                        bytes += if access.operand == Operand::B { size * slices } else { size };
                    }
                }
            }
            bytes += again * self.model.unshared(rows);
            let each = bytes / tiles.max(1) as f64;
            let from = wave * lanes.max(1);
            for (i, task) in tasks.iter().enumerate() {
                if self.plan.families[task.family].leaf.product().is_some() {
                    out[from + i] = each;
                }
            }
        }
        Ok(out)
    }

    /// A tile: one job, or one for each iteration of its inner loop, which has waits of its own.
    fn product(&mut self, task: &Task, x: &Family, product: &MmaTile, missed: f64) -> Result<()> {
        let iterations = self.points.inner(task)?.max(1);
        for i in 0..iterations {
            let waits = self.waits(task, x, i)?;
            let from = self.work.flows.len();
            if missed > 0.0 {
                let bytes = missed / iterations as f64;
                self.work.flows.push(Flow { resource: memory(task.rank()), bytes });
            }
            let (mut kind, main_s) = self.tile(task, x, product)?;
            let none = self.work.posts.len()..self.work.posts.len();
            let mut posts = none;
            if i + 1 == iterations {
                posts = self.posts(task, x)?;
                let (bytes, held_s) = self.beside(task, x)?;
                if bytes > 0.0 {
                    self.work.flows.push(Flow { resource: memory(task.rank()), bytes });
                    if let Kind::Tile(tile) = &mut kind {
                        tile.rate.tile_s += held_s;
                        tile.held_s = HELD * held_s;
                    }
                }
            } else if let Kind::Tile(tile) = &mut kind {
                (tile.rate.tile_s, tile.out) = (0.0, None);
            }
            self.push(task, kind, main_s, from, waits, posts);
        }
        Ok(())
    }

    /// Bytes that a tile moves besides its operands and its result (carried sums, matrices that its epilogue reads or
    /// saves), and the delay in seconds.
    fn beside(&self, task: &Task, x: &Family) -> Result<(f64, f64)> {
        let (mut bytes, mut held_s) = (0.0, 0.0);
        for a in &x.accesses {
            let rate = match (a.operand, a.mode) {
                (Operand::A | Operand::B | Operand::C, _) => continue,
                (Operand::AccIn, _) => self.model.carry_bytes_per_s,
                (_, Mode::Read) => self.model.operand_bytes_per_s,
                _ => self.model.save_bytes_per_s,
            };
            // A vector is the same for all rows.
            if a.region.len() < 2 {
                continue;
            }
            self.points.for_each::<CostError>(task, 0, a.each.as_ref(), None, |at| {
                let moved = self.points.region(at, a)?.map_or(0.0, |r| self.bytes(&r));
                (bytes, held_s) = (bytes + moved, held_s + moved / rate);
                Ok(())
            })?;
        }
        Ok((bytes, held_s))
    }

    fn tile(&self, task: &Task, x: &Family, product: &MmaTile) -> Result<(Kind, f64)> {
        let MmaTile { block: [m, n, k], stages, b_layout, consumers, .. } = product;
        let find = |o: Operand| x.accesses.iter().find(|a| a.operand == o);
        let region = |a: Option<&Access>| match a {
            Some(a) => self.points.region(task, a),
            None => Ok(None),
        };
        let b = region(find(Operand::B))?;
        let depth = b.and_then(|b| match b_layout {
            BLayout::Kn => b.dims.first().copied(),
            BLayout::Nk => b.dims.last().copied(),
        });
        let c = self.written(task, x)?;
        let mut rate = self.model.tile([*m, *n]);
        if self.uneven.contains(&task.family) {
            rate.step_s *= 1.0 + self.model.uneven;
            rate.tile_s *= 1.0 + self.model.uneven;
        }
        // A block of rows that this rank does not have costs nothing.
        let steps = match c {
            Some(_) => (depth.map_or(0, |d| d.1) + i64::from(*k) - 1) / i64::from((*k).max(1)),
            None => 0,
        };
        // The CTA of a cluster with the most work decides.
        let cluster = i64::from(x.leaf.shares_depth());
        let steps = (steps + cluster - 1) / cluster;
        // Beside matrices tiles by turns took as long a step as together ([`HELD`]).
        let beside = x.accesses.iter().any(|a| {
            !matches!(a.operand, Operand::A | Operand::B | Operand::C) && a.region.len() > 1
        });
        if *consumers == Consumers::PingPong && !beside {
            rate.step_s *= self.model.ping_pong;
        }
        rate.step_s = rate.step_s.max(self.lines(task, x, product)? * self.model.line_s);
        rate.step_s = rate.step_s.max(shifted_step_s(Some(product)));
        if let (Some(c), true) = (&c, cluster > 1) {
            let bytes = c.len() as f64 * 4.0;
            rate.tile_s += self.model.exchange_s + bytes / self.model.exchange_bytes_per_s;
        }
        let out = c.map(|c| {
            let bytes = self.bytes(&c);
            if c.rank == task.rank() {
                Out { flow: Flow { resource: memory(c.rank), bytes }, alone_s: 0.0 }
            } else {
                let alone_s = self.model.movers.tile_push.seconds(bytes);
                Out { flow: Flow { resource: link(task.rank()), bytes }, alone_s }
            }
        });
        let main_s = steps as f64 * rate.step_s;
        let ahead_s = f64::from(*stages) * rate.step_s;
        let rate = if steps == 0 { TileRate { tile_s: 0.0, ..rate } } else { rate };
        let overlaps = *consumers == Consumers::PingPong;
        Ok((Kind::Tile(Tile { rate, ahead_s, overlaps, held_s: 0.0, out }), main_s))
    }

    /// Lines of 128 bytes that a step along k touches: one for each row of a box, and the next one where rows do not
    /// begin at lines.
    fn lines(&self, task: &Task, x: &Family, product: &MmaTile) -> Result<f64> {
        const LINE: i64 = 128;
        let MmaTile { block: [m, n, k], a_layout, b_layout, .. } = product;
        let mut lines = 0.0;
        for access in x.accesses.iter().filter(|a| matches!(a.operand, Operand::A | Operand::B)) {
            let (across, along_k) = match access.operand {
                Operand::A => (*m, *a_layout == ALayout::Mk),
                _ => (*n, *b_layout == BLayout::Nk),
            };
            let size = self.plan.buffers[access.buffer].dtype.size_bytes() as i64;
            let (rows, columns) = if along_k { (across, *k) } else { (*k, across) };
            let row_bytes = f64::from(columns) * size as f64;
            let pitch = self.points.pitch(access.buffer, task.rank())? * size;
            let aligned = gcd(pitch.max(1), LINE) as f64 / LINE as f64;
            // Boxes are a line wide, or half of one.
            let box_bytes = if columns.is_multiple_of(64) { 128.0 } else { 64.0 };
            let each = box_bytes / LINE as f64 + 1.0 - aligned;
            lines += f64::from(rows) * row_bytes / box_bytes * each;
            // Of several places, a condition chooses one.
            if access.operand == Operand::A && access.when.is_some() {
                return Ok(0.0);
            }
        }
        Ok(lines)
    }

    /// Where a tile goes: of several places, the one that this task writes.
    fn written(&self, task: &Task, x: &Family) -> Result<Option<Region>> {
        let mut to = None;
        for c in x.accesses.iter().filter(|a| a.operand == Operand::C) {
            self.points.for_each(task, 0, c.each.as_ref(), c.when.as_ref(), |at| {
                to = self.points.region(at, c)?;
                Ok::<(), CostError>(())
            })?;
        }
        Ok(to)
    }
}
