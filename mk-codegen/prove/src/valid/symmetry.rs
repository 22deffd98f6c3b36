//! Ranks folded by symmetry.
//!
//! Most plans look the same from every rank: turning all ranks by one place along an axis of their mesh takes each task
//! to the task at the same place in the next rank's list, each access, wait and post of it to one of that task, and so
//! the plan to itself. Then every two accesses, every word and every wait has an image in the memory of rank 0, and
//! what is shown of that one holds of all: tasks of rank 0 stand for those of all ranks, and memory and words are
//! looked at on rank 0 only.
//!
//! The symmetry is proved, not assumed. A rotation takes an element of a buffer to the element at the same place of the
//! next rank's buffer, or to the same place of the next of `n` equal blocks in some of its dimensions (slots by source
//! rank, shards of a whole), one for each place along an axis, or for each rank; a word of a signal likewise. Which
//! dimensions these are is guessed from some tasks ([`guess`]): any choice is a one-to-one map of memory and of words.
//! Then *every* task of every rank is unrolled and compared with rank 0's (`unroll.rs`): family, number of steps, and
//! as sets the lines, steps, regions and versions of its accesses, words and thresholds of its waits, and words and
//! amounts of its posts. Where a single one differs, the plan is not folded.
//!
//! An element or word *as rank 0 has it* is named in the frame of its own rank, turned back. An access of rank 0's task
//! to memory of rank `m` is, turned back by `m`, an access to memory of rank 0 by the task at the same place on rank
//! `-m`, its place along each axis taken modulo the axis' size: its *turn*.
//!
//! Deadlock: the system is monotone, so that one run decides (rule 2). In the run in which all ranks take the same step
//! at once, each state is symmetric, and rank 0's tells it: a post to a word of rank `m` comes with its image, a post
//! to rank 0's.
//!
//! What is not proved folded is looked at once more without: reports are of all ranks.

use super::{
    rotation::{Torus, Turned, Way},
    world::{Class, TaskRec, World},
};
use mk_plan::{Access, Each, Entity, Expr, Family, MAX_TASKS, PointError, Points, Task};
use std::ops::Range;

/// What is known of a dimension: whether tasks of two ranks agree with it staying, and the ways of turning by blocks
/// that they agree with.
struct Fits {
    stays: bool,
    turns: Vec<Way>,
}

/// A region or a word of a line in a task: whose it is, seen from the task, and its bases and lengths.
type Place = (usize, Vec<(i64, i64)>);

/// Guesses which dimensions turn by blocks, from some tasks of rank 0 and of the next one along each axis. `None` if
/// nothing will do, or ranks differ in extents.
pub(super) fn guess(
    world: &World<'_>,
    points: &Points<'_>,
    torus: Torus,
    fixed: impl Fn(&Expr) -> bool,
) -> Option<Turned> {
    let (plan, ranks) = (world.plan, world.ranks);
    let ways = torus.ways();
    let of = |n: &i64, fixed: bool| {
        let whole = |way: &&Way| fixed && *n > 0 && n % way.blocks() == 0;
        Fits { stays: true, turns: ways.iter().filter(whole).copied().collect() }
    };
    let mut buffers = Vec::new();
    for (id, b) in plan.buffers.iter() {
        let shapes = &world.shapes[id.index()];
        if shapes.iter().any(|s| *s != shapes[0]) {
            return None;
        }
        let fits = shapes[0].iter().zip(&b.shape).map(|(n, e)| of(n, fixed(e)));
        buffers.push(fits.collect::<Vec<_>>());
    }
    let mut signals = Vec::new();
    for id in plan.signals.keys() {
        let shape = world.words.shape(0, id);
        if (1..ranks).any(|r| world.words.shape(r, id) != shape) {
            return None;
        }
        signals.push(shape.iter().map(|n| of(n, true)).collect::<Vec<_>>());
    }
    for (id, x) in plan.families.iter() {
        // Of more, none are made.
        let few = |rank| points.count(id, rank, 1, MAX_TASKS).is_ok_and(|n| n <= MAX_TASKS);
        if !few(0) {
            return None;
        }
        let first = points.tasks(id, 0, 1).ok()?;
        let n = first.len();
        for step in torus.steps() {
            if !few(step as usize) {
                return None;
            }
            let next = points.tasks(id, step as usize, 1).ok()?;
            if next.len() != n {
                return None;
            }
            for at in [0, n / 3, n / 2, n - n / 3, n].map(|i| i.min(n.saturating_sub(1))) {
                let (Some(t), Some(u)) = (first.get(at), next.get(at)) else { continue };
                compare(points, x, [t, u], torus, &mut buffers, &mut signals).ok()?;
            }
        }
    }
    let choose = |all: Vec<Vec<Fits>>| -> Option<Vec<Vec<Option<Way>>>> {
        let one = |f: &Fits| match f.stays {
            true => Some(None),
            false => f.turns.first().map(|way| Some(*way)),
        };
        all.iter().map(|dims| dims.iter().map(one).collect()).collect()
    };
    Some(Turned { buffers: choose(buffers)?, signals: choose(signals)? })
}

/// Two tasks that should be each other's images.
fn compare(
    points: &Points<'_>,
    x: &Family,
    tasks: [&Task; 2],
    torus: Torus,
    buffers: &mut [Vec<Fits>],
    signals: &mut [Vec<Fits>],
) -> Result<(), PointError> {
    type Of<'f> = &'f mut dyn FnMut(&Task) -> Result<Option<Place>, PointError>;
    let places = |task: &Task, each: &Option<Each>, when: &Option<Expr>, of: Of<'_>| {
        let mut list = Vec::new();
        // The first iteration tells as much as the others.
        points.for_each(task, 0, each.as_ref(), when.as_ref(), |at| -> Result<(), PointError> {
            list.extend(of(at)?);
            Ok(())
        })?;
        Ok::<_, PointError>(list)
    };
    let from = |at: &Task, rank: usize| torus.turn_between(at.rank() as u32, rank as u32) as usize;
    let ranks = tasks.map(Task::rank);
    for a in &x.accesses {
        let of = |at: &Task| {
            let region = points.region(at, a as &Access)?;
            Ok(region.map(|r| (from(at, r.rank), r.dims)))
        };
        let extents = points.shape(a.buffer, 0)?;
        let lists = [
            places(tasks[0], &a.each, &a.when, &mut { of })?,
            places(tasks[1], &a.each, &a.when, &mut { of })?,
        ];
        fit(&lists, &extents, (torus, ranks), &mut buffers[a.buffer.index()]);
    }
    let word = |at: &Task, rank: usize, index: &[Expr]| {
        let index = index.iter().map(|e| Ok((points.eval(at, e)?, 1)));
        let index = index.collect::<Result<Vec<_>, PointError>>()?;
        Ok(Some((from(at, rank), index)))
    };
    for w in &x.waits {
        let of = |at: &Task| word(at, at.rank(), &w.index);
        let lists = [
            places(tasks[0], &w.each, &w.when, &mut { of })?,
            places(tasks[1], &w.each, &w.when, &mut { of })?,
        ];
        fit(
            &lists,
            &points.signal_shape(w.signal, 0)?,
            (torus, ranks),
            &mut signals[w.signal.index()],
        );
    }
    for p in &x.posts {
        let of = |at: &Task| word(at, points.rank(at, &p.rank)?, &p.index);
        let lists = [
            places(tasks[0], &p.each, &p.when, &mut { of })?,
            places(tasks[1], &p.each, &p.when, &mut { of })?,
        ];
        fit(
            &lists,
            &points.signal_shape(p.signal, 0)?,
            (torus, ranks),
            &mut signals[p.signal.index()],
        );
    }
    Ok(())
}

/// Rules out what two lists of places do not agree with.
fn fit(
    lists: &[Vec<Place>; 2],
    extents: &[i64],
    (torus, ranks): (Torus, [usize; 2]),
    fits: &mut [Fits],
) {
    for (d, fits) in fits.iter_mut().enumerate() {
        let of = |task: usize, turns: Option<Way>| {
            let one = |(home, dims): &Place| {
                let (base, len) = *dims.get(d)?;
                let rank = torus.add(ranks[task] as u32, *home as u32) as usize;
                let at = match turns {
                    Some(way) => way.turned_back(extents[d], (base, len), rank)?,
                    None => base,
                };
                Some((*home, at, len))
            };
            let mut all: Vec<_> = lists[task].iter().map(one).collect();
            all.sort_unstable();
            all
        };
        fits.stays &= of(0, None) == of(1, None);
        fits.turns.retain(|way| of(0, Some(*way)) == of(1, Some(*way)));
    }
}

/// What tells events of a task apart: they are compared as sets, so they have an order.
pub(super) fn sort(class: &mut Class, accs: usize, waits: usize, posts: usize) {
    class.accs[accs..].sort_unstable_by_key(|a| (a.step, a.line, a.boxed, a.turn, a.version));
    class.waits[waits..].sort_unstable_by_key(|w| (w.step, w.line, w.word, w.count));
    class.posts[posts..].sort_unstable_by_key(|p| (p.step, p.line, p.word, p.add));
}

/// Whether a task, of which the events begin at the given places, is the image of another one. Both are sorted.
pub(super) fn alike(
    class: &Class,
    of: &TaskRec,
    (family, steps): (mk_plan::FamId, u32),
    [accs, waits, posts]: [usize; 3],
) -> bool {
    let range = |r: &Range<u32>| r.start as usize..r.end as usize;
    of.family == family
        && of.steps == steps
        && same(&class.accs[range(&of.accs)], &class.accs[accs..], |a| {
            (a.step, a.line, a.boxed, a.turn, a.version)
        })
        && same(&class.waits[range(&of.waits)], &class.waits[waits..], |w| {
            (w.step, w.line, w.word, w.count)
        })
        && same(&class.posts[range(&of.posts)], &class.posts[posts..], |p| {
            (p.step, p.line, p.word, p.add)
        })
}

fn same<T, K: PartialEq>(a: &[T], b: &[T], key: impl Fn(&T) -> K) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| key(a) == key(b))
}
