//! Rule 1: every two overlapping accesses of which one writes are ordered by their stamps.
//!
//! The stamp of an access is (epoch, version). The caller's writes of inputs come before every version of an epoch, and
//! its reads of outputs after. What has the smaller stamp must happen before what has the greater one; of equal stamps,
//! the write before the read. Accumulations of equal stamp commute. Two writes of equal stamp are a violation of rule
//! 5.
//!
//! Pairs are formed between boxes, so that tasks with equal regions are one. Between epochs, all pairs of two boxes are
//! settled at once where the later access knows that the earlier one's rank has started a later kernel. Only accesses
//! of the last `period` epochs are taken as the later ones: the others are the same, shifted. Older epochs than those
//! unrolled need no check: there the earlier access is followed, on its rank, by its own repetition one period later.
//!
//! Within a task the leaf's contract orders accesses; reading, then writing the same elements by ordinary loads and
//! stores of one agent is order enough.

mod boundaries;
mod common;
mod groups;
mod search;

use super::{
    actor::Actor,
    boxes::BoxId,
    explain::{From, To},
    paths::{Goal, Paths, SigKey},
    region::{intersect, text},
    report::{Failure, Violation},
    site, within,
    world::{AccRec, World},
};
use crate::hash::FastSet;
use boundaries::Boundaries;
use mk_plan::{Mode, Proxy, Space};

pub(super) use groups::{Group, Groups, groups};
pub(super) use search::Races;

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

/// Checks all pairs.
pub(super) fn check<'p, 'w, 'a>(
    paths: &'p mut Paths<'w, 'a>,
    groups: &'p [Groups],
    overlaps: &[Vec<BoxId>],
) -> Races<'p, 'w, 'a> {
    let mut r = Races::new(paths, groups);
    let mut boundaries = Boundaries::default();
    let world = r.paths.world;
    // Boxes of each class: launches with other tables have others.
    let there = |of: &Groups| {
        let some = of.iter().filter(|(_, group)| !group.accs.is_empty());
        some.map(|(id, _)| id).collect::<Vec<_>>()
    };
    let there: Vec<_> = groups.iter().map(there).collect();
    let last = world.epochs();
    for later in last + 1 - world.window.later.min(last)..=last {
        if world.window.near == 0 {
            r.callers(later);
            r.strangers(later);
        }
        // The nearest pairs first: they make the plainest counterexamples.
        let (near, back) = (later - world.window.near, later.saturating_sub(world.window.back));
        for earlier in (back.max(1)..=near).rev() {
            if earlier < later && world.boxes.spans.is_some() {
                boundaries.launches(&mut r, earlier, later);
                if r.is_over() {
                    return r;
                }
                continue;
            }
            for &i in &there[world.class_of[earlier as usize - 1]] {
                for &j in &overlaps[i as usize] {
                    if earlier < later {
                        boundaries.between(&mut r, i, earlier, j, later);
                    } else if j >= i {
                        r.within(i, j, later);
                    }
                    if r.is_over() {
                        return r;
                    }
                }
            }
        }
    }
    r
}

impl Races<'_, '_, '_> {
    /// Two overlapping boxes in one epoch.
    fn within(&mut self, i: BoxId, j: BoxId, e: u32) {
        let (gi, gj) = (self.group(e, i), self.group(e, j));
        if gi.writers == 0 && gj.writers == 0 {
            return;
        }
        let (xs, ys, wi) = (gi.accs, gj.accs, gi.writers);
        // Those that are looked at: no reader beside another.
        if !self.afford(wi * ys.len() + (xs.len() - wi) * (gj.writers + 1)) {
            return;
        }
        for (n, &x) in xs.iter().enumerate() {
            let rest = if i == j { &ys[n + 1..] } else { ys };
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
        // A template goes over a region piece by piece, in its own order: only what is the same piece at both ends is
        // ordered.
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
        let seen = self.seen_from(home, a.turn);
        if !self.ends_after(id, e, seen) {
            self.told.insert((line.0, line.1, u32::MAX, 0));
            self.suspects.push((a.boxed, a.boxed));
            self.tell(&From::Access(a, e), &To::Caller(caller, home, e));
        }
    }
}
