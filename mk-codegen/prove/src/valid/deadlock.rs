//! Rule 2: the plan ends, whatever the interleaving.
//!
//! Waits are for complete sets and words only count up, so the system is monotone: one abstract run decides it for
//! every interleaving. The unit is an agent of a CTA. Assumed of the machine: CTA `n % ctas` of a role runs task number
//! `n` of the role's families, in their order, and its copier and consumers are the same warps (of a dynamic schedule,
//! see below); CTA 0 finishes the prologue before, and begins the epilogue after, everything else that it runs; a
//! kernel begins when the one before it on its rank has ended; copies of the copy engine run in the order of their
//! families, in a queue of their own.
//!
//! Dynamic schedule: each CTA starts with one task, and asks for the next, in order, while it runs one (or has made its
//! waits). For a role with a dynamic schedule, this run puts all its tasks on CTA 0, in order, static ones too. If that
//! run ends, every assignment to CTAs ends. Proof: take the first unfinished task in the order of this run. Its waits
//! are satisfied. Each CTA runs its tasks in the role's order, so a CTA that holds this task has ended all earlier ones
//! and has begun it. If no CTA holds it, no CTA holds a later one, and all earlier ones have ended: a CTA is free, and
//! takes it.
//!
//! Agents wait for each other along a leaf's edges wherever the leaf has an operand, also where a task's region is
//! empty: some leaves hand an empty tile on, others skip it, and a plan that ends if they do also ends if they do not.
//!
//! Back-pressure: one step of a task may take any number of stages, so an agent that fills stages is through with a
//! step only when the agent that empties them has reached that step and made its waits (for a plan that ends under
//! this, no number of stages is too small). Hosts take the commands of a rank from its fifo in the order in which CTAs
//! happen to put them there. That order is not fixed, so a host may not wait for a word on behalf of one command while
//! others queue behind it; then the fifo always drains and any number of entries, from 1, will do.
//!
//! Establishes the order in which words become complete, which the race proofs walk along.

use super::{
    family::{FamInfo, Flow},
    report::Violation,
    site,
    within::{AGENTS, wait_line},
    world::{Class, WaitRec, World},
};
use mk_plan::{Agent, Entity, FamId, RoleId, RoleKind, Schedule};
use std::collections::{HashSet, VecDeque};

/// Tasks of a CTA before (0), in (1) and after (2) its own role.
type Lists = [Vec<u32>; 3];

/// Where an agent of a CTA is.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    phase: usize,
    task: usize,
    pub step: u32,
    /// 0: waits, 1: accesses, 2: posts.
    sub: u8,
    /// The task, and the agent's number in it.
    at: Option<(u32, u8)>,
}

/// What an agent waits for.
pub(super) enum Block {
    Wait(u32),
    Agent(Agent),
    Phase,
    Done,
}

pub(super) struct Lane {
    pub rank: u32,
    pub epoch: u32,
    pub cursors: Vec<(Agent, Cursor)>,
    queued: bool,
}

/// The words in the order in which they became complete, with their epochs; or the agents that wait for ever.
pub(super) type Ended = Result<Vec<(u32, u32)>, Vec<Violation>>;

/// Runs the plan, step by step, as far as it goes.
pub(super) fn run(world: &World<'_>) -> Ended {
    let hosts = host_waits(world);
    if !hosts.is_empty() {
        return Err(hosts);
    }
    let mut run = Run::new(world);
    run.go();
    if run.lanes.iter().all(|l| l.epoch > world.epochs()) {
        Ok(run.order)
    } else if world.rotation.is_folded() {
        // Report violations of all ranks.
        Err(vec![Violation::Deadlock { stuck: Vec::new() }])
    } else {
        Err(run.explain())
    }
}

fn host_waits(world: &World<'_>) -> Vec<Violation> {
    let waits = world.plan.families.iter().flat_map(|(id, x)| x.waits.iter().map(move |w| (id, w)));
    let by_sender = waits.filter(|(_, w)| w.by == Agent::Sender);
    by_sender
        .map(|(id, w): (FamId, _)| Violation::HostOrder {
            place: format!("{}: {}", site::family(world, id), w.edge),
            message: "the sending host would hold back the commands behind this one, in whatever order the fifo has \
                them: wait `by issuer`".into(),
        })
        .collect()
}

pub(super) struct Run<'w, 'a> {
    pub world: &'w World<'a>,
    /// Per class and lane of a rank: tasks. The last lane of a rank is its copy engine.
    lists: Vec<Vec<Lists>>,
    pub lane_of: Vec<Vec<u32>>,
    pub lanes: Vec<Lane>,
    pub per_rank: usize,
    /// By epoch and task: the steps whose waits, and whose accesses, each agent has done.
    waited: Vec<Vec<[u32; AGENTS]>>,
    done: Vec<Vec<[u32; AGENTS]>>,
    pub posted: Vec<Vec<bool>>,
    left: Vec<Vec<u32>>,
    value: Vec<i64>,
    sleepers: Vec<Vec<u32>>,
    ready: VecDeque<u32>,
    order: Vec<(u32, u32)>,
}

impl<'w, 'a> Run<'w, 'a> {
    fn new(world: &'w World<'a>) -> Run<'w, 'a> {
        let ctas: u32 = world.plan.roles.values().map(|r| r.ctas).sum();
        let per_rank = ctas as usize + 1;
        let (mut lists, mut lane_of) = (Vec::new(), Vec::new());
        for class in &world.classes {
            let (l, of) = assign(world, class, per_rank);
            lists.push(l);
            lane_of.push(of);
        }
        let words = world.words.total;
        let epochs = 1..=world.epochs();
        let tasks = |e: u32| vec![[0; AGENTS]; world.class(e).tasks.len()];
        let mut run = Run {
            lists,
            lane_of,
            lanes: Vec::new(),
            per_rank,
            waited: epochs.clone().map(tasks).collect(),
            done: epochs.clone().map(tasks).collect(),
            posted: epochs.clone().map(|e| vec![false; world.class(e).posts.len()]).collect(),
            left: epochs
                .map(|e| {
                    (0..words as u32).map(|w| world.class(e).posts_of(w).len() as u32).collect()
                })
                .collect(),
            value: vec![0; words],
            sleepers: vec![Vec::new(); words],
            ready: VecDeque::new(),
            order: Vec::new(),
            world,
        };
        for i in 0..world.ranks_looked_at() * per_rank {
            run.lanes.push(Lane {
                rank: (i / per_rank) as u32,
                epoch: 1,
                cursors: Vec::new(),
                queued: true,
            });
            run.enter(i);
            run.ready.push_back(i as u32);
        }
        run
    }

    pub fn class(&self, epoch: u32) -> &'w Class {
        self.world.class(epoch)
    }

    fn lists(&self, lane: usize) -> &Lists {
        &self.lists[self.world.class_of[self.lanes[lane].epoch as usize - 1]][lane]
    }

    /// Sets the agents of a lane to the beginning of its epoch.
    fn enter(&mut self, lane: usize) {
        let class = self.class(self.lanes[lane].epoch);
        let mut agents: Vec<Agent> = Vec::new();
        let mut families = vec![false; self.world.plan.families.len()];
        for t in self.lists(lane).iter().flatten() {
            let family = class.tasks[*t as usize].family;
            if !std::mem::replace(&mut families[family.index()], true) {
                for a in &self.world.info(family).contract.agents {
                    if !agents.contains(a) && !matches!(a, Agent::Sender | Agent::Receiver) {
                        agents.push(*a);
                    }
                }
            }
        }
        self.lanes[lane].cursors = agents.into_iter().map(|a| (a, Cursor::default())).collect();
        (0..self.lanes[lane].cursors.len()).for_each(|i| self.place(lane, i, Cursor::default()));
    }

    fn go(&mut self) {
        while let Some(lane) = self.ready.pop_front() {
            self.lanes[lane as usize].queued = false;
            self.advance(lane as usize);
        }
    }

    fn advance(&mut self, lane: usize) {
        loop {
            let mut moved = false;
            for i in 0..self.lanes[lane].cursors.len() {
                while self.step(lane, i) {
                    moved = true;
                }
            }
            let ended = self.lanes[lane].cursors.iter().all(|c| c.1.phase > 2);
            if ended && self.lanes[lane].epoch <= self.world.epochs() {
                moved |= self.next_epoch(lane);
            }
            if !moved {
                return;
            }
        }
    }

    /// Begins the next kernel when all CTAs have ended theirs. Returns whether this lane may go on.
    fn next_epoch(&mut self, lane: usize) -> bool {
        let (rank, epoch) = (self.lanes[lane].rank as usize, self.lanes[lane].epoch);
        let engine = (rank + 1) * self.per_rank - 1;
        let group = if lane == engine { engine..engine + 1 } else { rank * self.per_rank..engine };
        let ended = |l: &Lane| l.epoch == epoch && l.cursors.iter().all(|c| c.1.phase > 2);
        if !group.clone().all(|l| ended(&self.lanes[l])) {
            return false;
        }
        for l in group {
            self.lanes[l].epoch += 1;
            if epoch < self.world.epochs() {
                self.enter(l);
                self.wake(l);
            }
        }
        false
    }

    fn wake(&mut self, lane: usize) {
        if !std::mem::replace(&mut self.lanes[lane].queued, true) {
            self.ready.push_back(lane as u32);
        }
    }

    /// The task at a cursor, and the agent's number in it. Cursors stand at tasks of their agent; see [`Run::place`].
    pub fn current(&self, lane: usize, i: usize) -> (Cursor, Option<(u32, u8)>) {
        let c = self.lanes[lane].cursors[i].1;
        (c, c.at)
    }

    fn number(&self, lane: usize, task: u32, agent: Agent) -> Option<u8> {
        let class = self.class(self.lanes[lane].epoch);
        let info = self.world.info(class.tasks[task as usize].family);
        info.number(agent)
    }

    /// Sets a cursor, at the next task that has the agent.
    fn place(&mut self, lane: usize, i: usize, mut c: Cursor) {
        let agent = self.lanes[lane].cursors[i].0;
        c.at = None;
        if let Some(list) = self.lists(lane).get(c.phase) {
            let rest = list.get(c.task..).unwrap_or_default();
            let mut numbers = rest.iter().map(|t| Some((*t, self.number(lane, *t, agent)?)));
            match numbers.position(|n| n.is_some()) {
                Some(skip) => {
                    c.task += skip;
                    let t = list[c.task];
                    c.at = self.number(lane, t, agent).map(|n| (t, n));
                }
                None => c.task += rest.len(),
            }
        }
        self.lanes[lane].cursors[i].1 = c;
    }

    /// What keeps an agent from going on, if anything.
    pub fn block(&self, lane: usize, i: usize) -> Option<Block> {
        let epoch = self.lanes[lane].epoch;
        if epoch > self.world.epochs() {
            return Some(Block::Done);
        }
        let (c, at) = self.current(lane, i);
        let Some((t, a)) = at else {
            if c.phase > 2 {
                return Some(Block::Done);
            }
            // A phase ends for all agents at once.
            let behind = |j: usize| {
                let (d, at) = self.current(lane, j);
                d.phase < c.phase || (d.phase == c.phase && at.is_some())
            };
            return (0..self.lanes[lane].cursors.len()).any(behind).then_some(Block::Phase);
        };
        // The same warps, which take all of a role's families in their order.
        let same = match self.lanes[lane].cursors[i].0 {
            Agent::Copier => Some(Agent::Consumers),
            Agent::Consumers => Some(Agent::Copier),
            _ => None,
        };
        let other = same.and_then(|a| self.lanes[lane].cursors.iter().position(|c| c.0 == a));
        if let (Some(j), Some(other)) = (other, same) {
            let (d, at) = self.current(lane, j);
            if d.phase == c.phase && at.is_some() && d.task < c.task {
                return Some(Block::Agent(other));
            }
        }
        let class = self.class(epoch);
        let task = &class.tasks[t as usize];
        let info = self.world.info(task.family);
        let e = epoch as usize - 1;
        match c.sub {
            0 => {
                let waits = &class.waits[task.waits.start as usize..task.waits.end as usize];
                let first = waits.partition_point(|w| w.step < c.step);
                let here = waits[first..].iter().take_while(|w| w.step == c.step).enumerate();
                let mut open =
                    here.filter(|(_, w)| w.agent == a && !self.satisfied(class, epoch, w));
                open.next().map(|(n, _)| Block::Wait(task.waits.start + (first + n) as u32))
            }
            1 => {
                let late = |flow: &&Flow| {
                    flow.to == a
                        && info.may_pass(**flow, c.step, task.steps)
                        && self.done[e][t as usize][usize::from(flow.from)] <= c.step
                };
                let full = |back: &&Flow| {
                    back.to == a
                        && forward(info, a, back.from)
                            .is_some_and(|f| info.may_pass(f, c.step, task.steps))
                        && self.waited[e][t as usize][usize::from(back.from)] <= c.step
                };
                let flow = info.flows.iter().find(late).or_else(|| info.backs.iter().find(full));
                flow.map(|f| Block::Agent(info.agent(f.from)))
            }
            _ => None,
        }
    }

    fn satisfied(&self, class: &Class, epoch: u32, w: &WaitRec) -> bool {
        let lag = wait_line(self.world.plan, class, w).lag;
        self.value[w.word as usize] >= i64::from(epoch.saturating_sub(lag)).saturating_mul(w.count)
    }

    /// Moves an agent by one phase of a step if it can.
    fn step(&mut self, lane: usize, i: usize) -> bool {
        match self.block(lane, i) {
            Some(Block::Wait(w)) => {
                let word = self.class(self.lanes[lane].epoch).waits[w as usize].word as usize;
                if self.sleepers[word].last() != Some(&(lane as u32)) {
                    self.sleepers[word].push(lane as u32);
                }
                return false;
            }
            Some(_) => return false,
            None => {}
        }
        let epoch = self.lanes[lane].epoch;
        let (mut c, at) = self.current(lane, i);
        let Some((t, a)) = at else {
            self.place(lane, i, Cursor { phase: c.phase + 1, ..Cursor::default() });
            return true;
        };
        let class = self.class(epoch);
        let task = &class.tasks[t as usize];
        let slot =
            &mut (if c.sub == 0 { &mut self.waited } else { &mut self.done })[epoch as usize - 1];
        match c.sub {
            0 | 1 => slot[t as usize][usize::from(a)] = c.step + 1,
            _ => {
                self.post(epoch, t, a, c.step);
                let info = self.world.info(task.family);
                if info.agent(a) == Agent::Issuer && c.step == 0 {
                    // The hosts carry the command out: nothing holds them up.
                    for host in 1..info.contract.agents.len() as u8 {
                        (0..task.steps).for_each(|s| self.post(epoch, t, host, s));
                    }
                }
            }
        }
        c.sub += 1;
        if c.sub > 2 {
            c = Cursor { step: c.step + 1, sub: 0, ..c };
            if c.step >= task.steps {
                c = Cursor { phase: c.phase, task: c.task + 1, ..Cursor::default() };
            }
        }
        match c.at {
            Some((at, _)) if at == t && (c.sub > 0 || c.step > 0) => {
                self.lanes[lane].cursors[i].1 = c;
            }
            _ => self.place(lane, i, c),
        }
        true
    }

    fn post(&mut self, epoch: u32, task: u32, agent: u8, step: u32) {
        let class = self.class(epoch);
        let range = class.tasks[task as usize].posts.clone();
        for p in range {
            let post = &class.posts[p as usize];
            if post.agent != agent || post.step != step {
                continue;
            }
            // Of ranks that are folded: the image that comes to rank 0 at the same time.
            let own = self.world.rotation.own(post.word);
            let word = own as usize;
            self.posted[epoch as usize - 1][p as usize] = true;
            self.value[word] = self.value[word].saturating_add(post.add);
            let left = &mut self.left[epoch as usize - 1][word];
            *left -= 1;
            if *left == 0 {
                self.order.push((own, epoch));
            }
            for lane in std::mem::take(&mut self.sleepers[word]) {
                self.wake(lane as usize);
            }
        }
    }
}

fn forward(info: &FamInfo, from: u8, to: u8) -> Option<Flow> {
    info.flows.iter().copied().find(|f| f.from == from && f.to == to)
}

/// Which lane runs which tasks.
fn assign(world: &World<'_>, class: &Class, per_rank: usize) -> (Vec<Lists>, Vec<u32>) {
    let mut lists: Vec<Lists> = vec![Lists::default(); class.ranks.len() * per_rank];
    let mut lane_of = vec![0u32; class.tasks.len()];
    let mut first = Vec::new();
    let mut base = 0;
    for role in world.plan.roles.values() {
        first.push(base);
        base += role.ctas as usize;
    }
    // Agents of a cluster stand for those of its CTAs, which do the same.
    let workers = world.plan.all_workers();
    let families = world.plan.families.values();
    let free = families.filter(|x| x.schedule == Schedule::Dynamic);
    let dynamic: HashSet<RoleId> = free.map(|x| x.role).collect();
    for (rank, tasks) in class.ranks.iter().enumerate() {
        let mut n = vec![0usize; first.len()];
        for t in tasks.clone() {
            let id = world.plan.families[class.tasks[t as usize].family].role;
            let role = &world.plan.roles[id];
            let (cta, phase) = match role.kind {
                RoleKind::Prologue => (0, 0),
                RoleKind::Epilogue => (0, 2),
                RoleKind::CopyEngine => (per_rank - 1, 1),
                _ if dynamic.contains(&id) => (first[id.index()], 1),
                _ => (first[id.index()] + n[id.index()] % workers[id.index()].max(1) as usize, 1),
            };
            n[id.index()] += 1;
            let lane = rank * per_rank + cta;
            lists[lane][phase].push(t);
            lane_of[t as usize] = lane as u32;
        }
    }
    (lists, lane_of)
}
