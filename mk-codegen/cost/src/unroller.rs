//! Jobs of a plan's tasks, as far as they do not depend on the leaf.

use super::{
    CostError, Result,
    model::{DeviceModel, Mover},
    work::{Flow, Give, Job, Kind, Need, Reach, Work, link, memory},
};
use mk_plan::{Agent, Entity, FamId, Family, Mode, Plan, Point, Points, Region, Task, Wait};

pub(super) struct Unroller<'a> {
    pub plan: &'a Plan,
    pub model: &'a DeviceModel,
    pub points: Points<'a>,
    /// First word of each signal of rank 0, and words of a rank.
    pub first_word: Vec<u32>,
    pub signal_shape: Vec<Vec<i64>>,
    pub words_per_rank: u32,
    /// Families of the rank's role whose tiles take longer by [`DeviceModel::uneven`].
    pub uneven: Vec<FamId>,
    pub work: Work,
}

/// What a task moves over which resources.
pub(super) struct Traffic {
    pub flows: Vec<Flow>,
    pub read: f64,
    pub written: f64,
    pulls: bool,
    pushes: bool,
}

impl Traffic {
    /// The mover of what stays on the GPU, goes to peers, or comes from them.
    pub fn pick(&self, local: Mover, push: Mover, pull: Mover) -> Mover {
        match (self.pushes, self.pulls) {
            (true, _) => push,
            (false, true) => pull,
            _ => local,
        }
    }
}

impl<'a> Unroller<'a> {
    pub fn family(&self, task: &Task) -> &'a Family {
        &self.plan.families[task.family]
    }

    pub fn bytes(&self, region: &Region) -> f64 {
        let size = self.plan.buffers[region.buffer].dtype.size_bytes() as f64;
        region.len() as f64 * size
    }

    pub fn push(
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

    /// That the model has no figures for a task.
    pub fn unsupported(task: &Task, x: &Family) -> CostError {
        let (leaf, family) = (x.leaf.name(), format!("{} {:?}", task.family, x.name));
        CostError::Unsupported { leaf, family }
    }

    /// What a task moves, in so many iterations.
    pub fn traffic(&self, task: &Task, x: &Family, iterations: i64) -> Result<Traffic> {
        let own = task.rank();
        let (mut read, mut written, mut pulls, mut pushes) = (0.0, 0.0, false, false);
        let mut flows: Vec<Flow> = Vec::new();
        let mut add =
            |resource: u32, bytes: f64| match flows.iter_mut().find(|f| f.resource == resource) {
                Some(flow) => flow.bytes += bytes,
                None => flows.push(Flow { resource, bytes }),
            };
        let times = x.accesses.iter().flat_map(|access| {
            let n = if access.at == Point::Inner { iterations } else { 1 };
            (0..n).map(move |i| (access, i))
        });
        for (access, i) in times {
            let points = &self.points;
            points.for_each(task, i, access.each.as_ref(), access.when.as_ref(), |at| {
                let Some(region) = points.region(at, access)? else { return Ok(()) };
                let bytes = self.bytes(&region);
                let reads = access.mode == Mode::Read;
                if reads {
                    read += bytes
                } else {
                    written += bytes
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
        Ok(Traffic { flows, read, written, pulls, pushes })
    }

    /// The job of a task that moves, and takes so many seconds by itself. Its waits are all made before.
    pub fn moves(
        &mut self,
        task: &Task,
        x: &Family,
        iterations: i64,
        traffic: Traffic,
        seconds: f64,
    ) -> Result<()> {
        let idle = traffic.read + traffic.written == 0.0;
        let seconds = if idle { 0.0 } else { seconds };
        let from = self.work.flows.len();
        self.work.flows.extend(traffic.flows);
        self.job(task, x, iterations, Kind::Move, seconds, from)
    }

    /// A job that waits for all that its iterations do, and posts at its end.
    pub fn job(
        &mut self,
        task: &Task,
        x: &Family,
        iterations: i64,
        kind: Kind,
        main_s: f64,
        flows_from: usize,
    ) -> Result<()> {
        let mut waits = self.waits(task, x, 0)?;
        for i in 1..iterations {
            waits.end = self.waits(task, x, i)?.end;
        }
        let posts = self.posts(task, x)?;
        self.push(task, kind, main_s, flows_from, waits, posts);
        Ok(())
    }

    fn word(&self, rank: usize, signal: usize, index: &[i64]) -> u32 {
        let shape = self.signal_shape.get(signal).map_or(&[][..], Vec::as_slice);
        let flat = shape.iter().zip(index).fold(0i64, |at, (n, i)| at * n.max(&1) + i);
        let first = self.first_word.get(signal).copied().unwrap_or(0);
        rank as u32 * self.words_per_rank + first + u32::try_from(flat).unwrap_or(0)
    }

    /// The waits before iteration `i` of a task's inner loop; the first has those of its start, too.
    pub fn waits(&mut self, task: &Task, x: &Family, i: i64) -> Result<std::ops::Range<usize>> {
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

    pub fn posts(&mut self, task: &Task, x: &Family) -> Result<std::ops::Range<usize>> {
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
                let reach = match rank == task.rank() {
                    true => Reach::Own,
                    false if x.leaf.sends() => Reach::Node,
                    false => Reach::Peer,
                };
                self.work.posts.push(Give { word, add, reach });
            }
        }
        Ok(from..self.work.posts.len())
    }

    fn index(&self, at: &Task, list: &[mk_plan::Expr]) -> Result<Vec<i64>> {
        list.iter().map(|e| Ok(self.points.eval(at, e)?)).collect()
    }
}
