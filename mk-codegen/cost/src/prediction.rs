//! What a run of the model says.

use super::{
    engine::Ran,
    work::{Kind, Work, is_card, is_link},
};
use mk_plan::{Entity, FamId, Plan};
use serde::Serialize;
use std::fmt;

/// A predicted launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// From the release of all ranks to the end on the last, in seconds.
    pub total_s: f64,
    /// What most of the critical chain is made of.
    pub bound: Bound,
    /// Seconds of the critical chain, by what they are made of.
    pub shares: Vec<(Bound, f64)>,
    /// Roles with CTAs of their own, over all ranks.
    pub roles: Vec<RoleTime>,
    /// The tasks that the end waited for, last first.
    pub chain: Vec<Chain>,
    /// Every task.
    #[serde(skip)]
    pub spans: Vec<Span>,
}

impl Prediction {
    /// The same, stretched or shortened to a total.
    pub(super) fn scaled(mut self, total_s: f64) -> Prediction {
        let by = if self.total_s > 0.0 { total_s / self.total_s } else { 1.0 };
        self.total_s = total_s;
        self.shares.iter_mut().for_each(|s| s.1 *= by);
        for role in &mut self.roles {
            role.busy_s *= by;
            role.wait_s *= by;
            role.idle_s *= by;
        }
        for link in &mut self.chain {
            link.begin_s *= by;
            link.end_s *= by;
        }
        for span in &mut self.spans {
            let times =
                [&mut span.free_s, &mut span.begin_s, &mut span.main_end_s, &mut span.end_s];
            times.into_iter().for_each(|at| *at = (*at * by).min(total_s));
        }
        self
    }

    /// Seconds of the critical chain that are made of `kind`.
    pub(super) fn of(&self, kind: Bound) -> f64 {
        self.shares.iter().find(|s| s.0 == kind).map_or(0.0, |s| s.1)
    }

    /// The total in milliseconds.
    pub fn ms(&self) -> f64 {
        self.total_s * 1e3
    }
}

/// What time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Steps of GEMMs.
    Compute,
    /// The same, where the last wave of tiles leaves many SMs idle.
    Waves,
    /// Links between GPUs.
    Link,
    /// Network cards, to other nodes.
    Card,
    /// Memory of a GPU.
    Memory,
    /// What the SMs that copy and add can move by themselves.
    Movers,
    /// Launch, flags, and the first and last bytes of something.
    Latency,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Compute => "compute",
            Bound::Waves => "waves of tiles",
            Bound::Link => "links",
            Bound::Card => "network cards",
            Bound::Memory => "memory",
            Bound::Movers => "SMs that copy or add",
            Bound::Latency => "latency",
        })
    }
}

/// What a role's CTAs do, on average.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleTime {
    /// Its name.
    pub role: String,
    /// CTAs on each rank.
    pub ctas: u32,
    /// Seconds at work.
    pub busy_s: f64,
    /// Seconds waiting for data, between its tasks.
    pub wait_s: f64,
    /// Seconds with nothing left to do.
    pub idle_s: f64,
}

/// A task of the critical chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chain {
    /// The family.
    pub family: String,
    /// Rank, CTA and number of the task in its family.
    pub rank: usize,
    /// CTA on its rank; none for a copy engine, and what waits for it.
    pub cta: Option<u32>,
    /// Number of the task in its family.
    pub task: u32,
    /// When its work began, in seconds.
    pub begin_s: f64,
    /// When it had ended.
    pub end_s: f64,
    /// Whether it began when a post arrived; else when its CTA was free.
    pub by_post: bool,
}

/// When a task ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank.
    pub rank: u32,
    /// CTA on its rank.
    pub cta: u32,
    /// The family.
    pub family: FamId,
    /// Number of the task in its family.
    pub task: u32,
    /// When its CTA was free for it, in seconds from the release.
    pub free_s: f64,
    /// When its work began.
    pub begin_s: f64,
    /// When its steps had ended.
    pub main_end_s: f64,
    /// When its last byte had left.
    pub end_s: f64,
}

pub(super) fn summarise(plan: &Plan, work: &Work, ran: Vec<Ran>) -> Prediction {
    let last = (0..ran.len()).max_by(|a, b| ran[*a].end.total_cmp(&ran[*b].end));
    let total_s = last.map_or(0.0, |i| ran[i].end);
    let mut lane_of = vec![0u32; ran.len()];
    for (n, lane) in work.lanes.iter().enumerate() {
        lane_of[lane.jobs.clone()].fill(n as u32);
    }
    let chain = chain(plan, work, &ran, &lane_of, last);
    let shares = shares(work, &ran, last, total_s);
    let most = shares.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Bound::Latency, |s| s.0);
    let bound = match most {
        Bound::Compute if last_wave_is_thin(work) => Bound::Waves,
        other => other,
    };
    let mut spans: Vec<Span> = Vec::with_capacity(ran.len());
    for (i, ((job, r), lane)) in work.jobs.iter().zip(&ran).zip(&lane_of).enumerate() {
        // Iterations of an inner loop are jobs, and one task.
        if i > 0
            && work.jobs[i - 1].of_task() == job.of_task()
            && let Some(span) = spans.last_mut()
        {
            (span.main_end_s, span.end_s) = (r.main_end, r.end);
            continue;
        }
        spans.push(Span {
            rank: job.rank,
            cta: work.lanes[*lane as usize].cta,
            family: job.family,
            task: job.linear,
            free_s: r.free,
            begin_s: r.begin,
            main_end_s: r.main_end,
            end_s: r.end,
        });
    }
    Prediction { total_s, bound, shares, roles: roles(plan, work, &ran, total_s), chain, spans }
}

/// Longest chain that is reported.
const MAX_CHAIN: usize = 10_000;

fn walk(ran: &[Ran], last: Option<usize>) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(last, |i| ran[*i].after.map(|j| j as usize)).take(MAX_CHAIN)
}

fn chain(
    plan: &Plan,
    work: &Work,
    ran: &[Ran],
    lane_of: &[u32],
    last: Option<usize>,
) -> Vec<Chain> {
    let one = |i: usize| {
        let (job, r) = (&work.jobs[i], &ran[i]);
        let family = &plan.families[job.family];
        let has_ctas = plan.roles[family.role].kind.owns_ctas();
        Chain {
            family: family.name.clone(),
            rank: job.rank as usize,
            cta: has_ctas.then(|| work.lanes[lane_of[i] as usize].cta),
            task: job.linear,
            begin_s: r.begin,
            end_s: r.end,
            by_post: r.by_post,
        }
    };
    let mut out: Vec<Chain> = Vec::new();
    let mut before = None;
    for i in walk(ran, last) {
        let (task, next) = (work.jobs[i].of_task(), one(i));
        match out.last_mut() {
            Some(last) if before == Some(task) => {
                (last.begin_s, last.by_post) = (next.begin_s, next.by_post);
            }
            _ => out.push(next),
        }
        before = Some(task);
    }
    out
}

/// Seconds of the critical chain by kind; they add up to the total.
fn shares(work: &Work, ran: &[Ran], last: Option<usize>, total_s: f64) -> Vec<(Bound, f64)> {
    const KINDS: [Bound; 6] =
        [Bound::Compute, Bound::Link, Bound::Card, Bound::Memory, Bound::Movers, Bound::Latency];
    let mut sums = [0.0; KINDS.len()];
    let mut add = |kind: Bound, seconds: f64| {
        if let Some(i) = KINDS.iter().position(|k| *k == kind) {
            sums[i] += seconds.max(0.0);
        }
    };
    // Until when the chain is accounted for, from its end.
    let mut until = total_s;
    for i in walk(ran, last) {
        let (job, r) = (&work.jobs[i], &ran[i]);
        let flows = &work.flows[job.main_flows.clone()];
        let over = |is: fn(u32) -> bool| flows.iter().any(|f| is(f.resource));
        let shared = match () {
            () if over(is_card) => Bound::Card,
            () if over(is_link) => Bound::Link,
            () => Bound::Memory,
        };
        let main = (r.main_end.min(until) - r.begin).max(0.0);
        let after = (until.min(r.end) - r.main_end).max(0.0);
        add(Bound::Latency, until - r.end.min(until));
        match &job.kind {
            Kind::Tile(tile) => {
                let alone = job.main_s.min(main);
                add(Bound::Compute, alone);
                add(Bound::Memory, main - alone);
                let remote = tile.out.is_some_and(|o| is_link(o.flow.resource));
                let epilogue = tile.rate.tile_s.min(after);
                add(Bound::Compute, epilogue);
                add(if remote { Bound::Link } else { Bound::Memory }, after - epilogue);
            }
            Kind::Move => {
                // Half as long again as alone: others had their part.
                let crowded = main > 1.5 * job.main_s;
                add(if crowded { shared } else { Bound::Movers }, main);
                add(Bound::Latency, after);
            }
            Kind::Signal => add(Bound::Latency, main + after),
        }
        until = until.min(r.begin);
    }
    add(Bound::Latency, until);
    // Inside a node nobody asks for cards.
    let has_cards = work.flows.iter().any(|f| is_card(f.resource));
    KINDS.into_iter().zip(sums).filter(|(kind, _)| *kind != Bound::Card || has_cards).collect()
}

/// Whether a tenth of the steps that lanes could make is lost because some lanes have one tile more than others.
fn last_wave_is_thin(work: &Work) -> bool {
    let (mut most, mut sum, mut lanes) = (0.0f64, 0.0, 0.0);
    for lane in work.lanes.iter().filter(|l| l.rank == 0) {
        let jobs = work.jobs[lane.jobs.clone()].iter();
        let steps: f64 = jobs.filter(|j| matches!(j.kind, Kind::Tile(_))).map(|j| j.main_s).sum();
        if steps > 0.0 || work.jobs[lane.jobs.clone()].is_empty() {
            (most, sum, lanes) = (most.max(steps), sum + steps, lanes + 1.0);
        }
    }
    sum < 0.9 * most * lanes
}

fn roles(plan: &Plan, work: &Work, ran: &[Ran], total_s: f64) -> Vec<RoleTime> {
    let mut out = Vec::new();
    for (id, role) in plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        let lanes = work.lanes.iter().filter(|l| l.role == id.index());
        let (mut busy, mut wait, mut idle, mut n) = (0.0, 0.0, 0.0, 0.0f64);
        for lane in lanes {
            n += 1.0;
            let mut until = 0.0f64;
            for r in &ran[lane.jobs.clone()] {
                wait += (r.begin - until).max(0.0);
                busy += (r.end - r.begin.max(until)).max(0.0);
                until = until.max(r.end);
            }
            idle += total_s - until;
        }
        let n = n.max(1.0);
        out.push(RoleTime {
            role: role.kind.name().to_string(),
            ctas: role.ctas,
            busy_s: busy / n,
            wait_s: wait / n,
            idle_s: idle / n,
        });
    }
    out
}
