//! What the end of a launch waited for: from the last task backwards, wait by wait, to the post that ended each.

use super::{
    align::posts,
    launch::Trace,
    spans::{Span, What},
};

/// Waits shorter than this held nobody up, in nanoseconds: to look at a word takes about as long.
const NOTICEABLE_NS: f64 = 500.0;
/// In place of a family: the posts of a rank's entry.
const NO_FAMILY: u32 = u32::MAX;
/// Steps of a chain; a longer one is cut at its beginning.
const MAX_STEPS: usize = 200;

/// One CTA's part of a chain: it waited, and then it was busy until the next step's post, or the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The rank.
    pub rank: u32,
    /// The CTA.
    pub cta: u32,
    /// Family of the task that posts what the next step waits for, or of the last task; `u32::MAX` for a rank's entry.
    pub family: u32,
    /// The task.
    pub task: u32,
    /// Nanoseconds from the wait's end, or from the CTA's begin, to what the next step waited for.
    pub busy: f64,
    /// Of them, at internal edges in tasks of the family, on average of the agents that work: for operands, or for
    /// room.
    pub stalled: f64,
    /// The wait before; none where the chain begins.
    pub wait: Option<Waited>,
    /// When the step's part ends, in nanoseconds.
    pub end: f64,
}

/// A wait that held a chain up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waited {
    /// The edge.
    pub edge: u32,
    /// How long, in nanoseconds.
    pub length: f64,
    /// From before the last post was made to the wait's end, in nanoseconds; none if no post is known.
    pub delivery: Option<f64>,
}

/// From the begin of a launch to the end of its last task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// In the order of time.
    pub steps: Vec<Step>,
}

/// The chain that ends with the last task.
pub fn chain(trace: &Trace) -> Chain {
    let slack = trace.clocks.iter().map(|c| 2.0 * c.tick_ns as f64).fold(0.0, f64::max)
        + trace.alignment.contradiction_ns;
    let by_word = posts(&trace.spans, trace.world);
    let tasks = || trace.spans.iter().filter(|s| matches!(s.what, What::Task { .. }));
    let Some(last) = tasks().max_by(|a, b| a.end.total_cmp(&b.end)) else {
        return Chain::default();
    };
    let mut steps = Vec::new();
    let (mut rank, mut cta, mut end) = (last.rank, last.cta, last.end);
    let (mut family, mut task) = task_of(last);
    while steps.len() < MAX_STEPS {
        let here: Vec<&Span> =
            trace.spans.iter().filter(|s| (s.rank, s.cta) == (rank, cta)).collect();
        let post = |s: &Span| match s.what {
            What::Wait { on, before: false, .. } => {
                let list = by_word.get(&on)?;
                list.iter().rev().find(|p| p.begin <= s.end + slack).copied()
            }
            _ => None,
        };
        // A wait that began after the post had only to see it.
        let held = |s: &&&Span| {
            matches!(s.what, What::Wait { .. })
                && s.end <= end
                && s.length() > NOTICEABLE_NS.max(slack)
                && post(s).is_none_or(|p| p.begin > s.begin)
        };
        let wait = here.iter().filter(held).max_by(|a, b| a.end.total_cmp(&b.end));
        let began = here.iter().filter(|s| s.what == What::Cta).map(|s| s.begin).next();
        let from = wait.map_or(began.unwrap_or(0.0), |w| w.end);
        let mut step = Step {
            rank,
            cta,
            family,
            task,
            busy: (end - from).max(0.0),
            stalled: stalled(trace, &here, family, from, end),
            wait: None,
            end,
        };
        let Some(wait) = wait else {
            steps.push(step);
            break;
        };
        let What::Wait { edge, .. } = wait.what else { break };
        let made = post(wait);
        let delivery = made.map(|p| wait.end - p.begin);
        step.wait = Some(Waited { edge, length: wait.length(), delivery });
        steps.push(step);
        match made {
            Some(post) if post.begin < end => {
                (rank, cta, end) = (post.rank, post.cta, post.begin);
                (family, task) = task_of(post);
            }
            _ => break,
        }
    }
    steps.reverse();
    Chain { steps }
}

/// The task that a span belongs to.
fn task_of(span: &Span) -> (u32, u32) {
    match span.what {
        What::Task { family, task, .. }
        | What::Wait { family, task, .. }
        | What::Post { family, task, .. } => (family, task),
        What::Cta | What::Enter { .. } => (NO_FAMILY, 0),
    }
}

/// Nanoseconds that agents in a family's tasks stood at internal edges between two times, on average.
fn stalled(trace: &Trace, here: &[&Span], family: u32, from: f64, to: f64) -> f64 {
    let (mut sum, mut agents) = (0.0, Vec::new());
    for s in here.iter().filter(|s| trace.is_work(s) && s.end > from && s.begin < to) {
        if let What::Task { stalled, .. } = s.what
            && task_of(s).0 == family
        {
            // What of a task lies outside the interval has its share.
            let part = (s.end.min(to) - s.begin.max(from)) / s.length().max(1.0);
            sum += part * (stalled[0] + stalled[1]);
            agents.push(s.agent);
        }
    }
    agents.sort_unstable();
    agents.dedup();
    sum / agents.len().max(1) as f64
}

impl Step {
    /// In words.
    pub fn text(&self, trace: &Trace) -> String {
        let role = trace.role_name(self.cta);
        let us = |ns: f64| ns / 1e3;
        let upto = match self.family {
            NO_FAMILY => "its entry".into(),
            family => format!("{} task {}", trace.family(family), self.task),
        };
        let wait = self.wait.map_or(String::new(), |w| {
            let delivery = w.delivery.map_or("no post of it is known".into(), |d| {
                format!("ended {:.1} us after the post began", us(d))
            });
            format!(" waited {:.1} us at e{} ({delivery}), then", us(w.length), w.edge)
        });
        let busy = format!("ran {:.1} us up to {upto}", us(self.busy));
        let stalled = match us(self.stalled) {
            s if s >= 0.1 => format!(", {s:.1} us of it at internal edges"),
            _ => String::new(),
        };
        format!("rank {} CTA {} {role}{wait} {busy}{stalled}", self.rank, self.cta)
    }
}

impl Chain {
    /// Where the time of the chain went, most first: nanoseconds by what.
    pub fn totals(&self, trace: &Trace) -> Vec<(String, f64)> {
        let mut out: Vec<(String, f64)> = Vec::new();
        let mut add = |what: String, ns: f64| match out.iter_mut().find(|(w, _)| *w == what) {
            Some((_, sum)) => *sum += ns,
            None => out.push((what, ns)),
        };
        for s in &self.steps {
            let family = match s.family {
                NO_FAMILY => "entry",
                family => trace.family(family),
            };
            add(format!("{family} on rank {}", s.rank), s.busy - s.stalled);
            add(format!("internal edges of {family} on rank {}", s.rank), s.stalled);
            if let Some(Waited { edge, delivery, length }) = s.wait {
                // Delivery may be longer than the wait: then the wait began late.
                add(format!("signals at e{edge}"), delivery.unwrap_or(length));
            }
        }
        out.retain(|(_, ns)| *ns > 0.0);
        out.sort_by(|a, b| b.1.total_cmp(&a.1));
        out
    }
}
