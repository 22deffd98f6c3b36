//! Happens-before inside one task, and what order one signal edge establishes.
//!
//! Assumes leaf contracts that list agents in the order in which data flows. Computes, for an agent at a position of a
//! task, the last position of each other agent that happens before it ([`Reach`]), and the predicates of
//! rule 4: which completion suffices for an access ([`completes`]), and which scopes a signal edge needs.
//!
//! An internal edge `from -> to` carries order at a step only if something passes along it there: `from` has a
//! non-empty access at that step, or `from` merely passes things on (it has an incoming edge, or no operands) and `to`
//! has one. Then the waits and accesses of `from` up to that step happen before the writes and posts of `to` at that
//! step (its posts at `start` only if it has an access there), and before everything of `to` at later steps: an agent
//! may read or post at `start` before it waits at an internal edge. The command of a `nic_send` passes at
//! `start`, its immediate at `end`, with or without data; until then the host does nothing.
//!
//! With a run-time dimension an access exists for some values only. Queries are then about a set of values: an edge
//! carries order if something passes along it for every value of the set.
//!
//! A task reads tables (`tab`) at one point of its start: after the waits there whose words need no table, and before
//! the waits whose words do, which therefore order no table read.
//!
//! The proxy fence of an internal edge covers shared memory only (`fence.proxy.async.shared::cta`). Accesses of a plan
//! are to global memory; only a wait `for async` has a fence for those.

use super::{
    family::{FamInfo, Flow, Late, is_host},
    spans::LiveId,
    world::{AccRec, Class, PostRec, TaskRec, WaitRec, World},
};
use mk_plan::{Agent, Completion, Mode, NicOrdering, Operand, Plan, Post, Proxy, Scope, Wait};

/// Most agents of a leaf.
pub(super) const AGENTS: usize = Agent::ALL.len();
/// Phases of a step: waits, accesses, posts.
pub(super) const PHASES: i64 = 3;

/// A position in an agent's program.
pub(super) fn wait_pos(step: u32) -> i64 {
    i64::from(step) * PHASES
}
pub(super) fn access_pos(step: u32) -> i64 {
    i64::from(step) * PHASES + 1
}
pub(super) fn post_pos(step: u32) -> i64 {
    i64::from(step) * PHASES + 2
}

/// The last position of each agent that happens before a point, -1 if none does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    agent: u8,
    bounds: [i64; AGENTS],
    /// Waits of the agent that come after this point, although waits come first in a step.
    behind: Late,
}

impl Reach {
    /// Whether an access happens before the point, as far as program order and internal edges tell.
    pub fn after_access(&self, a: &AccRec) -> bool {
        let bound = self.bounds[usize::from(a.agent)];
        if a.agent == self.agent { access_pos(a.step) < bound } else { access_pos(a.step) <= bound }
    }
    /// Whether a wait happens before the point.
    pub fn after_wait(&self, w: &WaitRec) -> bool {
        let late = w.agent == self.agent && self.behind.has(w.line);
        !late && wait_pos(w.step) <= self.bounds[usize::from(w.agent)]
    }
}

/// The values of the run-time dimension for which an access exists.
pub(super) fn live(world: &World<'_>, a: &AccRec) -> LiveId {
    world.boxes.all[a.boxed as usize].live
}

/// What happens before an access, for all values for which it exists.
pub(super) fn before(world: &World<'_>, class: &Class, task: &TaskRec, a: &AccRec) -> Reach {
    // A read does not depend on data from other agents of the task at that step; a write does.
    let early = a.mode == Mode::Read;
    let pos = access_pos(a.step);
    let pos_before = if early { wait_pos(a.step) } else { pos };
    let mut r = reach(world, class, task, a.agent, pos_before, live(world, a));
    r.bounds[usize::from(a.agent)] = pos;
    if is_tab(world, task, a) {
        r.behind = world.info(task.family).late;
    }
    r
}

/// Whether an access reads a table.
pub(super) fn is_tab(world: &World<'_>, task: &TaskRec, a: &AccRec) -> bool {
    world.plan.families[task.family].accesses[a.line as usize].operand == Operand::Tab
}

/// What happens before agent number `agent` of a task reaches `pos`, for each value of `during`.
pub(super) fn reach(
    world: &World<'_>,
    class: &Class,
    task: &TaskRec,
    agent: u8,
    pos: i64,
    during: LiveId,
) -> Reach {
    let info = world.info(task.family);
    let mut r = Reach { agent, bounds: [-1; AGENTS], behind: Late::default() };
    r.bounds[usize::from(agent)] = pos;
    for to in (0..=agent).rev() {
        let t = usize::from(to);
        for flow in info.flows.iter().filter(|f| f.to == to && f.from < to) {
            let from = usize::from(flow.from);
            if let Some(p) = passed(world, class, task, *flow, r.bounds[t], during) {
                r.bounds[from] = r.bounds[from].max(p);
            }
        }
    }
    r
}

/// The position of `flow.from` that is known at position `pos` of `flow.to`.
fn passed(
    world: &World<'_>,
    class: &Class,
    task: &TaskRec,
    flow: Flow,
    pos: i64,
    during: LiveId,
) -> Option<i64> {
    let info = world.info(task.family);
    let sure = |a: &AccRec| world.boxes.covers(a.boxed, during);
    if pos < 0 {
        return None;
    }
    // A host acts on a task only after its command, or the other host's immediate, has arrived.
    match info.agent(flow.from) {
        Agent::Issuer => return Some(access_pos(0)),
        Agent::Sender => return Some(access_pos(task.steps - 1)),
        _ => {}
    }
    let (step, phase) = (pos / PHASES, pos % PHASES);
    // A post at `start` may precede all accesses of the task, unless there is an access at `start`.
    let idle =
        || !accesses(class, task).iter().any(|a| a.agent == flow.to && a.step == 0 && sure(a));
    let upto = if phase == 0 || (pos == post_pos(0) && idle()) { step - 1 } else { step };
    if upto < 0 {
        return None;
    }
    last_pass(class, info, task, flow, upto as u32, sure).map(access_pos)
}

fn accesses<'c>(class: &'c Class, task: &TaskRec) -> &'c [AccRec] {
    &class.accs[task.accs.start as usize..task.accs.end as usize]
}

/// The last step up to `upto` at which something passes along an edge. `counts` selects accesses.
fn last_pass(
    class: &Class,
    info: &FamInfo,
    task: &TaskRec,
    flow: Flow,
    upto: u32,
    counts: impl Fn(&AccRec) -> bool,
) -> Option<u32> {
    let accs = accesses(class, task);
    let end = accs.partition_point(|a| a.step <= upto);
    let relay = info.relay[usize::from(flow.from)];
    let passes = |a: &&AccRec| a.agent == flow.from || (relay && a.agent == flow.to);
    accs[..end].iter().rev().filter(passes).find(|a| counts(a)).map(|a| a.step)
}

/// The properties of all posts to one word that decide which order an edge establishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordPosts {
    /// The rank whose tasks post.
    pub rank: u32,
    /// The least scope of a post.
    pub scope: Scope,
    /// Whether a host posts.
    pub host: bool,
    /// Whether every post happens after the start of its task's kernel: not so for copy engines.
    pub anchored: bool,
}

/// The posts to each word in each class of epochs. A wait also synchronises with posts of earlier epochs, so the
/// weakest class decides.
pub(super) fn all_posts(world: &World<'_>) -> Vec<Vec<Option<WordPosts>>> {
    let words = 0..world.words.total as u32;
    let of = |class| words.clone().map(|w| word_posts(world, class, w)).collect();
    let mut all: Vec<Vec<Option<WordPosts>>> = world.classes.iter().map(of).collect();
    for word in words.clone().map(|w| w as usize) {
        let each = all.iter().filter_map(|class| class[word]);
        let weakest = each.reduce(|a, b| WordPosts {
            rank: a.rank,
            scope: a.scope.min(b.scope),
            host: a.host || b.host,
            anchored: a.anchored && b.anchored,
        });
        all.iter_mut()
            .filter(|class| class[word].is_some())
            .for_each(|class| class[word] = weakest);
    }
    all
}

/// Summarises the posts to a word, or `None` if there are none.
pub(super) fn word_posts(world: &World<'_>, class: &Class, word: u32) -> Option<WordPosts> {
    let mut out: Option<WordPosts> = None;
    for p in class.posts_of(word) {
        let p = &class.posts[*p as usize];
        let post = post_line(world.plan, class, p);
        let w = out.get_or_insert(WordPosts {
            rank: world.poster(class, p),
            scope: post.scope,
            host: false,
            anchored: true,
        });
        w.scope = w.scope.min(post.scope);
        w.host |= is_host(post.by);
        w.anchored &= post.by != Agent::Engine;
    }
    out
}

pub(super) fn post_line<'p>(plan: &'p Plan, class: &Class, p: &PostRec) -> &'p Post {
    &plan.families[class.tasks[p.task as usize].family].posts[p.line as usize]
}

pub(super) fn wait_line<'p>(plan: &'p Plan, class: &Class, w: &WaitRec) -> &'p Wait {
    &plan.families[class.tasks[w.task as usize].family].waits[w.line as usize]
}

/// Whether the edge from the posts of a word to a wait on `rank` leaves the GPU.
pub(super) fn needs_sys(posts: &WordPosts, wait: &Wait, rank: u32) -> bool {
    posts.rank != rank || posts.host || is_host(wait.by)
}

/// Why a wait does not protect an access of its task through the proxy `y`, if it does not.
pub(super) fn wait_protects(wait: &Wait, posts: &WordPosts, y: Proxy) -> Result<(), String> {
    match y {
        Proxy::Async if wait.proxy != Proxy::Async => Err(format!(
            "it is a wait for {} accesses, and the later access goes through the async proxy: wait `for async`, so \
             that a proxy fence follows",
            wait.proxy.name()
        )),
        Proxy::Generic if wait.proxy == Proxy::Host => {
            Err("it is a wait for host accesses, and the later access is a generic one: wait `for generic`".into())
        }
        Proxy::Host if wait.scope != Scope::Sys || posts.scope != Scope::Sys => {
            Err("the later access is made by a device outside the GPU: wait and posts need scope sys".into())
        }
        _ => Ok(()),
    }
}

/// Whether a network card makes the access: it sees data delivered to its rank even before a flush. A copy engine is
/// part of the GPU.
pub(super) fn by_card(world: &World<'_>, epoch: u32, y: &AccRec) -> bool {
    let family = world.class(epoch).tasks[y.task as usize].family;
    y.proxy == Proxy::Host && world.info(family).agent(y.agent) != Agent::Engine
}

/// Checks that a post after the access `x` (by agent `by`) of the same task follows its completion; the error says why
/// not. `to_gpu`: a GPU makes the later access. `data` is the rank of the memory, `word` that of the signal word.
pub(super) fn completes(
    plan: &Plan,
    x: &AccRec,
    by: Agent,
    post: &Post,
    to_gpu: bool,
    data: usize,
    word: usize,
) -> Result<(), String> {
    use Completion::*;
    let in_order = plan.nic.is_some_and(|n| n.ordering == NicOrdering::InOrder);
    let behind = post.by == Agent::Sender && in_order && data == word && post.after >= NicPosted;
    let after = post.after.name();
    match (x.proxy, x.mode) {
        (Proxy::Generic, _) => Ok(()),
        (Proxy::Async, Mode::Read) if post.by == by => Err(format!(
            "bulk reads of `{by}` are complete only for agents whom an edge of the leaf tells; `{by}` itself has \
             merely issued them"
        )),
        (Proxy::Async, Mode::Read) => Ok(()),
        (Proxy::Async, _) if post.after == GlobalWriteDone => Ok(()),
        (Proxy::Async, _) => Err(format!(
            "after {after} a bulk write need not be in global memory yet: post after global_write_done"
        )),
        (Proxy::Host, _) if by == Agent::Engine => Ok(()),
        (Proxy::Host, Mode::Read) if post.after >= NicDelivered => Ok(()),
        (Proxy::Host, Mode::Read) => Err(format!(
            "after {after} the network card may still read the source: post after nic_delivered"
        )),
        (Proxy::Host, _) if behind => Ok(()),
        (Proxy::Host, _) if !to_gpu && post.after >= NicDelivered => Ok(()),
        (Proxy::Host, _)
            if post.after == NicFlushed && (in_order || post.by == Agent::Receiver) =>
        {
            Ok(())
        }
        (Proxy::Host, _) if in_order => Err(format!(
            "after {after} the data need not be visible to the GPU: post to its own rank behind it, or after \
             nic_flushed"
        )),
        (Proxy::Host, _) => Err(format!(
            "an unordered network brings data and signal in any order: post `by receiver after nic_flushed`, not `by \
             {} after {after}`",
            post.by
        )),
    }
}
