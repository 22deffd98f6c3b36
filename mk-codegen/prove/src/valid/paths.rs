//! Happens-before between tasks: kernel boundaries and paths of signals.
//!
//! Assumes that rule 3 holds (a wait means *all* posts to its word up to its epoch, and one rank posts them) and that
//! the abstract run of rule 2 has ended, which gives the order in which words became complete. No vector clock over
//! tasks is kept. Instead:
//!
//! - `K[node][rank]`, the newest epoch whose kernel on `rank` is known to have *started* before the node, so that all
//!   kernels before that one are complete there. Nodes are words (all their posts), kernel ends and accesses.
//! - for the pairs that kernel boundaries do not settle, a search backwards over (word, epoch) nodes, which folds all
//!   tasks that post to one word.
//!
//! Host agents are not covered by kernel ends: a NIC may still be reading when the kernel that fed it has exited.

use super::{
    family::is_host,
    within::{self, Reach, WordPosts},
    world::{AccRec, Class, WaitRec, World},
};
use crate::hash::FastMap;
use mk_plan::{Agent, EdgeId, Mode, Proxy, Scope, Wait};
use std::collections::BTreeSet;

/// A word that some wait has seen complete: `lag` epochs before the waiter's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Pred {
    pub word: u32,
    pub lag: u32,
    pub edge: EdgeId,
}

pub(super) type SigKey = u32;

/// What is known before an access: the words that it has seen complete. Of ranks that are folded, as rank 0's task has
/// it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Seen {
    pub rank: u32,
    /// Whether it comes after the start of the kernel.
    pub anchored: bool,
    pub preds: Vec<Pred>,
}

/// The same for all events of a class.
#[derive(Default)]
pub(super) struct ClassPaths {
    pub seen: Vec<Seen>,
    /// For each access.
    pub of_access: Vec<SigKey>,
    /// For each word that is looked at, over all its posts.
    pub of_word: Vec<Vec<Pred>>,
    /// Words of the same epoch that are complete only after each word.
    pub then: Vec<Vec<u32>>,
    /// For each rank that is looked at: everything that its kernel waits for.
    pub of_end: Vec<Vec<Pred>>,
    pub words: Vec<Option<WordPosts>>,
}

/// A node of the folded graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Node {
    /// All posts to a word up to an epoch.
    Word(u32, u32),
    /// The end of a kernel: rank, epoch.
    End(u32, u32),
}

/// What a search looks for.
#[derive(Clone, Debug, Default)]
pub(super) struct Goal {
    pub rank: u32,
    /// Nodes of earlier epochs cannot help.
    pub floor: u32,
    /// Words that the earlier access's task posts once it is complete, ascending.
    pub words: Vec<u32>,
    /// A node in this rank's kernel of this epoch, or a later one, comes after the access.
    pub kernel: Option<u32>,
    /// The end of this rank's kernel of this epoch, or a later one, comes after it.
    pub end: Option<u32>,
}

/// Happens-before of one unrolled plan.
pub(super) struct Paths<'w, 'a> {
    pub world: &'w World<'a>,
    pub classes: Vec<ClassPaths>,
    /// By epoch, then word, then rank.
    k_word: Vec<Vec<u8>>,
    /// By epoch, then rank of the kernel, then rank.
    k_end: Vec<Vec<u8>>,
    /// By epoch, then key; empty until asked for.
    k_seen: Vec<Vec<Box<[u8]>>>,
    /// Whether `K` may be used to prune: not if copy engines post outside of kernels.
    prune: bool,
    /// Nodes that searches have visited.
    pub visits: u64,
    /// Waits on the paths that proofs used.
    pub used: BTreeSet<EdgeId>,
    /// What was put in there last.
    last_used: Option<EdgeId>,
}

impl<'w, 'a> Paths<'w, 'a> {
    /// `order`: words in the order in which they became complete, with their epochs.
    pub fn new(world: &'w World<'a>, order: &[(u32, u32)]) -> Paths<'w, 'a> {
        let words = within::all_posts(world);
        let classes: Vec<_> = world
            .classes
            .iter()
            .zip(words)
            .enumerate()
            .map(|(i, (c, w))| class_paths(world, i, c, w))
            .collect();
        let (n, kernels) = (world.ranks, world.ranks_looked_at());
        let epochs = world.epochs() as usize;
        let prune =
            classes.iter().all(|c: &ClassPaths| c.words.iter().flatten().all(|w| w.anchored));
        let seen = |e: u32| {
            let class: &ClassPaths = &classes[world.class_of[e as usize - 1]];
            vec![Box::default(); class.seen.len()]
        };
        let k_seen = (1..=world.epochs()).map(seen).collect();
        let mut p = Paths {
            world,
            classes,
            k_word: vec![vec![0; world.words.total * n]; epochs],
            k_end: vec![vec![0; n * kernels]; epochs],
            k_seen,
            prune,
            visits: 0,
            used: BTreeSet::new(),
            last_used: None,
        };
        // Kernels of an epoch end, on every rank, before a word of the rank's next epoch is posted to: they are
        // computed when first needed.
        let mut ended = vec![0u32; kernels];
        for &(word, epoch) in order {
            let c = p.of(epoch);
            let Some(posts) = c.words[word as usize] else { continue };
            p.end_kernels(world.rotation.kernel(posts.rank).0 as usize, epoch - 1, &mut ended);
            let preds = p.of(epoch).of_word[word as usize].clone();
            let anchor = posts.anchored.then_some((posts.rank, epoch));
            let row = p.join(anchor, epoch, &preds);
            p.k_word[epoch as usize - 1][word as usize * n..(word as usize + 1) * n]
                .copy_from_slice(&row);
        }
        for rank in 0..kernels {
            p.end_kernels(rank, epochs as u32, &mut ended);
        }
        p
    }

    fn end_kernels(&mut self, rank: usize, upto: u32, ended: &mut [u32]) {
        while ended[rank] < upto {
            ended[rank] += 1;
            let epoch = ended[rank];
            let preds = self.of(epoch).of_end[rank].clone();
            let row = self.join(Some((rank as u32, epoch)), epoch, &preds);
            let n = self.world.ranks;
            self.k_end[epoch as usize - 1][rank * n..(rank + 1) * n].copy_from_slice(&row);
        }
    }

    /// Newest kernels known started after the given words, and after the start of kernel `anchor`.
    fn join(&self, anchor: Option<(u32, u32)>, epoch: u32, preds: &[Pred]) -> Vec<u8> {
        let (n, rotation) = (self.world.ranks, self.world.rotation);
        let mut row = vec![0u8; n];
        let mut add = |table: &[u8], at: usize, turn: u32| {
            let (end, begin) = row.split_at_mut(turn as usize);
            let of = table[at * n..(at + 1) * n].iter();
            begin.iter_mut().chain(end).zip(of).for_each(|(a, b)| *a = (*a).max(*b));
        };
        if let Some((rank, e)) = anchor
            && e > 1
        {
            let (kernel, turn) = rotation.kernel(rank);
            add(&self.k_end[e as usize - 2], kernel as usize, turn);
        }
        for p in preds.iter().filter(|p| epoch > p.lag) {
            let table = &self.k_word[(epoch - p.lag) as usize - 1];
            add(table, rotation.own(p.word) as usize, rotation.turn_of(p.word));
        }
        if let Some((rank, e)) = anchor {
            row[rank as usize] = row[rank as usize].max(e as u8);
        }
        row
    }

    fn of(&self, epoch: u32) -> &ClassPaths {
        &self.classes[self.world.class_of[epoch as usize - 1]]
    }

    /// What is known before an access of an epoch.
    pub fn seen(&self, epoch: u32, key: SigKey) -> &Seen {
        &self.of(epoch).seen[key as usize]
    }
    pub fn key(&self, epoch: u32, access: u32) -> SigKey {
        self.of(epoch).of_access[access as usize]
    }

    /// Newest kernel of `rank` known to have started before an access; of ranks that are folded, both as rank 0's task
    /// has them.
    pub fn started(&mut self, epoch: u32, key: SigKey, rank: u32) -> u32 {
        if let Some(known) = self.k_seen[epoch as usize - 1][key as usize].get(rank as usize) {
            return u32::from(*known);
        }
        let seen = self.seen(epoch, key);
        let anchor = seen.anchored.then_some((seen.rank, epoch));
        let row = self.join(anchor, epoch, &seen.preds);
        let known = u32::from(row[rank as usize]);
        self.k_seen[epoch as usize - 1][key as usize] = row.into();
        known
    }

    fn known(&self, node: Node, rank: u32) -> u32 {
        let (n, rotation) = (self.world.ranks, self.world.rotation);
        let (table, epoch, (row, turn)) = match node {
            Node::Word(w, e) => (&self.k_word, e, (rotation.own(w), rotation.turn_of(w))),
            Node::End(r, e) => (&self.k_end, e, rotation.kernel(r)),
        };
        let rank = rotation.rank(rank, rotation.back(turn));
        u32::from(table[epoch as usize - 1][row as usize * n + rank as usize])
    }

    /// All posts to a word.
    fn posts(&self, word: u32, epoch: u32) -> Option<WordPosts> {
        let rotation = self.world.rotation;
        let posts = self.of(epoch).words[rotation.own(word) as usize]?;
        Some(WordPosts { rank: rotation.rank(posts.rank, rotation.turn_of(word)), ..posts })
    }

    fn reached(&self, goal: &Goal, node: Node) -> bool {
        match node {
            Node::Word(w, e) => {
                let by_post = e >= goal.floor && goal.words.binary_search(&w).is_ok();
                by_post
                    || self.posts(w, e).is_some_and(|p| {
                        p.anchored && p.rank == goal.rank && goal.kernel.is_some_and(|k| e >= k)
                    })
            }
            Node::End(r, e) => r == goal.rank && goal.end.is_some_and(|k| e >= k),
        }
    }

    fn useful(&self, goal: &Goal, node: Node) -> bool {
        let (Node::Word(_, e) | Node::End(_, e)) = node;
        e >= goal.floor && (!self.prune || self.known(node, goal.rank) >= goal.floor)
    }

    /// Words with those that are complete only after them, as far as few are: a chain of signals is short from its
    /// beginning, and one of thousands from its end.
    pub fn follow(&self, epoch: u32, mut words: Vec<u32>) -> Vec<u32> {
        const FEW: usize = 64;
        let (then, rotation) = (&self.of(epoch).then, self.world.rotation);
        let mut next = 0;
        while let Some(&word) = words.get(next) {
            next += 1;
            for w in &then[rotation.own(word) as usize] {
                let w = rotation.word(*w, rotation.turn_of(word));
                if words.len() < FEW && !words.contains(&w) {
                    words.push(w);
                }
            }
        }
        words.sort_unstable();
        words
    }

    /// Nodes before an access.
    pub fn starts(&self, epoch: u32, key: SigKey) -> Vec<(Node, Option<EdgeId>)> {
        let seen = self.seen(epoch, key);
        successors(self.world, &seen.preds, epoch, seen.anchored.then_some(seen.rank), 0)
    }

    /// Forgets which waits were used, but for those that are given.
    pub fn use_only(&mut self, used: BTreeSet<EdgeId>) {
        (self.used, self.last_used) = (used, None);
    }

    /// Whether a kernel itself waits for one of some words: the short form of a search from its end.
    pub fn ends_after(&mut self, rank: u32, epoch: u32, words: &[u32]) -> bool {
        let rotation = self.world.rotation;
        let (kernel, turn) = rotation.kernel(rank);
        let list = &self.of(epoch).of_end[kernel as usize];
        let hit = words.iter().find_map(|w| {
            let w = rotation.word(*w, rotation.back(turn));
            let i = list.partition_point(|p| (p.word, p.lag) < (w, 0));
            list.get(i).filter(|p| p.word == w && p.lag == 0).map(|p| p.edge)
        });
        self.used.extend(hit);
        hit.is_some()
    }

    /// Whether an access itself waits for a word that is looked for: the short form of a search.
    pub fn awaited(&mut self, epoch: u32, key: SigKey, goal: &Goal) -> bool {
        let wanted = |p: &&Pred| {
            epoch >= goal.floor + p.lag
                && epoch > p.lag
                && goal.words.binary_search(&p.word).is_ok()
        };
        let hit = self.seen(epoch, key).preds.iter().find(wanted).map(|p| p.edge);
        if hit != self.last_used {
            self.used.extend(hit);
            self.last_used = hit;
        }
        hit.is_some()
    }

    /// Whether the goal happens before something that comes after all of `starts`; marks the waits on the path.
    pub fn search(&mut self, starts: Vec<(Node, Option<EdgeId>)>, goal: &Goal) -> bool {
        let mut from: FastMap<Node, (Option<Node>, Option<EdgeId>)> = FastMap::default();
        let mut queue: Vec<Node> = Vec::new();
        let (rotation, mut head) = (self.world.rotation, 0);
        let mut next: Vec<(Option<Node>, Node, Option<EdgeId>)> =
            starts.into_iter().map(|(n, e)| (None, n, e)).collect();
        loop {
            for (parent, node, edge) in next.drain(..) {
                if from.contains_key(&node) || !self.useful(goal, node) {
                    continue;
                }
                from.insert(node, (parent, edge));
                // The end of a kernel comes after thousands of words: first those that are looked for.
                let ends = |p: &mut Self| match node {
                    Node::End(r, e) => e >= goal.floor && p.ends_after(r, e, &goal.words),
                    Node::Word(..) => false,
                };
                if self.reached(goal, node) || ends(self) {
                    let mut at = Some(node);
                    while let Some(node) = at {
                        let (parent, edge) = from[&node];
                        self.used.extend(edge);
                        at = parent;
                    }
                    return true;
                }
                queue.push(node);
            }
            let Some(&node) = queue.get(head) else { return false };
            head += 1;
            self.visits += 1;
            let before = match node {
                Node::Word(w, e) => {
                    let anchor = self.posts(w, e).filter(|p| p.anchored).map(|p| p.rank);
                    let (own, turn) = (rotation.own(w), rotation.turn_of(w));
                    successors(self.world, &self.of(e).of_word[own as usize], e, anchor, turn)
                }
                Node::End(r, e) => {
                    let (kernel, turn) = rotation.kernel(r);
                    successors(self.world, &self.of(e).of_end[kernel as usize], e, Some(r), turn)
                }
            };
            next.extend(before.into_iter().map(|(n, edge)| (Some(node), n, edge)));
        }
    }
}

/// Words that are known complete, turned, and the end of the kernel before that of `anchor`.
fn successors(
    world: &World<'_>,
    preds: &[Pred],
    epoch: u32,
    anchor: Option<u32>,
    turn: u32,
) -> Vec<(Node, Option<EdgeId>)> {
    let words = preds.iter().filter(|p| epoch > p.lag);
    let node = |p: &Pred| Node::Word(world.rotation.word(p.word, turn), epoch - p.lag);
    let mut out: Vec<_> = words.map(|p| (node(p), Some(p.edge))).collect();
    if let Some(rank) = anchor
        && epoch > 1
    {
        out.push((Node::End(rank, epoch - 1), None));
    }
    out
}

fn class_paths(
    world: &World<'_>,
    id: usize,
    class: &Class,
    words: Vec<Option<WordPosts>>,
) -> ClassPaths {
    let of_end = vec![Vec::new(); world.ranks_looked_at()];
    let mut out = ClassPaths { words, of_end, ..Default::default() };
    let rotation = world.rotation;
    let mut ids: FastMap<Seen, SigKey> = FastMap::default();
    let mut of_word = vec![Vec::new(); world.words.total];
    for task in &class.tasks {
        let info = world.info(task.family);
        let waits = &class.waits[task.waits.start as usize..task.waits.end as usize];
        let line = |w| within::wait_line(world.plan, class, w);
        let edges: Vec<_> =
            waits.iter().map(|w| (w, line(w), edge(&out.words, w, line(w), task.rank))).collect();
        let pred = |(w, l, _): &(&_, &Wait, _)| {
            let w: &WaitRec = w;
            Pred { word: w.word, lag: l.lag, edge: l.edge }
        };
        // Many accesses of a step are alike in all that this looks at.
        let mut last = None;
        for a in &class.accs[task.accs.start as usize..task.accs.end as usize] {
            let like = (a.agent, a.step, a.mode == Mode::Read, a.proxy, within::live(world, a));
            let like = (like, within::is_tab(world, task, a));
            if let Some((as_before, key)) = last
                && as_before == like
            {
                out.of_access.push(key);
                continue;
            }
            let r = within::before(world, class, task, a);
            let good = edges
                .iter()
                .filter(|(w, l, posts)| posts.is_some_and(|p| protects(&r, w, l, &p, a.proxy)));
            let preds = distinct(good.map(pred).collect());
            let anchored = info.agent(a.agent) != Agent::Engine;
            let seen = Seen { rank: task.rank, anchored, preds };
            let next = ids.len() as SigKey;
            let key = ids.get(&seen).copied().unwrap_or_else(|| {
                out.seen.push(seen.clone());
                ids.insert(seen, next);
                next
            });
            out.of_access.push(key);
            last = Some((like, key));
        }
        for p in &class.posts[task.posts.start as usize..task.posts.end as usize] {
            let pos = within::post_pos(p.step);
            let r = within::reach(world, class, task, p.agent, pos, world.whole[id]);
            let good = edges.iter().filter(|(w, _, posts)| posts.is_some() && r.after_wait(w));
            // As the task has them whose post comes to the word that is looked at.
            let back = rotation.back(rotation.turn_of(p.word));
            let preds = good.map(pred).map(|p| Pred { word: rotation.word(p.word, back), ..p });
            of_word[rotation.own(p.word) as usize].extend(preds);
        }
        let gpu = edges.iter().filter(|(_, l, posts)| posts.is_some() && !is_host(l.by));
        out.of_end[task.rank as usize].extend(gpu.map(pred));
    }
    out.of_word = of_word.into_iter().map(distinct).collect();
    out.then = vec![Vec::new(); out.of_word.len()];
    for (word, preds) in (0..).zip(&out.of_word) {
        for p in preds.iter().filter(|p| p.lag == 0) {
            let back = rotation.back(rotation.turn_of(p.word));
            out.then[rotation.own(p.word) as usize].push(rotation.word(word, back));
        }
    }
    out.of_end = std::mem::take(&mut out.of_end).into_iter().map(distinct).collect();
    out
}

/// The posts that a wait joins, if its scopes suffice.
fn edge(words: &[Option<WordPosts>], w: &WaitRec, wait: &Wait, rank: u32) -> Option<WordPosts> {
    let posts = words[w.word as usize]?;
    let strong = wait.scope == Scope::Sys && posts.scope == Scope::Sys;
    (strong || !within::needs_sys(&posts, wait, rank)).then_some(posts)
}

fn protects(r: &Reach, w: &WaitRec, wait: &Wait, posts: &WordPosts, y: Proxy) -> bool {
    r.after_wait(w) && within::wait_protects(wait, posts, y).is_ok()
}

/// Sorted, one for each word and lag.
fn distinct(mut preds: Vec<Pred>) -> Vec<Pred> {
    preds.sort_unstable();
    preds.dedup_by_key(|p| (p.word, p.lag));
    preds
}

/// Words that the task of an access posts to once the access is complete.
pub(super) fn posts_after(world: &World<'_>, class: &Class, x: &AccRec, to_gpu: bool) -> Vec<u32> {
    let task = &class.tasks[x.task as usize];
    let info = world.info(task.family);
    // Whose memory it is, as the task has it.
    let home = world.boxes.all[x.boxed as usize].rank as u32;
    let data = world.rotation.rank(home, world.rotation.back(x.turn)) as usize;
    let live = within::live(world, x);
    let mut out = Vec::new();
    for p in &class.posts[task.posts.start as usize..task.posts.end as usize] {
        let post = within::post_line(world.plan, class, p);
        let r = within::reach(world, class, task, p.agent, within::post_pos(p.step), live);
        let to = world.words.name(p.word).0;
        if r.after_access(x)
            && within::completes(world.plan, x, info.agent(x.agent), post, to_gpu, data, to).is_ok()
        {
            out.push(p.word);
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}
