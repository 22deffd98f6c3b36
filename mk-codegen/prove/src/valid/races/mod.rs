//! Rule 1: every two overlapping accesses of which one writes are ordered by their stamps.
//!
//! The stamp of an access is (epoch, version). The caller's writes of inputs come before every version of an epoch, and
//! its reads of outputs after. What has the smaller stamp must happen before what has the greater one; of equal stamps,
//! the write before the read. Accumulations of equal stamp commute. Two writes of equal stamp are a violation of rule 5.
//!
//! Pairs are formed between boxes, so that tasks with equal regions are one. Between epochs, all pairs of two boxes are
//! settled at once where the later access knows that the earlier one's rank has started a later kernel. Only accesses
//! of the last `period` epochs are taken as the later ones: the others are the same, shifted. Older epochs than those
//! unrolled need no check: there the earlier access is followed, on its rank, by its own repetition one period later.
//!
//! Within a task the leaf's contract orders accesses; reading, then writing the same elements by ordinary loads and
//! stores of one agent is order enough.

use super::{
    actor::Actor,
    boxes::BoxId,
    explain::{self, From, To},
    family::is_host,
    hash::{FastMap, FastSet},
    limits::MAX_PAIRS,
    paths::{Goal, Node, Paths, SigKey, posts_after},
    region::{intersect, text},
    report::{Failure, Violation},
    site, within,
    world::{AccRec, Class, World},
};
use mk_plan::{Mode, Proxy, Space};
use std::rc::Rc;

/// Accesses of one box in one class, writers first.
pub(super) struct Group {
    pub accs: Vec<u32>,
    pub writers: usize,
}

/// Accesses by class and box.
pub(super) fn groups(world: &World<'_>) -> Vec<Vec<Group>> {
    let one = |class: &Class| {
        let mut n = vec![0u32; world.boxes.all.len()];
        class.accs.iter().for_each(|a| n[a.boxed as usize] += 1);
        let room = |n: &u32| Group { accs: Vec::with_capacity(*n as usize), writers: 0 };
        let mut out: Vec<Group> = n.iter().map(room).collect();
        for pass in [true, false] {
            for (i, a) in class.accs.iter().enumerate() {
                if (a.mode != Mode::Read) == pass {
                    let g = &mut out[a.boxed as usize];
                    g.accs.push(i as u32);
                    g.writers += usize::from(pass);
                }
            }
        }
        out
    };
    world.classes.iter().map(one).collect()
}

/// Two access lines, each by family and line: one mistake is reported once for them.
type Lines = (u32, u32, u32, u32);

/// Two overlapping accesses that both write, of one stamp, unless both accumulate.
pub(super) fn twice(world: &World<'_>, e: u32, a: &AccRec, b: &AccRec) -> Option<Violation> {
    let commute = a.mode == Mode::Accumulate && b.mode == Mode::Accumulate;
    if a.version != b.version || commute {
        return None;
    }
    let dims = |x: &AccRec| &world.boxes.all[x.boxed as usize].dims;
    let common = intersect(dims(a), dims(b)).map_or_else(String::new, |d| text(&d));
    Some(Violation::WrittenTwice {
        first: site::actor(world, e, a),
        second: site::actor(world, e, b),
        common,
    })
}

/// What a run of the rule found.
pub(super) struct Races<'p, 'w, 'a> {
    paths: &'p mut Paths<'w, 'a>,
    groups: &'p [Vec<Group>],
    pub violations: Vec<Violation>,
    /// The boxes of pairs that violate something.
    pub suspects: Vec<(BoxId, BoxId)>,
    pub pairs: u64,
    pub searched: u64,
    work: u64,
    exhausted: bool,
    /// Pairs that are ordered.
    known: FastSet<(u32, u32, SigKey, u32, u32)>,
    told: FastSet<Lines>,
    /// Lines for which the waits between epochs have been marked as used.
    marked: FastSet<Lines>,
    /// The last ones of them: pairs come box by box, and many are of the same lines.
    last_marked: Option<Lines>,
    /// What a search for a path from an access looks for: by epoch, access, and whether a GPU makes the later one.
    goals: FastMap<GoalKey, Rc<Goal>>,
    /// The last one of them.
    last_goal: Option<(GoalKey, Rc<Goal>)>,
    /// What `goals` take, in words.
    goal_words: usize,
}

/// Epoch, access, and whether a GPU makes the later one.
type GoalKey = (u32, u32, bool);

/// Later accesses, and ranks (of hosts, or not) whose earlier accesses are not known to come before them.
struct Left {
    ys: Vec<u32>,
    ranks: Vec<(u32, bool)>,
}

/// Most words that goals may take: they begin anew when there are more.
const MAX_GOAL_WORDS: usize = 1 << 22;

/// Checks all pairs.
pub(super) fn check<'p, 'w, 'a>(
    paths: &'p mut Paths<'w, 'a>,
    groups: &'p [Vec<Group>],
    overlaps: &[Vec<BoxId>],
) -> Races<'p, 'w, 'a> {
    let mut r = Races {
        paths,
        groups,
        violations: Vec::new(),
        suspects: Vec::new(),
        pairs: 0,
        searched: 0,
        work: 0,
        exhausted: false,
        known: FastSet::default(),
        told: FastSet::default(),
        marked: FastSet::default(),
        last_marked: None,
        goals: FastMap::default(),
        last_goal: None,
        goal_words: 0,
    };
    let world = r.paths.world;
    // Boxes of each class: launches with other tables have others.
    let there = |of: &Vec<Group>| {
        let some = |i: &BoxId| !of[*i as usize].accs.is_empty();
        (0..of.len() as BoxId).filter(some).collect::<Vec<_>>()
    };
    let there: Vec<_> = groups.iter().map(there).collect();
    let last = world.epochs();
    for later in last + 1 - world.window.later.min(last)..=last {
        r.callers(later);
        // The nearest pairs first: they make the plainest counterexamples.
        for earlier in (later.saturating_sub(world.window.back).max(1)..=later).rev() {
            if earlier < later && world.boxes.spans.is_some() {
                r.launches(earlier, later);
                if r.exhausted || r.violations.len() >= Failure::MAX {
                    return r;
                }
                continue;
            }
            for &i in &there[world.class_of[earlier as usize - 1]] {
                for &j in &overlaps[i as usize] {
                    if earlier < later {
                        r.between(i, earlier, j, later);
                    } else if j >= i {
                        r.within(i, j, later);
                    }
                    if r.exhausted || r.violations.len() >= Failure::MAX {
                        return r;
                    }
                }
            }
        }
    }
    r
}

impl<'p, 'a> Races<'p, '_, 'a> {
    fn world(&self) -> &World<'a> {
        self.paths.world
    }
    fn group(&self, epoch: u32, b: BoxId) -> &'p Group {
        &self.groups[self.paths.world.class_of[epoch as usize - 1]][b as usize]
    }
    fn acc(&self, epoch: u32, id: u32) -> AccRec {
        self.paths.world.class(epoch).accs[id as usize]
    }
    /// The rank that makes an access; of ranks that are folded, to memory of rank 0.
    fn rank(&self, epoch: u32, a: &AccRec) -> u32 {
        let world = self.paths.world;
        world.rotation.rank(world.class(epoch).tasks[a.task as usize].rank, a.turn)
    }
    /// A rank, as the task of rank 0 has it that stands for the one that makes an access.
    fn seen_from(&self, rank: u32, a_turn: u32) -> u32 {
        let rotation = self.paths.world.rotation;
        rotation.rank(rank, rotation.back(a_turn))
    }
    fn lines(&self, xe: u32, x: &AccRec, ye: u32, y: &AccRec) -> Lines {
        use mk_plan::Entity;
        let family =
            |e, a: &AccRec| self.world().class(e).tasks[a.task as usize].family.index() as u32;
        (family(xe, x), x.line, family(ye, y), y.line)
    }
    fn host(&self, epoch: u32, a: &AccRec) -> bool {
        let world = self.world();
        let task = &world.class(epoch).tasks[a.task as usize];
        is_host(world.info(task.family).agent(a.agent))
    }

    /// Box `i` in an earlier epoch against box `j` in a later one.
    fn between(&mut self, i: BoxId, xe: u32, j: BoxId, ye: u32) {
        let (gx, gy) = (self.group(xe, i), self.group(ye, j));
        if (gx.writers == 0 && gy.writers == 0) || gx.accs.is_empty() || gy.accs.is_empty() {
            return;
        }
        let (xs, ys) = (&gx.accs, &gy.accs);
        let (xw, yw) = (gx.writers, gy.writers);
        for (xs, ys) in [(&xs[..xw], &ys[..]), (&xs[xw..], &ys[..yw])] {
            self.pairs += xs.len() as u64 * ys.len() as u64;
            if !self.settled(xs, xe, ys, ye) {
                self.settle(xs, xe, ys, ye);
            }
        }
    }

    /// Whether all of few pairs are settled by kernel boundaries, as [`Self::settle`] finds out for many.
    fn settled(&mut self, xs: &[u32], xe: u32, ys: &[u32], ye: u32) -> bool {
        const FEW: usize = 64;
        if xs.len() * ys.len() > FEW {
            return false;
        }
        for &y in ys {
            let (key, turn) = (self.paths.key(ye, y), self.acc(ye, y).turn);
            for &x in xs {
                let a = self.acc(xe, x);
                let rank = self.seen_from(self.rank(xe, &a), turn);
                if self.host(xe, &a) || self.paths.started(ye, key, rank) <= xe {
                    return false;
                }
            }
        }
        for &y in ys {
            xs.iter().for_each(|x| self.mark(*x, xe, y, ye));
        }
        true
    }

    /// All pairs of an earlier and a later epoch, with any values of the run-time dimension: of accesses to the same memory.
    fn launches(&mut self, xe: u32, ye: u32) {
        let world = self.world();
        for memory in world.boxes.memories() {
            let accs = |r: &Self, e: u32, writers: Option<bool>| -> Vec<u32> {
                let groups = memory.iter().map(|b| r.group(e, *b));
                let part = |g: &Group| match writers {
                    None => g.accs.clone(),
                    Some(true) => g.accs[..g.writers].to_vec(),
                    Some(false) => g.accs[g.writers..].to_vec(),
                };
                groups.flat_map(part).collect()
            };
            for (xs, ys) in [(Some(true), None), (Some(false), Some(true))] {
                let writers = xs == Some(true);
                let (xs, ys) = (accs(self, xe, xs), accs(self, ye, ys));
                self.pairs += xs.len() as u64 * ys.len() as u64;
                let left = self.unsettled(&xs, xe, &ys, ye);
                self.one_by_one(&memory, xe, writers, ye, &left);
                if self.exhausted || self.violations.len() >= Failure::MAX {
                    return;
                }
            }
        }
    }

    /// Accesses of one memory and their ranks, of those that kernel boundaries do not settle: all that have anything in common, for
    /// whichever values of the run-time dimension. Boxes are compared by their hulls.
    fn one_by_one(&mut self, memory: &[BoxId], xe: u32, writers: bool, ye: u32, left: &[Left]) {
        if left.is_empty() {
            return;
        }
        let world = self.paths.world;
        let mut near = FastMap::default();
        if world.boxes.hulls(memory, &mut near, MAX_PAIRS).is_none() {
            self.afford(MAX_PAIRS as usize + 1);
            return;
        }
        for Left { ys, ranks } in left {
            for &y in ys {
                let boxed = self.acc(ye, y).boxed;
                for &b in near.get(&boxed).map_or(&[][..], Vec::as_slice) {
                    let group = self.group(xe, b);
                    let xs = match writers {
                        true => &group.accs[..group.writers],
                        false => &group.accs[group.writers..],
                    };
                    if !self.afford(xs.len()) {
                        return;
                    }
                    for &x in xs {
                        let a = self.acc(xe, x);
                        if ranks.contains(&(self.rank(xe, &a), self.host(xe, &a))) {
                            self.ordered(x, xe, y, ye);
                        }
                    }
                }
            }
        }
    }

    /// Every one of `xs` before every one of `ys`, an epoch or more later.
    fn settle(&mut self, xs: &[u32], xe: u32, ys: &[u32], ye: u32) {
        for Left { ys, ranks } in self.unsettled(xs, xe, ys, ye) {
            if !self.afford(xs.len() * ys.len()) {
                return;
            }
            for &x in xs {
                let a = self.acc(xe, x);
                if ranks.contains(&(self.rank(xe, &a), self.host(xe, &a))) {
                    ys.iter().for_each(|y| self.ordered(x, xe, *y, ye));
                }
            }
        }
    }

    /// Those of `ys`, and ranks of `xs`, that are not known to be ordered by the boundaries of kernels.
    fn unsettled(&mut self, xs: &[u32], xe: u32, ys: &[u32], ye: u32) -> Vec<Left> {
        // Each with its first access.
        let mut ranks: Vec<(u32, bool, u32)> = Vec::new();
        for &x in xs {
            let a = self.acc(xe, x);
            let key = (self.rank(xe, &a), self.host(xe, &a));
            if !ranks.iter().any(|r| (r.0, r.1) == key) {
                ranks.push((key.0, key.1, x));
            }
        }
        let mut keys: Vec<((SigKey, u32), Vec<u32>)> = Vec::new();
        let mut place: FastMap<(SigKey, u32), usize> = FastMap::default();
        for &y in ys {
            let key = (self.paths.key(ye, y), self.acc(ye, y).turn);
            let i = *place.entry(key).or_insert(keys.len());
            match keys.get_mut(i) {
                Some(k) => k.1.push(y),
                None => keys.push((key, vec![y])),
            }
        }
        let mut left = Vec::new();
        for ((key, turn), ys) in keys {
            let mut open = Vec::new();
            for (rank, host, x) in &ranks {
                let seen = self.seen_from(*rank, turn);
                if !host && self.paths.started(ye, key, seen) > xe {
                    self.mark(*x, xe, ys[0], ye);
                } else {
                    open.push((*rank, *host));
                }
            }
            if !open.is_empty() {
                left.push(Left { ys, ranks: open });
            }
        }
        left
    }

    /// Bounds the work: pairs and posts that are looked at one by one, and nodes that searches visit.
    fn afford(&mut self, more: usize) -> bool {
        self.work = self.work.saturating_add(more as u64);
        let work = self.work.max(self.paths.visits);
        if work > MAX_PAIRS && !self.exhausted {
            self.exhausted = true;
            let what = "pairs of accesses that need a path".into();
            self.violations.push(Violation::Limit { what, limit: MAX_PAIRS });
        }
        !self.exhausted
    }

    /// Marks the waits that make a kernel known to be complete, once for each pair of lines.
    fn mark(&mut self, x: u32, xe: u32, y: u32, ye: u32) {
        let (ax, ay) = (self.acc(xe, x), self.acc(ye, y));
        let (rx, ry) = (self.rank(xe, &ax), self.rank(ye, &ay));
        if rx == ry || ye - xe > self.paths.world.period {
            return;
        }
        let lines = self.lines(xe, &ax, ye, &ay);
        if self.last_marked == Some(lines) {
            return;
        }
        self.last_marked = Some(lines);
        if self.marked.insert(lines) {
            let goal = Goal {
                rank: self.seen_from(rx, ay.turn),
                floor: xe + 1,
                words: vec![],
                kernel: Some(xe + 1),
                end: Some(xe + 1),
            };
            let starts = self.paths.starts(ye, self.paths.key(ye, y));
            self.paths.search(starts, &goal);
        }
    }

    /// Two overlapping boxes in one epoch.
    fn within(&mut self, i: BoxId, j: BoxId, e: u32) {
        let (gi, gj) = (self.group(e, i), self.group(e, j));
        if gi.writers == 0 && gj.writers == 0 {
            return;
        }
        let (xs, ys, wi) = (&gi.accs, &gj.accs, gi.writers);
        // Those that are looked at: no reader beside another.
        if !self.afford(wi * ys.len() + (xs.len() - wi) * (gj.writers + 1)) {
            return;
        }
        for (n, &x) in xs.iter().enumerate() {
            let rest = if i == j { &ys[n + 1..] } else { &ys[..] };
            for &y in rest {
                let (a, b) = (self.acc(e, x), self.acc(e, y));
                if n >= wi && b.mode == Mode::Read {
                    break;
                }
                self.pairs += 1;
                let (write_a, write_b) = (a.mode != Mode::Read, b.mode != Mode::Read);
                match a.version.cmp(&b.version) {
                    std::cmp::Ordering::Less => self.same_epoch(x, y, e),
                    std::cmp::Ordering::Greater => self.same_epoch(y, x, e),
                    _ if a.mode == Mode::Accumulate && b.mode == Mode::Accumulate => {}
                    _ if write_a && write_b => self.twice(&a, &b, e),
                    _ if write_a => self.same_epoch(x, y, e),
                    _ => self.same_epoch(y, x, e),
                }
            }
        }
    }

    fn twice(&mut self, a: &AccRec, b: &AccRec, e: u32) {
        if !self.told.insert(self.lines(e, a, e, b)) {
            return;
        }
        self.suspects.push((a.boxed, b.boxed));
        self.violations.extend(twice(self.paths.world, e, a, b));
    }

    fn same_epoch(&mut self, x: u32, y: u32, e: u32) {
        let (a, b) = (self.acc(e, x), self.acc(e, y));
        if (a.task, a.turn) != (b.task, b.turn) {
            return self.ordered(x, e, y, e);
        }
        if !self.in_task(&a, &b, e) && self.told.insert(self.lines(e, &a, e, &b)) {
            let world = self.paths.world;
            self.violations.push(Violation::Race {
                before: site::actor(world, e, &a),
                after: site::actor(world, e, &b),
                missing: "both are in one task, and no edge of its leaf joins them".into(),
                likewise: Vec::new(),
            });
        }
    }

    /// Whether the contract orders two accesses of one task.
    fn in_task(&self, a: &AccRec, b: &AccRec, e: u32) -> bool {
        let class = self.world().class(e);
        let task = &class.tasks[a.task as usize];
        let generic = a.proxy == Proxy::Generic && b.proxy == Proxy::Generic;
        if a.agent == b.agent && a.step == b.step {
            return generic && a.mode == Mode::Read && a.boxed == b.boxed;
        }
        // A template goes over a region piece by piece, in its own order: only what is the same piece at both ends is ordered.
        if a.boxed != b.boxed {
            return false;
        }
        let r = within::before(self.world(), class, task, b);
        if a.agent == b.agent {
            return generic && r.after_access(a);
        }
        let crosses = a.proxy == Proxy::Generic && b.proxy == Proxy::Async;
        !crosses && r.after_access(a)
    }

    /// Proves one pair of different tasks by a path, or reports it.
    fn ordered(&mut self, x: u32, xe: u32, y: u32, ye: u32) {
        let (a, b) = (self.acc(xe, x), self.acc(ye, y));
        let key = self.paths.key(ye, y);
        // From the task that stands for that of `x`, to where that of `y` has it.
        let apart = self.seen_from(a.turn, b.turn);
        let pair = (x, xe, key, ye, apart);
        // Taken for ordered, until it turns out not to be: one look for each pair.
        if !self.known.insert(pair) {
            return;
        }
        if !self.told.is_empty() && self.told.contains(&self.lines(xe, &a, ye, &b)) {
            self.known.remove(&pair);
            return;
        }
        self.searched += 1;
        let to_gpu = !within::by_card(self.paths.world, ye, &b);
        let Some(mut goal) = self.goal(xe, x, to_gpu) else { return };
        if xe < ye && self.world().mixed {
            // The path must lie in later epochs than the access: in the place of its epoch may be many of other kinds.
            goal = Rc::new(Goal { floor: xe + 1, ..(*goal).clone() });
        }
        if apart != 0 {
            let rotation = self.world().rotation;
            let mut words: Vec<_> = goal.words.iter().map(|w| rotation.word(*w, apart)).collect();
            words.sort_unstable();
            goal = Rc::new(Goal { rank: rotation.rank(goal.rank, apart), words, ..*goal });
        }
        let found = self.paths.awaited(ye, key, &goal) || {
            let starts = self.paths.starts(ye, key);
            self.paths.search(starts, &goal)
        };
        if !found {
            self.known.remove(&pair);
            self.told.insert(self.lines(xe, &a, ye, &b));
            self.suspects.push((a.boxed, b.boxed));
            self.tell(&From::Access(a, xe), &To::Access(b, ye));
        }
    }

    /// Explains what is not ordered. Of ranks that are folded, it is told of all of them; see `rotation.rs`.
    fn tell(&mut self, from: &From, to: &To) {
        if self.world().rotation.is_folded() {
            self.exhausted = true;
            let what = "ranks that are folded".into();
            self.violations.push(Violation::Limit { what, limit: self.world().rotation.fold() });
        } else {
            self.violations.push(explain::violation(self.paths.world, from, to));
        }
    }

    /// Looks at every post of the access's task, once for all pairs of the access. `None` if that is more than can be afforded.
    fn goal(&mut self, xe: u32, id: u32, to_gpu: bool) -> Option<Rc<Goal>> {
        let key = (xe, id, to_gpu);
        if let Some((last, goal)) = &self.last_goal
            && *last == key
        {
            return Some(goal.clone());
        }
        if let Some(goal) = self.goals.get(&key) {
            self.last_goal = Some((key, goal.clone()));
            return Some(goal.clone());
        }
        let x = self.acc(xe, id);
        let (world, gpu) = (self.paths.world, !self.host(xe, &x));
        let class = world.class(xe);
        if !self.afford(class.tasks[x.task as usize].posts.len()) {
            return None;
        }
        let goal = Rc::new(Goal {
            rank: class.tasks[x.task as usize].rank,
            floor: xe,
            words: self.paths.follow(xe, posts_after(world, class, &x, to_gpu)),
            kernel: gpu.then_some(xe + 1),
            end: gpu.then_some(xe),
        });
        // One without words takes room, too.
        let words = goal.words.len() + 32;
        self.goal_words += words;
        if self.goal_words > MAX_GOAL_WORDS {
            self.goals.clear();
            self.goal_words = words;
        }
        self.goals.insert(key, goal.clone());
        self.last_goal = Some((key, goal.clone()));
        Some(goal)
    }

    /// The caller's tensors: written before the kernel of an epoch begins on their rank, read after it has ended.
    fn callers(&mut self, e: u32) {
        let world = self.paths.world;
        let mut entered: FastSet<(SigKey, u32)> = FastSet::default();
        for (id, a) in world.class(e).accs.iter().enumerate() {
            let boxed = &world.boxes.all[a.boxed as usize];
            let (home, space) = (boxed.rank as u32, world.plan.buffers[boxed.buffer].space);
            let exposed = match space {
                Space::In => true,
                Space::Out => a.mode != Mode::Read,
                _ => false,
            };
            if !exposed || self.violations.len() >= Failure::MAX {
                continue;
            }
            self.pairs += 2;
            let caller = |epoch: u32| Actor::Caller {
                rank: boxed.rank,
                epoch,
                writes: space == Space::In,
                buffer: boxed.buffer,
                name: world.plan.buffers[boxed.buffer].name.clone(),
            };
            let key = self.paths.key(e, id as u32);
            // As the access's task has it.
            let seen = self.seen_from(home, a.turn);
            if self.paths.started(e, key, seen) < e {
                let earlier = if space == Space::In { e } else { e - 1 };
                let line = self.lines(e, a, e, a);
                if self.told.insert((u32::MAX, 0, line.0, line.1)) {
                    self.suspects.push((a.boxed, a.boxed));
                    self.tell(&From::Caller(caller(earlier), home, e), &To::Access(*a, e));
                }
            } else if self.rank(e, a) != home && entered.insert((key, seen)) {
                let goal =
                    Goal { rank: seen, floor: e, words: vec![], kernel: Some(e), end: Some(e) };
                let starts = self.paths.starts(e, key);
                self.paths.search(starts, &goal);
            }
            self.before_end(id as u32, e, home, caller(if space == Space::In { e + 1 } else { e }));
        }
    }

    /// An access to a caller's tensor is over when the kernel of the tensor's rank ends.
    fn before_end(&mut self, id: u32, e: u32, home: u32, caller: Actor) {
        let a = self.acc(e, id);
        if self.rank(e, &a) == home && !self.host(e, &a) {
            return;
        }
        let line = self.lines(e, &a, e, &a);
        if self.told.contains(&(line.0, line.1, u32::MAX, 0)) {
            return;
        }
        self.searched += 1;
        let Some(goal) = self.goal(e, id, true) else { return };
        let seen = self.seen_from(home, a.turn);
        if !self.paths.ends_after(seen, e, &goal.words)
            && !self.paths.search(vec![(Node::End(seen, e), None)], &goal)
        {
            self.told.insert((line.0, line.1, u32::MAX, 0));
            self.suspects.push((a.boxed, a.boxed));
            self.tell(&From::Access(a, e), &To::Caller(caller, home, e));
        }
    }
}
