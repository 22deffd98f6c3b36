//! What can happen in ignorance of something: the least fixpoint behind every verdict.

use super::{
    graph::{Event, Graph, completes, is_host, strong},
    unroll::{Await, Unrolled},
};
use mk_codegen::plan::Proxy;
use std::{collections::HashMap, rc::Rc};

/// Ways to know of something.
pub const CAUSE: u8 = 1;
pub const GENERIC: u8 = 2;
pub const ASYNC: u8 = 4;
pub const OUTSIDE: u8 = 8;
const ALL: u8 = 15;

/// What must be known.
#[derive(Clone, Copy)]
pub enum Source {
    /// An access: task, number; whether a GPU makes the later one.
    Touch(usize, usize, bool),
    /// A caller's writes or reads.
    Caller(Event),
}

/// The way in which someone must know who touches memory through a proxy.
pub fn way(proxy: Proxy) -> u8 {
    match proxy {
        Proxy::Generic => GENERIC,
        Proxy::Async => ASYNC,
        Proxy::Host => OUTSIDE,
    }
}

/// Events at which something becomes known by itself: behind the completion of an access, or the caller's own.
pub fn origins(u: &Unrolled<'_>, g: &Graph, source: Source) -> Vec<Event> {
    let (task, touch, to_gpu) = match source {
        Source::Caller(e) => return vec![e],
        Source::Touch(task, touch, to_gpu) => (task, touch, to_gpu),
    };
    let (t, part) = (&u.tasks[task], &g.parts[task]);
    let x = &t.touches[touch];
    let later = g.later(part, x);
    let mut out = Vec::new();
    for (i, p) in t.posts.iter().enumerate() {
        let e = part.posts[i];
        if later[(e - part.events.start) as usize] && completes(u, t, x, p, to_gpu) {
            out.push(e);
        }
    }
    if !is_host(u.agent(t, x.agent)) {
        out.push(g.ends[t.epoch as usize - 1][t.rank]);
    }
    out
}

/// What a search needs to know of the graph, made once.
pub struct Index {
    /// For each event, those that come right after it.
    followers: Vec<Vec<Event>>,
    /// For each post, the waits on its word: whether the two synchronise, and whether for devices outside, too.
    told_by: Vec<Vec<(Event, bool, bool)>>,
    /// For each wait, the sums of posts that do not tell it, and of those that do not tell devices outside.
    mute: Vec<[i64; 2]>,
}

impl Index {
    pub fn new(u: &Unrolled<'_>, g: &Graph) -> Index {
        let n = g.nodes.len();
        let mut out = Index {
            followers: vec![Vec::new(); n],
            told_by: vec![Vec::new(); n],
            mute: vec![[0; 2]; n],
        };
        for (e, node) in g.nodes.iter().enumerate() {
            node.after.iter().for_each(|p| out.followers[*p as usize].push(e as Event));
            let Some(post) = node.post else { continue };
            let p = &u.tasks[post.0 as usize].posts[post.1 as usize];
            for w in &g.word_waits[p.word as usize] {
                let Some(wait) = g.nodes[*w as usize].wait else { continue };
                let tells = [false, true].map(|outside| strong(u, post, wait, outside));
                out.told_by[e].push((*w, tells[0], tells[1]));
                for (sum, tells) in out.mute[*w as usize].iter_mut().zip(tells) {
                    *sum += if tells { 0 } else { p.add };
                }
            }
        }
        out
    }
}

/// Answers by the events at which something becomes known: accesses of one task mostly share them.
#[derive(Default)]
pub struct Known(HashMap<Vec<Event>, Rc<Vec<u8>>>);

impl Known {
    /// [`known`], of something that may have been asked before.
    pub fn get(
        &mut self,
        u: &Unrolled<'_>,
        g: &Graph,
        index: &Index,
        source: Source,
    ) -> Rc<Vec<u8>> {
        let origins = origins(u, g, source);
        if let Some(known) = self.0.get(&origins) {
            return known.clone();
        }
        let known = Rc::new(known(u, g, index, &origins));
        self.0.insert(origins, known.clone());
        known
    }
}

/// For each event, the ways in which it knows of something in *every* run. All events of the plan happen in the end.
pub fn known(u: &Unrolled<'_>, g: &Graph, index: &Index, origins: &[Event]) -> Vec<u8> {
    let n = g.nodes.len();
    let mut told = vec![false; n];
    origins.iter().for_each(|e| told[*e as usize] = true);
    let least = |e: usize| g.nodes[e].wait.map(|w| wait_of(u, w).least);
    // The fixpoint: what happens in ignorance. `sums`: of posts that do not tell a wait, which may satisfy it.
    let mut sums = index.mute.clone();
    let mut left: Vec<u32> = g.nodes.iter().map(|x| x.after.len() as u32).collect();
    let mut free = vec![false; n];
    let mut ready: Vec<Event> = (0..n as Event).filter(|e| left[*e as usize] == 0).collect();
    while let Some(e) = ready.pop() {
        let e = e as usize;
        if free[e] || told[e] || least(e).is_some_and(|n| sums[e][0] < n) {
            continue;
        }
        free[e] = true;
        for f in &index.followers[e] {
            left[*f as usize] -= 1;
            if left[*f as usize] == 0 {
                ready.push(*f);
            }
        }
        let Some((t, i)) = g.nodes[e].post else { continue };
        let add = u.tasks[t as usize].posts[i as usize].add;
        for (w, tells, outside) in &index.told_by[e] {
            sums[*w as usize][0] += if *tells { add } else { 0 };
            sums[*w as usize][1] += if *outside { add } else { 0 };
            if left[*w as usize] == 0 && *tells {
                ready.push(*w);
            }
        }
    }
    // In which ways the others know.
    let mut ways = vec![0u8; n];
    for (e, node) in g.nodes.iter().enumerate() {
        let mut k = node.after.iter().fold(0, |k, p| k | ways[*p as usize]);
        if told[e] {
            k |= CAUSE;
        }
        if node.begins && k & CAUSE != 0 {
            k = ALL;
        }
        if let Some(wait) = node.wait {
            let w = wait_of(u, wait);
            // The fence of this wait is behind everything that the agent knew.
            if w.proxy == Proxy::Async && k & GENERIC != 0 {
                k |= ASYNC;
            }
            if sums[e][0] < w.least {
                k |= CAUSE;
                k |= if w.proxy != Proxy::Host { GENERIC } else { 0 };
                k |= if w.proxy == Proxy::Async { ASYNC } else { 0 };
            }
            if sums[e][1] < w.least {
                k |= OUTSIDE;
            }
        }
        ways[e] = k;
        debug_assert_eq!(free[e], k & CAUSE == 0);
    }
    ways
}

fn wait_of<'u>(u: &'u Unrolled<'_>, wait: (u32, u32)) -> &'u Await {
    &u.tasks[wait.0 as usize].waits[wait.1 as usize]
}
