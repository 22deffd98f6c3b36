//! Counterexamples in words: which edge is missing (rule 1), or is there but too weak (rule 4).
//!
//! When no path orders two accesses, a second search looks for one that ignores agents, completions, scopes and
//! proxies. If it finds one, the report names the first hop that does not suffice.

use super::{
    actor::Actor,
    family::is_host,
    report::Violation,
    site, within,
    world::{AccRec, Class, World},
};
use mk_plan::{EdgeId, Scope};
use std::collections::HashSet;

/// The earlier side of a pair.
pub(super) enum From {
    /// An access in an epoch.
    Access(AccRec, u32),
    /// The caller of a rank, before that rank's kernel of an epoch.
    Caller(Actor, u32, u32),
}

/// The later side of a pair.
pub(super) enum To {
    /// An access in an epoch.
    Access(AccRec, u32),
    /// The caller of a rank, after that rank's kernel of an epoch.
    Caller(Actor, u32, u32),
}

/// A post and the wait that sees it; both by epoch and index in its class.
#[derive(Clone, Copy)]
struct Hop {
    post: (u32, u32),
    wait: (u32, u32),
}

/// The violation for a pair that nothing orders sufficiently.
pub(super) fn violation(world: &World<'_>, from: &From, to: &To) -> Violation {
    let before = match from {
        From::Access(a, e) => site::actor(world, *e, a),
        From::Caller(actor, ..) => Box::new(actor.clone()),
    };
    let after = match to {
        To::Access(a, e) => site::actor(world, *e, a),
        To::Caller(actor, ..) => Box::new(actor.clone()),
    };
    let fault = path(world, from, to).and_then(|hops| fault(world, from, to, &hops));
    match fault {
        Some(Fault { edge, why, weak: true }) => {
            Violation::Insufficient { before, after, edge, why, likewise: Vec::new() }
        }
        Some(Fault { why, .. }) => {
            Violation::Race { before, after, missing: why, likewise: Vec::new() }
        }
        None => {
            let missing = missing(world, from, to);
            Violation::Race { before, after, missing, likewise: Vec::new() }
        }
    }
}

/// The shortest path, from the first post to the last wait.
fn path(world: &World<'_>, from: &From, to: &To) -> Option<Vec<Hop>> {
    let mut tasks = HashSet::new();
    let mut words = HashSet::new();
    // Kernels all of whose tasks are in the queue: rank and epoch.
    let mut kernels = HashSet::new();
    let mut hops: Vec<(Hop, Option<usize>)> = Vec::new();
    // Tasks that come before, with the last step that does, and the hop that leads on from them.
    let mut queue: Vec<(u32, u32, u32, Option<usize>)> = Vec::new();
    match to {
        To::Access(a, e) => queue.push((*e, a.task, a.step, None)),
        To::Caller(_, rank, e) => {
            let class = world.class(*e);
            queue.extend(class.ranks[*rank as usize].clone().map(|t| (*e, t, u32::MAX, None)));
        }
    }
    let floor = match from {
        From::Access(_, e) | From::Caller(_, _, e) => *e,
    };
    let mut head = 0;
    while let Some(&(e, t, step, next)) = queue.get(head) {
        head += 1;
        let class = world.class(e);
        if !tasks.insert((e, t)) {
            continue;
        }
        let task = &class.tasks[t as usize];
        let kernel = match from {
            From::Access(a, xe) => {
                let x = &world.class(*xe).tasks[a.task as usize];
                let gpu = !is_host(world.info(x.family).agent(a.agent));
                (gpu && e > *xe).then_some(x.rank)
            }
            From::Caller(_, rank, k) => (e >= *k).then_some(*rank),
        };
        if kernel == Some(task.rank) && next.is_some() {
            return Some(unwind(&hops, next));
        }
        if e > floor && e > 1 && kernels.insert((task.rank, e - 1)) {
            let before = world.class(e - 1).ranks[task.rank as usize].clone();
            queue.extend(before.map(|t| (e - 1, t, u32::MAX, next)));
        }
        for w in task.waits.clone() {
            let wait = &class.waits[w as usize];
            let lag = within::wait_line(world.plan, class, wait).lag;
            if wait.step > step || e <= lag || e - lag < floor {
                continue;
            }
            let at = e - lag;
            if !words.insert((at, wait.word)) {
                continue;
            }
            for p in world.class(at).posts_of(wait.word) {
                let post = &world.class(at).posts[*p as usize];
                hops.push((Hop { post: (at, *p), wait: (e, w) }, next));
                let id = Some(hops.len() - 1);
                if let From::Access(a, xe) = from
                    && (at, post.task) == (*xe, a.task)
                    && post.step >= a.step
                {
                    return Some(unwind(&hops, id));
                }
                queue.push((at, post.task, post.step, id));
            }
        }
    }
    None
}

fn unwind(hops: &[(Hop, Option<usize>)], mut at: Option<usize>) -> Vec<Hop> {
    let mut out = Vec::new();
    while let Some(i) = at {
        out.push(hops[i].0);
        at = hops[i].1;
    }
    out
}

struct Fault {
    edge: EdgeId,
    why: String,
    /// Whether the edge is too weak (rule 4), and not merely by the wrong agent (rule 1).
    weak: bool,
}

/// The first post, wait or scope on a path that does not suffice.
fn fault(world: &World<'_>, from: &From, to: &To, hops: &[Hop]) -> Option<Fault> {
    let plan = world.plan;
    let first = hops.first()?;
    if let From::Access(a, xe) = from
        && world.class(first.post.0).posts[first.post.1 as usize].task == a.task
        && first.post.0 == *xe
    {
        let class = world.class(*xe);
        let p = &class.posts[first.post.1 as usize];
        let post = within::post_line(plan, class, p);
        let task = &class.tasks[p.task as usize];
        let info = world.info(task.family);
        let by = info.agent(a.agent);
        let (pos, live) = (within::post_pos(p.step), within::live(world, a));
        let r = within::reach(world, class, task, p.agent, pos, live);
        if !r.after_access(a) {
            let why = format!(
                "{} is posted by `{}`, whom no edge of the leaf tells that `{by}` is through: post it `by {by}`",
                post.edge, post.by
            );
            return Some(Fault { edge: post.edge, why, weak: false });
        }
        let to_gpu = !matches!(to, To::Access(y, ye) if within::by_card(world, *ye, y));
        let (data, word) = (world.boxes.all[a.boxed as usize].rank, world.words.name(p.word).0);
        if let Err(why) = within::completes(plan, a, by, post, to_gpu, data, word) {
            return Some(Fault { edge: post.edge, why, weak: true });
        }
    }
    for (i, hop) in hops.iter().enumerate() {
        if let Some(f) = scopes(world, hop).or_else(|| handed_on(world, hop, hops.get(i + 1))) {
            return Some(f);
        }
    }
    let To::Access(y, ye) = to else { return None };
    let last = hops.last()?;
    let class = world.class(last.wait.0);
    let w = &class.waits[last.wait.1 as usize];
    // A kernel's end may lie between the two.
    if last.wait.0 != *ye || w.task != y.task {
        return None;
    }
    let wait = within::wait_line(plan, class, w);
    let task = &class.tasks[w.task as usize];
    let info = world.info(task.family);
    let r = within::before(world, class, task, y);
    let by = info.agent(y.agent);
    if !r.after_wait(w) {
        let why = format!(
            "{} is a wait by `{}`, which holds `{by}` back by no edge of the leaf: wait `by {by}`",
            wait.edge, wait.by
        );
        return Some(Fault { edge: wait.edge, why, weak: false });
    }
    let posts = within::word_posts(world, world.class(last.post.0), w.word)?;
    let why = within::wait_protects(wait, &posts, y.proxy).err()?;
    Some(Fault { edge: wait.edge, why, weak: true })
}

fn scopes(world: &World<'_>, hop: &Hop) -> Option<Fault> {
    let (pc, wc) = (world.class(hop.post.0), world.class(hop.wait.0));
    let (p, w) = (&pc.posts[hop.post.1 as usize], &wc.waits[hop.wait.1 as usize]);
    let (post, wait) = (within::post_line(world.plan, pc, p), within::wait_line(world.plan, wc, w));
    let posts = within::word_posts(world, pc, p.word)?;
    let rank = wc.tasks[w.task as usize].rank;
    if !within::needs_sys(&posts, wait, rank) {
        return None;
    }
    let between = if posts.rank != rank {
        format!("poster (rank {}) and waiter (rank {rank}) are on different GPUs", posts.rank)
    } else {
        "a host posts or waits".to_string()
    };
    let (edge, what) = match (post.scope, wait.scope) {
        (Scope::Gpu, _) => (post.edge, "releases"),
        (_, Scope::Gpu) => (wait.edge, "acquires"),
        _ => return None,
    };
    let why = format!("{edge} {what} at scope gpu, and {between}: use scope sys");
    Some(Fault { edge, why, weak: true })
}

/// Whether the task between two hops posts after what it waited for.
fn handed_on(world: &World<'_>, hop: &Hop, next: Option<&Hop>) -> Option<Fault> {
    let next = next.filter(|next| next.post.0 == hop.wait.0)?;
    let class = world.class(hop.wait.0);
    let (w, p) = (&class.waits[hop.wait.1 as usize], &class.posts[next.post.1 as usize]);
    let task = &class.tasks[p.task as usize];
    if w.task != p.task {
        return None;
    }
    let (pos, whole) = (within::post_pos(p.step), world.whole(hop.wait.0));
    let r = within::reach(world, class, task, p.agent, pos, whole);
    if r.after_wait(w) {
        return None;
    }
    let (wait, post) =
        (within::wait_line(world.plan, class, w), within::post_line(world.plan, class, p));
    let why = format!(
        "{} is posted by `{}`, which need not have seen {}: that is a wait by `{}`, and nothing passes between them",
        post.edge, post.by, wait.edge, wait.by
    );
    Some(Fault { edge: post.edge, why, weak: false })
}

fn edges(list: impl Iterator<Item = (EdgeId, String)>) -> String {
    let mut seen: Vec<(EdgeId, String)> = Vec::new();
    for (edge, word) in list {
        if seen.iter().all(|s| s.0 != edge) {
            seen.push((edge, word));
        }
    }
    let names: Vec<_> = seen.iter().map(|(e, w)| format!("{e} ({w})")).collect();
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

fn waits_before(world: &World<'_>, class: &Class, a: &AccRec) -> String {
    let task = &class.tasks[a.task as usize];
    let waits = class.waits[task.waits.start as usize..task.waits.end as usize].iter();
    let before = waits.filter(|w| w.step <= a.step);
    edges(before.map(|w| (within::wait_line(world.plan, class, w).edge, site::word(world, w.word))))
}

fn posts_after(world: &World<'_>, class: &Class, a: &AccRec) -> String {
    let task = &class.tasks[a.task as usize];
    let posts = class.posts[task.posts.start as usize..task.posts.end as usize].iter();
    let after = posts.filter(|p| p.step >= a.step);
    edges(after.map(|p| (within::post_line(world.plan, class, p).edge, site::word(world, p.word))))
}

/// Says what the two sides wait for and post, and which edge would order them.
fn missing(world: &World<'_>, from: &From, to: &To) -> String {
    let name = |a: &AccRec, e: u32| {
        let class = world.class(e);
        let task = &class.tasks[a.task as usize];
        (task.family, world.info(task.family).agent(a.agent), task.rank)
    };
    match (from, to) {
        (From::Access(x, xe), To::Access(y, ye)) => {
            let ((fx, ax, rx), (fy, ay, _)) = (name(x, *xe), name(y, *ye));
            let waits = waits_before(world, world.class(*ye), y);
            let posts = posts_after(world, world.class(*xe), x);
            let hint = if xe < ye && !is_host(ax) {
                format!(
                    "add a wait by `{ay}` of {fy} until rank {rx} has entered a later epoch than {xe}, or for a post \
                     that {fx} makes after this access"
                )
            } else if is_host(ax) {
                format!(
                    "a kernel's end does not wait for the network: add a wait in {fy} for a post that {fx} makes by \
                     `{ax}` when it is through"
                )
            } else {
                format!(
                    "add a wait by `{ay}` of {fy} for a post that {fx} makes after `{ax}` is through"
                )
            };
            format!(
                "before the later access, {fy} waits for {waits}; after the earlier one, {fx} posts {posts}; {hint}"
            )
        }
        (From::Caller(_, rank, e), To::Access(y, ye)) => {
            let (fy, ay, _) = name(y, *ye);
            let waits = waits_before(world, world.class(*ye), y);
            format!(
                "before it, {fy} waits for {waits}; add a wait by `{ay}` until rank {rank} has entered epoch {e}"
            )
        }
        (From::Access(x, xe), To::Caller(_, rank, e)) => {
            let (fx, ax, _) = name(x, *xe);
            let posts = posts_after(world, world.class(*xe), x);
            format!(
                "after it, {fx} posts {posts}; the kernel of rank {rank} must not end in epoch {e} before `{ax}` of \
                 {fx} is through: let it wait for a post to rank {rank}"
            )
        }
        (From::Caller(..), To::Caller(..)) => String::new(),
    }
}
