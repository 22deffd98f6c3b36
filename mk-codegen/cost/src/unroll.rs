//! A plan as jobs on lanes: what each task computes, which bytes it moves over which resource, what it waits for and
//! posts.

use super::{
    CostError, Result, leaf,
    model::DeviceModel,
    unroller::Unroller,
    work::{Lane, Work},
};
use mk_plan::{Entity, MAX_TASKS, Plan, Points, TableSet, Task};

/// Most tasks of all ranks, those of inner loops one by one.
const MAX_JOBS: usize = 4_000_000;

pub(super) fn unroll(plan: &Plan, model: &DeviceModel) -> Result<Work> {
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
    fn rank(&mut self, rank: usize) -> Result<()> {
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
            let cost = |task: &Task| leaf::of(&self.plan.families[task.family].leaf);
            let mut by_lane: Vec<[Vec<usize>; 2]> = vec![[Vec::new(), Vec::new()]; lanes];
            let mut taken = vec![0i64; lanes];
            for (i, task) in tasks.iter().enumerate() {
                let lane = match cost(task).length(self, task)? {
                    Some(length) => {
                        let free = (0..lanes).min_by_key(|lane| taken[*lane]).unwrap_or(0);
                        taken[free] += length;
                        free
                    }
                    None => i % lanes,
                };
                by_lane[lane][usize::from(cost(task).is_bulk())].push(i);
            }
            for (n, [others, copies]) in by_lane.into_iter().enumerate() {
                let alone = copies.is_empty() || others.is_empty();
                let lists =
                    if alone { vec![[others, copies].concat()] } else { vec![others, copies] };
                for list in lists {
                    let from = self.work.jobs.len();
                    for i in list {
                        cost(&tasks[i]).jobs(self, &tasks[i], misses[i])?;
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
}
