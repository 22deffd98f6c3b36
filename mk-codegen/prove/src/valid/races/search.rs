//! Pairs of accesses that a path of signals orders.
//!
//! A path begins at what the earlier access's task posts once the access is complete, its *goal*, and ends at what the
//! later one has seen complete, its *key*. Many accesses have the same goal, and many the same key: each two of these
//! are looked at once.

use super::groups::{Group, Groups};
use crate::hash::{FastMap, FastSet};
use crate::valid::{
    boxes::BoxId,
    explain::{self, From, To},
    family::is_host,
    limits::MAX_PAIRS,
    paths::{Goal, Paths, posts_after},
    report::{Failure, Violation},
    within,
    world::{AccRec, World},
};
use mk_plan::{BufId, Entity, Mode, Proxy};
use std::collections::BTreeSet;

/// Two access lines, each by family and line: one mistake is reported once for them.
pub(super) type Lines = (u32, u32, u32, u32);

/// What a run of the rule found.
pub(in crate::valid) struct Races<'p, 'w, 'a> {
    pub(super) paths: &'p mut Paths<'w, 'a>,
    pub(super) groups: &'p [Groups],
    pub violations: Vec<Violation>,
    /// The boxes of pairs that violate something.
    pub suspects: Vec<(BoxId, BoxId)>,
    pub pairs: u64,
    pub searched: u64,
    /// Buffers that other kernels may not write between launches; see `common.rs`.
    pub exclusive: BTreeSet<BufId>,
    work: u64,
    pub(super) exhausted: bool,
    pub(super) told: FastSet<Lines>,
    goals: Goals,
    /// Goals and keys, with the later epoch and the turn between them, of which a path is known.
    known: FastSet<Known>,
    /// The last one of them: pairs come box by box.
    last_known: Option<Known>,
}

/// A goal, a key, the later epoch, and a turn.
type Known = (GoalId, u32, u32, u32);
type GoalId = u32;

/// Most words that goals may take: they begin anew when there are more.
const MAX_GOAL_WORDS: usize = 1 << 22;
/// Of no access yet.
const UNKNOWN: GoalId = GoalId::MAX;

/// What searches for paths from accesses look for.
#[derive(Default)]
struct Goals {
    all: Vec<Goal>,
    ids: FastMap<(u32, u32, bool, Vec<u32>), GoalId>,
    /// By epoch, and whether a GPU makes the later access, for each access.
    of: FastMap<(u32, bool), Vec<GoalId>>,
    /// What the last access was that was asked for, as far as its goal follows from it.
    last: Option<(Like, GoalId)>,
    /// What `all` takes, in words.
    words: usize,
}

/// All of an access that its goal follows from.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Like {
    epoch: u32,
    to_gpu: bool,
    task: u32,
    agent: u8,
    step: u32,
    proxy: Proxy,
    mode: Mode,
    home: u32,
    live: crate::valid::spans::LiveId,
    turn: u32,
}

impl<'p, 'w, 'a> Races<'p, 'w, 'a> {
    pub(super) fn new(paths: &'p mut Paths<'w, 'a>, groups: &'p [Groups]) -> Self {
        Races {
            paths,
            groups,
            violations: Vec::new(),
            suspects: Vec::new(),
            pairs: 0,
            searched: 0,
            exclusive: BTreeSet::new(),
            work: 0,
            exhausted: false,
            told: FastSet::default(),
            goals: Goals::default(),
            known: FastSet::default(),
            last_known: None,
        }
    }

    /// Whether no more is looked at.
    pub(super) fn is_over(&self) -> bool {
        self.exhausted || self.violations.len() >= Failure::MAX
    }
}

impl<'p, 'a> Races<'p, '_, 'a> {
    pub(super) fn world(&self) -> &World<'a> {
        self.paths.world
    }
    pub(super) fn group(&self, epoch: u32, b: BoxId) -> Group<'p> {
        self.groups[self.paths.world.class_of[epoch as usize - 1]].get(b)
    }
    pub(super) fn acc(&self, epoch: u32, id: u32) -> AccRec {
        self.paths.world.class(epoch).accs[id as usize]
    }
    /// The rank that makes an access; of ranks that are folded, to memory of rank 0.
    pub(super) fn rank(&self, epoch: u32, a: &AccRec) -> u32 {
        let world = self.paths.world;
        world.rotation.rank(world.class(epoch).tasks[a.task as usize].rank, a.turn)
    }
    /// A rank, as the task of rank 0 has it that stands for the one that makes an access.
    pub(super) fn seen_from(&self, rank: u32, a_turn: u32) -> u32 {
        let rotation = self.paths.world.rotation;
        rotation.rank(rank, rotation.back(a_turn))
    }
    /// Family and line of an access.
    pub(super) fn line(&self, epoch: u32, a: &AccRec) -> (u32, u32) {
        let family = self.paths.world.class(epoch).tasks[a.task as usize].family;
        (family.index() as u32, a.line)
    }
    pub(super) fn lines(&self, xe: u32, x: &AccRec, ye: u32, y: &AccRec) -> Lines {
        let ((f, i), (g, j)) = (self.line(xe, x), self.line(ye, y));
        (f, i, g, j)
    }
    pub(super) fn host(&self, epoch: u32, a: &AccRec) -> bool {
        let world = self.world();
        let task = &world.class(epoch).tasks[a.task as usize];
        is_host(world.info(task.family).agent(a.agent))
    }

    /// Bounds the work: pairs and posts that are looked at one by one, and nodes that searches visit.
    pub(super) fn afford(&mut self, more: usize) -> bool {
        self.work = self.work.saturating_add(more as u64);
        let work = self.work.max(self.paths.visits);
        if work > MAX_PAIRS && !self.exhausted {
            self.exhausted = true;
            let what = "pairs of accesses that need a path".into();
            self.violations.push(Violation::Limit { what, limit: MAX_PAIRS });
        }
        !self.exhausted
    }

    /// Proves one pair of different tasks by a path, or reports it.
    pub(super) fn ordered(&mut self, x: u32, xe: u32, y: u32, ye: u32) {
        let (a, b) = (self.acc(xe, x), self.acc(ye, y));
        let key = self.paths.key(ye, y);
        self.searched += 1;
        let to_gpu = !within::by_card(self.paths.world, ye, &b);
        let Some(id) = self.goal(xe, x, &a, to_gpu) else { return };
        // From the task that stands for that of `x`, to where that of `y` has it.
        let apart = self.seen_from(a.turn, b.turn);
        let pair = (id, key, ye, apart);
        if self.last_known == Some(pair) || self.known.contains(&pair) {
            self.last_known = Some(pair);
            return;
        }
        if !self.told.is_empty() && self.told.contains(&self.lines(xe, &a, ye, &b)) {
            return;
        }
        if self.found(id, xe, key, ye, apart) {
            self.known.insert(pair);
            self.last_known = Some(pair);
        } else {
            self.told.insert(self.lines(xe, &a, ye, &b));
            self.suspects.push((a.boxed, b.boxed));
            self.tell(&From::Access(a, xe), &To::Access(b, ye));
        }
    }

    /// Whether there is a path.
    fn found(&mut self, id: GoalId, xe: u32, key: u32, ye: u32, apart: u32) -> bool {
        let (goal, mixed) = (&self.goals.all[id as usize], self.paths.world.mixed);
        let turned = if (xe < ye && mixed) || apart != 0 {
            let mut goal = goal.clone();
            if xe < ye && mixed {
                // The path must lie in later epochs than the access: in the place of its epoch may be many of other
                // kinds.
                goal.floor = xe + 1;
            }
            if apart != 0 {
                let rotation = self.paths.world.rotation;
                goal.words.iter_mut().for_each(|w| *w = rotation.word(*w, apart));
                goal.words.sort_unstable();
                goal.rank = rotation.rank(goal.rank, apart);
            }
            Some(goal)
        } else {
            None
        };
        let goal = turned.as_ref().unwrap_or(goal);
        self.paths.awaited(ye, key, goal) || {
            let starts = self.paths.starts(ye, key);
            self.paths.search(starts, goal)
        }
    }

    /// Whether an access is over when the kernel of an epoch ends on a rank.
    pub(super) fn ends_after(&mut self, x: u32, e: u32, rank: u32) -> bool {
        use crate::valid::paths::Node;
        self.searched += 1;
        let a = self.acc(e, x);
        let Some(id) = self.goal(e, x, &a, true) else { return true };
        let goal = &self.goals.all[id as usize];
        self.paths.ends_after(rank, e, &goal.words)
            || self.paths.search(vec![(Node::End(rank, e), None)], goal)
    }

    /// Explains what is not ordered. Of ranks that are folded, it is told of all of them; see `rotation.rs`.
    pub(super) fn tell(&mut self, from: &From, to: &To) {
        if self.world().rotation.is_folded() {
            self.exhausted = true;
            let what = "ranks that are folded".into();
            self.violations.push(Violation::Limit { what, limit: self.world().rotation.fold() });
        } else {
            self.violations.push(explain::violation(self.paths.world, from, to));
        }
    }

    /// What a search for a path from an access looks for. `None` if that is more than can be afforded.
    fn goal(&mut self, xe: u32, x: u32, a: &AccRec, to_gpu: bool) -> Option<GoalId> {
        let world = self.paths.world;
        let of = self.goals.of.entry((xe, to_gpu));
        let of = of.or_insert_with(|| vec![UNKNOWN; world.class(xe).accs.len()]);
        match of[x as usize] {
            UNKNOWN => {}
            id => return Some(id),
        }
        let (home, live) = (world.boxes.all[a.boxed as usize].rank as u32, within::live(world, a));
        let like = Like {
            epoch: xe,
            to_gpu,
            task: a.task,
            agent: a.agent,
            step: a.step,
            proxy: a.proxy,
            mode: a.mode,
            home,
            live,
            turn: a.turn,
        };
        let id = match self.goals.last {
            Some((last, id)) if last == like => id,
            _ => self.new_goal(xe, a, to_gpu)?,
        };
        self.goals.last = Some((like, id));
        if let Some(of) = self.goals.of.get_mut(&(xe, to_gpu)) {
            of[x as usize] = id;
        }
        Some(id)
    }

    /// Looks at every post of the access's task.
    fn new_goal(&mut self, xe: u32, a: &AccRec, to_gpu: bool) -> Option<GoalId> {
        let (world, gpu) = (self.paths.world, !self.host(xe, a));
        let class = world.class(xe);
        let task = &class.tasks[a.task as usize];
        if !self.afford(task.posts.len()) {
            return None;
        }
        let words = self.paths.follow(xe, posts_after(world, class, a, to_gpu));
        let key = (xe, task.rank, gpu, words);
        if let Some(id) = self.goals.ids.get(&key) {
            return Some(*id);
        }
        // One without words takes room, too.
        let words = key.3.len() + 32;
        self.goals.words += words;
        if self.goals.words > MAX_GOAL_WORDS {
            self.goals = Goals { words, ..Goals::default() };
            let of = vec![UNKNOWN; class.accs.len()];
            self.goals.of.insert((xe, to_gpu), of);
            (self.known, self.last_known) = (FastSet::default(), None);
        }
        let id = self.goals.all.len() as GoalId;
        self.goals.all.push(Goal {
            rank: task.rank,
            floor: xe,
            words: key.3.clone(),
            kernel: gpu.then_some(xe + 1),
            end: gpu.then_some(xe),
        });
        self.goals.ids.insert(key, id);
        Some(id)
    }
}
