//! The machine walked state by state, for plans of a few events: what `free.rs` concludes without walking must be what is found.

use super::{
    free::{ASYNC, CAUSE, GENERIC, Index, OUTSIDE, Source, known, origins},
    graph::{Event, Graph, strong},
    tables::tables,
    unroll::Unrolled,
};
use mk_codegen::plan::{Plan, Proxy};
use std::collections::HashSet;

const HAPPENED: u8 = 128;

/// States that were walked, and the first event of which the fixpoint says something else than all runs together.
pub fn disagreement(plan: &Plan, epochs: i64, max_states: usize) -> (usize, Option<String>) {
    let sets = tables(plan);
    let mut u = match Unrolled::new(plan, &sets[0], 0) {
        Ok(u) => u,
        Err(e) => return (0, Some(e)),
    };
    u.epochs = epochs;
    u.tasks.retain(|t| t.epoch <= epochs);
    // The fixpoint is about plans that come to their end.
    if super::stuck::stuck(&u).is_some() {
        return (0, None);
    }
    let g = Graph::new(&u, false);
    let index = Index::new(&u, &g);
    let mut states = 0;
    let mut sources = vec![Source::Caller(g.written[0][0])];
    for (i, t) in u.tasks.iter().enumerate().filter(|t| t.1.rank == 0) {
        sources.extend((0..t.touches.len()).map(|j| Source::Touch(i, j, true)));
    }
    for source in sources {
        let Some(least) = walk(&u, &g, source, max_states, &mut states) else {
            return (states, Some(format!("more than {max_states} states")));
        };
        let says = known(&u, &g, &index, &origins(&u, &g, source));
        if let Some(e) = (0..says.len()).find(|e| says[*e] != least[*e]) {
            let text =
                format!("event {e}: all runs {:#06b}, the fixpoint {:#06b}", least[e], says[e]);
            return (states, Some(text));
        }
    }
    (states, None)
}

/// For each event, what it knows in every run.
fn walk(
    u: &Unrolled<'_>,
    g: &Graph,
    source: Source,
    max: usize,
    states: &mut usize,
) -> Option<Vec<u8>> {
    let n = g.nodes.len();
    let mut told = vec![false; n];
    origins(u, g, source).into_iter().for_each(|e| told[e as usize] = true);
    let mut least = vec![CAUSE | GENERIC | ASYNC | OUTSIDE; n];
    let mut seen: HashSet<Box<[u8]>> = HashSet::new();
    let mut stack = vec![vec![0u8; n].into_boxed_slice()];
    while let Some(state) = stack.pop() {
        for e in 0..n {
            let Some(ways) = happen(u, g, &told, &state, e) else { continue };
            least[e] &= ways;
            let mut next = state.clone();
            next[e] = HAPPENED | ways;
            if !seen.contains(&next) {
                seen.insert(next.clone());
                stack.push(next);
            }
        }
        if seen.len() > max {
            return None;
        }
    }
    *states += seen.len();
    Some(least)
}

/// What an event knows if it happens next, if it can.
fn happen(u: &Unrolled<'_>, g: &Graph, told: &[bool], state: &[u8], e: usize) -> Option<u8> {
    let node = &g.nodes[e];
    let open = node.after.iter().any(|p| state[*p as usize] & HAPPENED == 0);
    if state[e] & HAPPENED != 0 || open {
        return None;
    }
    let mut k = node.after.iter().fold(0, |k, p| k | state[*p as usize]) & !HAPPENED;
    if told[e] {
        k |= CAUSE;
    }
    if node.begins && k & CAUSE != 0 {
        k = CAUSE | GENERIC | ASYNC | OUTSIDE;
    }
    if let Some(wait) = node.wait {
        let w = &u.tasks[wait.0 as usize].waits[wait.1 as usize];
        let posts = &g.word_posts[w.word as usize];
        let there: Vec<(Event, (u32, u32))> = posts
            .iter()
            .filter(|p| state[**p as usize] & HAPPENED != 0)
            .filter_map(|p| Some((*p, g.nodes[*p as usize].post?)))
            .collect();
        let add = |p: &(Event, (u32, u32))| u.tasks[p.1.0 as usize].posts[p.1.1 as usize].add;
        if there.iter().map(add).sum::<i64>() < w.least {
            return None;
        }
        if w.proxy == Proxy::Async && k & GENERIC != 0 {
            k |= ASYNC;
        }
        let tells = |outside: bool| {
            let by = |p: &&(Event, (u32, u32))| state[p.0 as usize] & CAUSE != 0;
            there.iter().filter(by).any(|p| strong(u, p.1, wait, outside))
        };
        if tells(false) {
            k |= CAUSE;
            k |= if w.proxy != Proxy::Host { GENERIC } else { 0 };
            k |= if w.proxy == Proxy::Async { ASYNC } else { 0 };
        }
        if tells(true) {
            k |= OUTSIDE;
        }
    }
    Some(k)
}
