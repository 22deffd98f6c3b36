//! Whether a plan comes to its end, on its own CTAs and with stages that never suffice for more than one step.
//!
//! No event disables another: all runs stop at the same set of events. The one exception is the order of commands in a rank's
//! fifo. A sending host that waits on behalf of one command holds back all that may stand behind it, so for each such
//! command the run is repeated with those held back.

use super::{
    graph::{Event, Graph},
    unroll::Unrolled,
};
use mk_codegen::plan::Agent;
use std::collections::HashSet;

/// Why a run stops before its end, if one does.
pub fn stuck(u: &Unrolled<'_>) -> Option<String> {
    let g = Graph::new(u, true);
    let done = run(u, &g, &HashSet::new());
    if let Some(e) = done.iter().position(|d| !d) {
        let waits = |e: &usize| !done[*e] && g.nodes[*e].wait.is_some();
        let at = (0..done.len()).find(waits).unwrap_or(e);
        return Some(format!("deadlock: {}", name(u, &g, at as Event)));
    }
    for (i, t) in u.tasks.iter().enumerate() {
        for (n, w) in t.waits.iter().enumerate() {
            if u.agent(t, w.agent) == Agent::Receiver && w.least > 0 {
                return Some(format!(
                    "deadlock: the receiving host cannot read the words of rank {}",
                    t.rank
                ));
            }
            if u.agent(t, w.agent) != Agent::Sender {
                continue;
            }
            let behind = |j: &usize| {
                let o = &u.tasks[*j];
                let earlier =
                    o.epoch < t.epoch || (o.epoch == t.epoch && o.place == t.place && *j < i);
                *j != i && o.rank == t.rank && !earlier && sends(u, *j)
            };
            let held: HashSet<Event> =
                (0..u.tasks.len()).filter(behind).map(|j| g.parts[j].behind(0, 0)).collect();
            let done = run(u, &g, &held);
            let (head, wait) = (g.parts[i].behind(0, 0), g.parts[i].waits[n]);
            if done[head as usize] && !done[wait as usize] {
                return Some(format!(
                    "deadlock: {}, and what it waits for is behind it in the fifo",
                    name(u, &g, wait)
                ));
            }
        }
    }
    None
}

fn sends(u: &Unrolled<'_>, task: usize) -> bool {
    u.contract(&u.tasks[task]).agents.contains(&Agent::Sender)
}

fn run(u: &Unrolled<'_>, g: &Graph, held: &HashSet<Event>) -> Vec<bool> {
    let mut sum = vec![0i64; u.words.len()];
    let mut done = vec![false; g.nodes.len()];
    loop {
        let mut moved = false;
        for (e, node) in g.nodes.iter().enumerate() {
            if done[e]
                || held.contains(&(e as Event))
                || !node.after.iter().all(|p| done[*p as usize])
            {
                continue;
            }
            if let Some((t, i)) = node.wait {
                let w = &u.tasks[t as usize].waits[i as usize];
                if sum[w.word as usize] < w.least {
                    continue;
                }
            }
            if let Some((t, i)) = node.post {
                let p = &u.tasks[t as usize].posts[i as usize];
                sum[p.word as usize] += p.add;
            }
            done[e] = true;
            moved = true;
        }
        if !moved {
            return done;
        }
    }
}

fn name(u: &Unrolled<'_>, g: &Graph, e: Event) -> String {
    match g.nodes[e as usize].wait {
        Some((t, i)) => {
            let t = &u.tasks[t as usize];
            let w = &t.waits[i as usize];
            format!(
                "{} waits for {} on a word of rank {}",
                u.task_name(t),
                w.least,
                u.words[w.word as usize]
            )
        }
        None => format!("event {e} never comes"),
    }
}
