//! The verdict: every pair of accesses in the wrong order in some run.

use super::{
    cover::common,
    free::{CAUSE, Index, Known, Source, way},
    graph::{Event, Graph},
    unroll::{Task, Touch, Unrolled},
};
use mk_codegen::plan::{Agent, FamId, Mode, Proxy, Space};
use std::collections::HashMap;

/// What an exploration found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No run goes wrong; how many pairs of accesses were looked at.
    Fine {
        /// Pairs of accesses, the caller's included.
        pairs: u64,
    },
    /// A run goes wrong.
    Wrong(Wrong),
}

/// How a run goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// For people.
    pub text: String,
    /// Whose access comes too late: hold it back, and the run is there.
    pub late: Option<Late>,
    /// With which filling of the run-time tables.
    pub filling: usize,
    /// Whether it is between a copy engine and the caller. The executor begins and ends the launch of a rank as a whole, copies
    /// included, so that no schedule of it shows that.
    pub beside: bool,
}

/// An agent of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    pub rank: usize,
    pub family: FamId,
    pub agent: Agent,
    pub task: i64,
    pub epoch: i64,
}

impl Wrong {
    pub fn new(text: String) -> Wrong {
        Wrong { text, late: None, filling: 0, beside: false }
    }
}

/// An access by task and number.
pub type At = (usize, usize);

/// Accesses of one buffer on one rank.
pub type Near = HashMap<(usize, u32), Vec<At>>;

pub struct Pairs<'a, 'p> {
    pub u: &'a Unrolled<'p>,
    pub near: Near,
}

impl Pairs<'_, '_> {
    pub fn new<'a, 'p>(u: &'a Unrolled<'p>) -> Pairs<'a, 'p> {
        use mk_codegen::plan::Entity;
        let mut near = Near::new();
        for (i, t) in u.tasks.iter().enumerate() {
            for (j, x) in t.touches.iter().enumerate() {
                near.entry((x.rank, x.buffer.index() as u32)).or_default().push((i, j));
            }
        }
        Pairs { u, near }
    }

    pub fn of(&self, at: At) -> (&Task, &Touch) {
        let t = &self.u.tasks[at.0];
        (t, &t.touches[at.1])
    }

    fn beside(&self, x: &Touch) -> &[At] {
        use mk_codegen::plan::Entity;
        self.near.get(&(x.rank, x.buffer.index() as u32)).map_or(&[], Vec::as_slice)
    }

    /// Accesses that must come after an access and touch what it touched.
    pub fn later(&self, at: At) -> Vec<At> {
        let (t, x) = self.of(at);
        let stamp = (t.epoch, x.version);
        let one = |b: &At| {
            let (s, y) = self.of(*b);
            let other = (s.epoch, y.version);
            let (wx, wy) = (x.mode != Mode::Read, y.mode != Mode::Read);
            let must = match stamp.cmp(&other) {
                std::cmp::Ordering::Less => wx || wy,
                std::cmp::Ordering::Equal => wx && !wy,
                std::cmp::Ordering::Greater => false,
            };
            *b != at && must && self.meet(x, y, wx && wy, *b)
        };
        self.beside(x).iter().copied().filter(one).collect()
    }

    /// Whether two accesses share memory, and for two writes, somebody reads it afterwards.
    fn meet(&self, x: &Touch, y: &Touch, writes: bool, at: At) -> bool {
        let Some(both) = common(&x.dims, &y.dims) else { return false };
        !writes || self.is_read(y, &both, self.u.tasks[at.0].epoch)
    }

    fn is_read(&self, y: &Touch, part: &[(i64, i64)], epoch: i64) -> bool {
        let reads = |b: &At| {
            let (s, z) = self.of(*b);
            let after = (s.epoch, z.version) >= (epoch, y.version);
            z.mode != Mode::Write && after && common(&z.dims, part).is_some()
        };
        self.u.plan.buffers[y.buffer].space == Space::Out || self.beside(y).iter().any(reads)
    }

    /// Two writes of one stamp that meet: which value is read later is nobody's decision.
    pub fn twice(&self) -> Option<String> {
        for list in self.near.values() {
            for (i, a) in list.iter().enumerate() {
                let (t, x) = self.of(*a);
                for b in &list[i + 1..] {
                    let (s, y) = self.of(*b);
                    let both_add = (x.mode, y.mode) == (Mode::Accumulate, Mode::Accumulate);
                    let write = x.mode != Mode::Read && y.mode != Mode::Read && !both_add;
                    let stamps = (t.epoch, x.version) == (s.epoch, y.version);
                    if write && stamps && self.meet(x, y, true, *b) {
                        return Some(format!(
                            "written twice: {} and {}",
                            self.u.touch_name(t, x),
                            self.u.task_name(s)
                        ));
                    }
                }
            }
        }
        None
    }

    /// Whether the leaf itself orders two accesses of one task.
    pub fn in_task(&self, g: &Graph, x: At, y: At) -> bool {
        let part = &g.parts[x.0];
        let ((_, a), (_, b)) = (self.of(x), self.of(y));
        let ordinary = a.proxy == Proxy::Generic && b.proxy == Proxy::Generic;
        if a.agent != b.agent {
            let later = g.later(part, a)[(part.issues(b) - part.events.start) as usize];
            let crosses = a.proxy == Proxy::Generic && b.proxy == Proxy::Async;
            return later && !crosses;
        }
        let updates = a.mode == Mode::Read && b.mode != Mode::Read && a.dims == b.dims;
        ordinary && (a.step < b.step || (a.step == b.step && updates))
    }
}

/// The first pair of accesses that some run has in the wrong order.
pub fn check(u: &Unrolled<'_>) -> Verdict {
    let g = Graph::new(u, false);
    let index = Index::new(u, &g);
    let p = Pairs::new(u);
    if let Some(twice) = p.twice() {
        return Verdict::Wrong(Wrong::new(twice));
    }
    let mut pairs = 0;
    let mut cache = Known::default();
    for (i, t) in u.tasks.iter().enumerate() {
        for (j, x) in t.touches.iter().enumerate() {
            let list = p.later((i, j));
            for to_gpu in [true, false] {
                let here = |y: &At| (p.of(*y).1.proxy != Proxy::Host) == to_gpu;
                let mine: Vec<At> = list.iter().copied().filter(here).collect();
                let caller = if to_gpu { caller_after(u, &g, t, x) } else { None };
                if mine.is_empty() && caller.is_none() {
                    continue;
                }
                let knows = cache.get(u, &g, &index, Source::Touch(i, j, to_gpu));
                pairs += mine.len() as u64 + u64::from(caller.is_some());
                let late = Some(Late {
                    rank: t.rank,
                    family: t.family,
                    agent: u.agent(t, x.agent),
                    task: t.linear,
                    epoch: t.epoch,
                });
                if let Some(text) = mine.iter().find_map(|y| wrong(&p, &g, &knows, (i, j), *y)) {
                    return Verdict::Wrong(Wrong { late, ..Wrong::new(text) });
                }
                if caller.is_some_and(|e| knows[e as usize] & CAUSE == 0) {
                    let access = u.touch_name(t, x);
                    let text = format!("the caller goes on before {access} is over");
                    let beside = u.agent(t, x.agent) == Agent::Engine;
                    return Verdict::Wrong(Wrong { late, beside, ..Wrong::new(text) });
                }
            }
        }
    }
    match callers_first(&p, &g, &index, &mut cache, &mut pairs) {
        Some((wrong, beside)) => Verdict::Wrong(Wrong { beside, ..Wrong::new(wrong) }),
        None => Verdict::Fine { pairs },
    }
}

/// Whether a run has `y` happen in ignorance of `x`.
fn wrong(p: &Pairs<'_, '_>, g: &Graph, knows: &[u8], x: At, y: At) -> Option<String> {
    let (s, b) = p.of(y);
    let ordered = if x.0 == y.0 {
        p.in_task(g, x, y)
    } else {
        knows[g.parts[y.0].issues(b) as usize] & way(b.proxy) != 0
    };
    let (t, a) = p.of(x);
    (!ordered).then(|| format!("{} before {}", p.u.touch_name(s, b), p.u.touch_name(t, a)))
}

/// The caller's event that an access must come before: its kernel's end is what the caller waits for.
fn caller_after(u: &Unrolled<'_>, g: &Graph, t: &Task, x: &Touch) -> Option<Event> {
    let space = u.plan.buffers[x.buffer].space;
    let exposed = space == Space::In || (space == Space::Out && x.mode != Mode::Read);
    exposed.then(|| g.read[t.epoch as usize - 1][x.rank])
}

/// Accesses before the caller has written an input, or read an output of the launch before.
fn callers_first(
    p: &Pairs<'_, '_>,
    g: &Graph,
    index: &Index,
    cache: &mut Known,
    pairs: &mut u64,
) -> Option<(String, bool)> {
    for epoch in 0..p.u.epochs as usize {
        for rank in 0..p.u.ranks {
            let earlier = (epoch > 0).then(|| g.read[epoch - 1][rank]);
            for (space, e) in [(Space::In, Some(g.written[epoch][rank])), (Space::Out, earlier)] {
                let Some(e) = e else { continue };
                let knows = cache.get(p.u, g, index, Source::Caller(e));
                for (i, t) in p.u.tasks.iter().enumerate().filter(|t| t.1.epoch == epoch as i64 + 1)
                {
                    for y in &t.touches {
                        let exposed = p.u.plan.buffers[y.buffer].space == space
                            && y.rank == rank
                            && (space == Space::In || y.mode != Mode::Read);
                        if !exposed {
                            continue;
                        }
                        *pairs += 1;
                        if knows[g.parts[i].issues(y) as usize] & way(y.proxy) == 0 {
                            let text =
                                format!("{} before the caller is ready", p.u.touch_name(t, y));
                            return Some((text, p.u.agent(t, y.agent) == Agent::Engine));
                        }
                    }
                }
            }
        }
    }
    None
}
