//! A plan as jobs on lanes: what each task computes, which bytes it moves over which resource, what it waits for and posts.

use super::{
    error::CostError,
    model::{DeviceModel, Mover, TileRate},
    work::{Flow, Give, Job, Kind, Lane, Need, Out, Tile, Work, gcd, is_link, link, memory},
};
use mk_plan::{
    ALayout, Access, Agent, BLayout, Consumers, CopyVia, Entity, Expr, FamId, Family, Leaf,
    MAX_TASKS, Mode, Operand, Plan, Point, Points, Region, RoleId, Schedule, TableSet, Task, Var,
    Wait,
};
use std::collections::HashMap;

/// Most tasks of all ranks, those of inner loops one by one.
const MAX_JOBS: usize = 4_000_000;

/// A leaf in whose inner loop queries meet keys.
struct Attends {
    /// Rows of a tile, rows of a block of the other side, elements of a head.
    block: [u32; 3],
    stages: u32,
    /// Products of each block that are as deep as heads, and that are as wide.
    scores: f64,
    results: f64,
    /// What comes in blocks.
    moving: Operand,
}

impl Attends {
    fn of(leaf: &Leaf) -> Option<Attends> {
        match leaf {
            Leaf::AttendTile { block, stages, .. } => {
                let (block, stages, moving) = (*block, *stages, Operand::K);
                Some(Attends { block, stages, scores: 1.0, results: 1.0, moving })
            }
            Leaf::AttendGradTile { of, block, stages, .. } => Some(Attends {
                block: *block,
                stages: *stages,
                scores: 2.0,
                results: of.made().len() as f64,
                moving: of.moving()[0],
            }),
            _ => None,
        }
    }
}

/// With fewer tiles than that CTAs have no time to come apart.
const SEVERAL: usize = 3;

/// A box of a buffer on a rank.
type Place = (usize, usize, Vec<(i64, i64)>);

struct Unroller<'a> {
    plan: &'a Plan,
    model: &'a DeviceModel,
    points: Points<'a>,
    /// First word of each signal of rank 0, and words of a rank.
    first_word: Vec<u32>,
    signal_shape: Vec<Vec<i64>>,
    words_per_rank: u32,
    /// Families of the rank's role whose tiles take longer by [`DeviceModel::uneven`].
    uneven: Vec<FamId>,
    work: Work,
}

pub(super) fn unroll(plan: &Plan, model: &DeviceModel) -> Result<Work, CostError> {
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    let ranks = plan.mesh.size() as usize;
    let (mut first_word, mut signal_shape, mut words) = (Vec::new(), Vec::new(), 0u32);
    for (id, _) in plan.signals.iter() {
        let shape = points.signal_shape(id, 0)?;
        first_word.push(words);
        let n: i64 = shape.iter().map(|n| (*n).max(1)).product();
        words = words.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        signal_shape.push(shape);
    }
    let work = Work {
        jobs: Vec::new(),
        lanes: Vec::new(),
        waits: Vec::new(),
        posts: Vec::new(),
        flows: Vec::new(),
        words: words as usize * ranks,
        ranks,
        begin_s: model.launch_s,
    };
    let (words_per_rank, uneven) = (words, Vec::new());
    let mut u =
        Unroller { plan, model, points, first_word, signal_shape, words_per_rank, uneven, work };
    // What the verifier would refuse for its size is not looked at, either.
    let mut tasks = 0;
    for rank in 0..ranks {
        for family in plan.families.keys() {
            tasks += u.points.count(family, rank, 1, MAX_TASKS - tasks)?;
            if tasks > MAX_TASKS {
                return Err(CostError::TooLarge { limit: MAX_TASKS as usize });
            }
        }
    }
    for rank in 0..ranks {
        u.rank(rank)?;
    }
    Ok(u.work)
}

impl Unroller<'_> {
    fn rank(&mut self, rank: usize) -> Result<(), CostError> {
        let mut first_cta = 0;
        for (role_id, role) in self.plan.roles.iter() {
            let (mut tasks, mut jobs) = (Vec::new(), 0);
            for (id, _) in self.plan.families.iter().filter(|(_, x)| x.role == role_id) {
                for task in self.points.tasks(id, rank, 1)? {
                    jobs += usize::try_from(self.points.inner(&task)?).unwrap_or(MAX_JOBS).max(1);
                    tasks.push(task);
                }
                if self.work.jobs.len() + jobs > MAX_JOBS {
                    return Err(CostError::TooLarge { limit: MAX_JOBS });
                }
            }
            let own = role.kind.owns_ctas();
            let cluster = self.plan.cluster(role_id);
            let lanes = if own { (role.ctas / cluster).max(1) as usize } else { 1 };
            let misses = self.misses(&tasks, lanes)?;
            self.uneven = self.uneven(role_id, &tasks, lanes);
            // Bulk copies are made by two lanes of a warpgroup that does nothing else, beside what the other warps of the CTA do.
            let bulk = |task: &Task| {
                let leaf = &self.plan.families[task.family].leaf;
                matches!(leaf, Leaf::CopyTile { via: CopyVia::Bulk, .. })
            };
            let mut by_lane: Vec<[Vec<usize>; 2]> = vec![[Vec::new(), Vec::new()]; lanes];
            let mut taken = vec![0i64; lanes];
            for (i, task) in tasks.iter().enumerate() {
                let lane = match self.length(task)? {
                    Some(length) => {
                        let free = (0..lanes).min_by_key(|lane| taken[*lane]).unwrap_or(0);
                        taken[free] += length;
                        free
                    }
                    None => i % lanes,
                };
                by_lane[lane][usize::from(bulk(task))].push(i);
            }
            for (n, [others, copies]) in by_lane.into_iter().enumerate() {
                let alone = copies.is_empty() || others.is_empty();
                let lists =
                    if alone { vec![[others, copies].concat()] } else { vec![others, copies] };
                for list in lists {
                    let from = self.work.jobs.len();
                    for i in list {
                        self.job(&tasks[i], misses[i])?;
                    }
                    let jobs = from..self.work.jobs.len();
                    let cta = if own { first_cta + n as u32 * cluster } else { 0 };
                    self.work.lanes.push(Lane { rank, cta, role: role_id.index(), jobs });
                }
            }
            if own {
                first_cta += role.ctas;
            }
        }
        Ok(())
    }

    /// Blocks that a tile of attention goes through, with one more for what it begins and ends with, where it goes to the next CTA that is
    /// free; `None` for other tasks, whose families have tiles of one length, so that taking turns is the same.
    fn length(&self, task: &Task) -> Result<Option<i64>, CostError> {
        let x = &self.plan.families[task.family];
        let Some(attends) = Attends::of(&x.leaf).filter(|_| x.schedule == Schedule::Dynamic) else {
            return Ok(None);
        };
        let mut length = 1;
        for i in 0..self.points.inner(task)?.max(1) {
            length += self.blocks(task, i, &attends)?;
        }
        Ok(Some(length))
    }

    /// Blocks of the other side that a tile of attention meets at an iteration.
    fn blocks(&self, task: &Task, i: i64, attends: &Attends) -> Result<i64, CostError> {
        let [_, others, depth] = attends.block.map(i64::from);
        let block = (others * depth).max(1);
        let accesses = &self.plan.families[task.family].accesses;
        let mut blocks = 0;
        for a in accesses.iter().filter(|a| a.operand == attends.moving) {
            self.points.for_each::<CostError>(task, i, None, a.when.as_ref(), |at| {
                let len = self.points.region(at, a)?.map_or(0, |r| r.len());
                blocks += (len + block - 1) / block;
                Ok(())
            })?;
        }
        Ok(blocks)
    }

    /// Families of a role whose tiles leave for peers and are dealt out, [`SEVERAL`] and more to a CTA.
    fn uneven(&self, role: RoleId, tasks: &[Task], lanes: usize) -> Vec<FamId> {
        let leaves = |a: &Access| a.operand == Operand::C && a.rank != Expr::Var(Var::RANK);
        let dealt =
            |x: &Family| matches!(x.leaf, Leaf::MmaTile { .. }) && x.schedule == Schedule::Static;
        let of_role = self.plan.families.iter().filter(|(_, x)| x.role == role && dealt(x));
        let leaving = of_role.filter(|(_, x)| x.accesses.iter().any(leaves)).map(|(id, _)| id);
        let several =
            |id: &FamId| tasks.iter().filter(|t| t.family == *id).count() >= SEVERAL * lanes;
        leaving.filter(several).collect()
    }

    /// Bytes of a tile's operands that come from memory and not from the cache: those that none of the tasks touched, or
    /// not while as much as the cache holds was touched. Tasks of a wave read side by side, and share what they miss.
    fn misses(&self, tasks: &[Task], lanes: usize) -> Result<Vec<f64>, CostError> {
        let mut out = vec![0.0; tasks.len()];
        let mut seen: HashMap<Place, (f64, usize)> = HashMap::new();
        let mut clock = 0.0;
        let streams = |(id, _)| self.points.streams(id, Operand::B, self.model.l2_bytes);
        let once = self.plan.families.iter().map(streams).collect::<Result<Vec<bool>, _>>()?;
        for (wave, tasks) in tasks.chunks(lanes.max(1)).enumerate() {
            let (mut bytes, mut tiles) = (0.0, 0usize);
            for task in tasks {
                let x = &self.plan.families[task.family];
                let Leaf::MmaTile { block, b_layout, .. } = &x.leaf else { continue };
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
                    let last = seen.insert(key, (clock, wave));
                    let hit =
                        |(at, of): (f64, usize)| of == wave || clock - at <= self.model.l2_bytes;
                    if !last.is_some_and(hit) {
                        clock += size;
                        // As many bytes as memory would bring in that time.
                        bytes += if access.operand == Operand::B { size * slices } else { size };
                    }
                }
            }
            let each = bytes / tiles.max(1) as f64;
            let from = wave * lanes.max(1);
            for (i, task) in tasks.iter().enumerate() {
                if matches!(self.plan.families[task.family].leaf, Leaf::MmaTile { .. }) {
                    out[from + i] = each;
                }
            }
        }
        Ok(out)
    }

    fn bytes(&self, region: &Region) -> f64 {
        let size = self.plan.buffers[region.buffer].dtype.size_bytes() as f64;
        region.len() as f64 * size
    }

    fn job(&mut self, task: &Task, missed: f64) -> Result<(), CostError> {
        let x = &self.plan.families[task.family];
        if matches!(x.leaf, Leaf::MmaTile { .. }) {
            return self.product(task, x, missed);
        }
        if x.inner.is_some()
            && let Some(attends) = Attends::of(&x.leaf)
        {
            return self.attention(task, x, attends);
        }
        let mut waits = self.waits(task, x, 0)?;
        // Sums in a loop are one job: its waits are all made before.
        for i in 1..self.iterations(task, x)? {
            waits.end = self.waits(task, x, i)?.end;
        }
        let from = self.work.flows.len();
        let (kind, main_s) = match &x.leaf {
            Leaf::Signal | Leaf::Enter => (Kind::Signal, 0.0),
            Leaf::CopyTile { .. }
            | Leaf::ReduceTile { .. }
            | Leaf::StatsTile { .. }
            | Leaf::HostCopy
            | Leaf::Tabulate { .. }
                if x.inner.is_none() || matches!(x.leaf, Leaf::ReduceTile { .. }) =>
            {
                (Kind::Move, self.moved(task, x)?)
            }
            leaf => {
                let (leaf, family) = (leaf.name(), format!("{} {:?}", task.family, x.name));
                return Err(CostError::Unsupported { leaf, family });
            }
        };
        let posts = self.posts(task, x)?;
        self.push(task, kind, main_s, from, waits, posts);
        Ok(())
    }

    /// A tile: one job, or one for each iteration of its inner loop, which has waits of its own.
    fn product(&mut self, task: &Task, x: &Family, missed: f64) -> Result<(), CostError> {
        let iterations = self.points.inner(task)?.max(1);
        for i in 0..iterations {
            let waits = self.waits(task, x, i)?;
            let from = self.work.flows.len();
            if missed > 0.0 {
                let bytes = missed / iterations as f64;
                self.work.flows.push(Flow { resource: memory(task.rank()), bytes });
            }
            let (mut kind, main_s) = self.tile(task, x)?;
            let none = self.work.posts.len()..self.work.posts.len();
            let mut posts = none;
            if i + 1 == iterations {
                posts = self.posts(task, x)?;
                let (bytes, held_s) = self.beside(task, x)?;
                if bytes > 0.0 {
                    self.work.flows.push(Flow { resource: memory(task.rank()), bytes });
                    if let Kind::Tile(tile) = &mut kind {
                        tile.rate.tile_s += held_s;
                        tile.held_s = held_s;
                    }
                }
            } else if let Kind::Tile(tile) = &mut kind {
                (tile.rate.tile_s, tile.out) = (0.0, None);
            }
            self.push(task, kind, main_s, from, waits, posts);
        }
        Ok(())
    }

    /// A tile of attention, or of its gradients: a job for each chunk, with waits of its own. A block is as long as the products in it
    /// are in tiles of products, which is the least that it can be: the exponentials are taken to be under them.
    fn attention(&mut self, task: &Task, x: &Family, attends: Attends) -> Result<(), CostError> {
        let Attends { block: [rows, others, depth], stages, scores, results, .. } = attends;
        let iterations = self.points.inner(task)?.max(1);
        let known = self.model.tile([rows, others]);
        // A step is 64 deep: scores are `depth` deep, results `others`, and as wide as a head.
        let score_steps = scores * f64::from(depth) / 64.0;
        let wide = f64::from(depth) / f64::from(others.max(1));
        let result_steps = results * f64::from(others) / 64.0 * wide;
        let block_s = (score_steps + result_steps) * known.step_s;
        let mut out = 0.0;
        for a in x.accesses.iter().filter(|a| a.mode != Mode::Read || a.at == Point::Start) {
            out += self.points.region(task, a)?.map_or(0.0, |r| self.bytes(&r));
        }
        for i in 0..iterations {
            let waits = self.waits(task, x, i)?;
            let from = self.work.flows.len();
            let blocks = self.blocks(task, i, &attends)?;
            let last = i + 1 == iterations;
            let flow = Flow { resource: memory(task.rank()), bytes: out };
            let out = (last && out > 0.0).then_some(Out { flow, alone_s: 0.0 });
            let main_s = blocks as f64 * block_s;
            let tile_s = if last { known.tile_s } else { 0.0 };
            let rate = TileRate { tile_s, ..known };
            let ahead_s = f64::from(stages) * block_s;
            let none = self.work.posts.len()..self.work.posts.len();
            let posts = if last { self.posts(task, x)? } else { none };
            let kind = Kind::Tile(Tile { rate, ahead_s, overlaps: false, held_s: 0.0, out });
            self.push(task, kind, main_s, from, waits, posts);
        }
        Ok(())
    }

    /// Bytes that a tile moves beside its factors and its result, and for how long that holds it up: sums that it goes on with, matrices
    /// that its epilogue reads or saves.
    fn beside(&self, task: &Task, x: &Family) -> Result<(f64, f64), CostError> {
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

    fn push(
        &mut self,
        task: &Task,
        kind: Kind,
        main_s: f64,
        flows_from: usize,
        waits: std::ops::Range<usize>,
        posts: std::ops::Range<usize>,
    ) {
        self.work.jobs.push(Job {
            family: task.family,
            linear: task.linear() as u32,
            rank: task.rank() as u32,
            kind,
            main_s,
            main_flows: flows_from..self.work.flows.len(),
            waits,
            posts,
        });
    }

    fn tile(&self, task: &Task, x: &Family) -> Result<(Kind, f64), CostError> {
        let Leaf::MmaTile { block: [m, n, k], stages, b_layout, consumers, .. } = &x.leaf else {
            return Ok((Kind::Signal, 0.0));
        };
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
        // Of the CTAs of a cluster, the one with the most.
        let cluster = i64::from(x.leaf.shares_depth());
        let steps = (steps + cluster - 1) / cluster;
        rate.step_s = rate.step_s.max(self.lines(task, x)? * self.model.line_s);
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

    /// Lines of 128 bytes that a step along k touches: one for each row of a box, and the next one where rows do not begin at lines.
    fn lines(&self, task: &Task, x: &Family) -> Result<f64, CostError> {
        const LINE: i64 = 128;
        let Leaf::MmaTile { block: [m, n, k], a_layout, b_layout, .. } = &x.leaf else {
            return Ok(0.0);
        };
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
    fn written(&self, task: &Task, x: &Family) -> Result<Option<Region>, CostError> {
        let mut to = None;
        for c in x.accesses.iter().filter(|a| a.operand == Operand::C) {
            self.points.for_each(task, 0, c.each.as_ref(), c.when.as_ref(), |at| {
                to = self.points.region(at, c)?;
                Ok::<(), CostError>(())
            })?;
        }
        Ok(to)
    }

    /// Iterations of a task's loop, where it moves data in one; else 1.
    fn iterations(&self, task: &Task, x: &Family) -> Result<i64, CostError> {
        let loops = x.inner.is_some() && matches!(x.leaf, Leaf::ReduceTile { .. });
        Ok(if loops { self.points.inner(task)? } else { 1 })
    }

    /// Adds the flows of a copy or a sum, and returns the seconds that it takes by itself.
    fn moved(&mut self, task: &Task, x: &Family) -> Result<f64, CostError> {
        let own = task.rank();
        let (mut read, mut written, mut pulls, mut pushes) = (0.0, 0.0, false, false);
        let mut flows: Vec<Flow> = Vec::new();
        let mut add =
            |resource: u32, bytes: f64| match flows.iter_mut().find(|f| f.resource == resource) {
                Some(flow) => flow.bytes += bytes,
                None => flows.push(Flow { resource, bytes }),
            };
        let all = self.iterations(task, x)?;
        let times = x.accesses.iter().flat_map(|access| {
            let n = if access.at == Point::Inner { all } else { 1 };
            (0..n).map(move |i| (access, i))
        });
        for (access, i) in times {
            let points = &self.points;
            points.for_each(task, i, access.each.as_ref(), access.when.as_ref(), |at| {
                let Some(region) = points.region(at, access)? else { return Ok(()) };
                let bytes = self.bytes(&region);
                let reads = access.mode == Mode::Read;
                match reads {
                    true => read += bytes,
                    false => written += bytes,
                }
                match (region.rank == own, reads) {
                    (true, _) => add(memory(own), bytes),
                    (false, true) => {
                        pulls = true;
                        add(link(region.rank), bytes);
                    }
                    (false, false) => {
                        pushes = true;
                        add(link(own), bytes);
                    }
                }
                Ok::<(), CostError>(())
            })?;
        }
        if x.leaf == Leaf::HostCopy {
            // One engine moves what the link does, and more of it than SMs, for which the link's rate stands. What it reads is little
            // of what memory gives, and not a part of it like that of each SM.
            flows.retain(|f| is_link(f.resource));
            // What is waited for before the first copy is no copy's; the link is the engine's own for as long.
            let first = self.plan.families.iter().find(|(_, f)| f.leaf == Leaf::HostCopy);
            let is_first = first.is_some_and(|(id, _)| id == task.family) && task.linear() == 0;
            let begins = if is_first { self.model.engine_begin_s } else { 0.0 };
            let seconds = begins + self.model.movers.engine.seconds(written);
            flows.iter_mut().for_each(|f| f.bytes = seconds * self.model.link_bytes_per_s);
        }
        self.work.flows.extend(flows);
        if read + written == 0.0 {
            return Ok(0.0);
        }
        let m = &self.model.movers;
        let pick = |local: Mover, push: Mover, pull: Mover| match (pushes, pulls) {
            (true, _) => push,
            (false, true) => pull,
            _ => local,
        };
        Ok(match &x.leaf {
            Leaf::CopyTile { via: CopyVia::Bulk, .. } => {
                pick(m.bulk_local, m.bulk_push, m.bulk_pull).seconds(written)
            }
            Leaf::HostCopy => 0.0,
            Leaf::CopyTile { .. } => pick(m.ldst_local, m.ldst_push, m.ldst_pull).seconds(written),
            _ => pick(m.sum_local, m.sum_push, m.sum_pull).seconds(read + written),
        })
    }

    fn word(&self, rank: usize, signal: usize, index: &[i64]) -> u32 {
        let shape = self.signal_shape.get(signal).map_or(&[][..], Vec::as_slice);
        let flat = shape.iter().zip(index).fold(0i64, |at, (n, i)| at * n.max(&1) + i);
        let first = self.first_word.get(signal).copied().unwrap_or(0);
        rank as u32 * self.words_per_rank + first + u32::try_from(flat).unwrap_or(0)
    }

    /// The waits before iteration `i` of a task's inner loop; the first has those of its start, too.
    fn waits(
        &mut self,
        task: &Task,
        x: &Family,
        i: i64,
    ) -> Result<std::ops::Range<usize>, CostError> {
        let from = self.work.waits.len();
        // Words of an earlier launch, and what a host waits for, hold nobody back here.
        let now = |at| at == Point::Inner || (at == Point::Start && i == 0);
        let awaited = |w: &&Wait| w.lag == 0 && w.by != Agent::Receiver && now(w.at);
        for w in x.waits.iter().filter(awaited) {
            let mut all = Vec::new();
            self.points.for_each(task, i, w.each.as_ref(), w.when.as_ref(), |at| {
                let index = self.index(at, &w.index)?;
                all.push((index, self.points.eval(at, &w.count)?));
                Ok::<(), CostError>(())
            })?;
            for (index, count) in all {
                let word = self.word(task.rank(), w.signal.index(), &index);
                self.work.waits.push(Need { word, count });
            }
        }
        Ok(from..self.work.waits.len())
    }

    fn posts(&mut self, task: &Task, x: &Family) -> Result<std::ops::Range<usize>, CostError> {
        let from = self.work.posts.len();
        for p in &x.posts {
            let mut all = Vec::new();
            self.points.for_each(task, 0, p.each.as_ref(), p.when.as_ref(), |at| {
                let rank = self.points.rank(at, &p.rank)?;
                all.push((rank, self.index(at, &p.index)?, self.points.eval(at, &p.add)?));
                Ok::<(), CostError>(())
            })?;
            for (rank, index, add) in all.into_iter().filter(|p| p.2 != 0) {
                let word = self.word(rank, p.signal.index(), &index);
                self.work.posts.push(Give { word, add, peer: rank != task.rank() });
            }
        }
        Ok(from..self.work.posts.len())
    }

    fn index(&self, at: &Task, list: &[mk_plan::Expr]) -> Result<Vec<i64>, CostError> {
        list.iter().map(|e| Ok(self.points.eval(at, e)?)).collect()
    }
}
