//! Reads of memory that nobody wrote in their epoch and version, and outputs that nobody writes.

use super::unroll::{Touch, Unrolled};
use mk_codegen::plan::{Mode, Space, TableSource};
use std::collections::HashMap;

pub type Dims = Vec<(i64, i64)>;

/// The part that two boxes share.
pub fn common(a: &[(i64, i64)], b: &[(i64, i64)]) -> Option<Dims> {
    let both = a.iter().zip(b).map(|(x, y)| {
        let (from, to) = (x.0.max(y.0), (x.0 + x.1).min(y.0 + y.1));
        (to > from).then_some((from, to - from))
    });
    both.collect()
}

/// A part of `whole` that no box covers.
fn missing(whole: &Dims, boxes: &[&Dims]) -> Option<Dims> {
    let mut rest = vec![whole.clone()];
    for b in boxes {
        let mut next = Vec::new();
        for r in rest {
            let Some(c) = common(&r, b) else {
                next.push(r);
                continue;
            };
            // What is left of `r` around `c`, dimension by dimension.
            let mut inner = r.clone();
            for d in 0..r.len() {
                let (from, to) = (inner[d].0, inner[d].0 + inner[d].1);
                for (lo, hi) in [(from, c[d].0), (c[d].0 + c[d].1, to)] {
                    if hi > lo {
                        let mut piece = inner.clone();
                        piece[d] = (lo, hi - lo);
                        next.push(piece);
                    }
                }
                inner[d] = c[d];
            }
        }
        rest = next;
    }
    rest.into_iter().next()
}

/// The first read of something unwritten, or output that is never written.
pub fn uncovered(u: &Unrolled<'_>) -> Option<String> {
    let mut writes: HashMap<(i64, usize, u32), Vec<&Touch>> = HashMap::new();
    let key = |epoch, t: &Touch| {
        use mk_codegen::plan::Entity;
        (epoch, t.rank, t.buffer.index() as u32)
    };
    for t in &u.tasks {
        for x in t.touches.iter().filter(|x| x.mode != Mode::Read) {
            writes.entry(key(t.epoch, x)).or_default().push(x);
        }
    }
    for t in &u.tasks {
        for x in t.touches.iter().filter(|x| x.mode != Mode::Write) {
            if u.plan.buffers[x.buffer].space == Space::In {
                continue;
            }
            let good = |w: &&&Touch| match x.mode {
                Mode::Accumulate => w.mode == Mode::Write && w.version < x.version,
                _ => w.version == x.version,
            };
            let near = writes.get(&key(t.epoch, x)).map_or(&[][..], Vec::as_slice);
            let boxes: Vec<_> = near.iter().filter(good).map(|w| &w.dims).collect();
            if let Some(part) = missing(&x.dims, &boxes) {
                let read = u.touch_name(t, x);
                return Some(format!("{read}: {part:?} has no value of its epoch and version"));
            }
        }
    }
    outputs(u, &writes)
}

/// How much of an output is written is for run-time tables to say, where there are any.
fn outputs(u: &Unrolled<'_>, writes: &HashMap<(i64, usize, u32), Vec<&Touch>>) -> Option<String> {
    use mk_codegen::plan::{Entity, Points, TableSet};
    if u.plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. })) {
        return None;
    }
    let set = TableSet::new(u.plan, |_, _| Vec::new());
    let points = Points::new(u.plan, &set);
    for (id, b) in u.plan.buffers.iter().filter(|b| b.1.space == Space::Out) {
        for rank in 0..u.ranks {
            let shape = points.shape(id, rank).ok()?;
            let whole: Dims = shape.iter().map(|n| (0, *n)).collect();
            if shape.iter().any(|n| *n < 1) {
                continue;
            }
            for epoch in 1..=u.epochs {
                let near = writes.get(&(epoch, rank, id.index() as u32));
                let boxes: Vec<_> = near.into_iter().flatten().map(|w| &w.dims).collect();
                if let Some(part) = missing(&whole, &boxes) {
                    return Some(format!("nobody writes {part:?} of {:?} @ {rank}", b.name));
                }
            }
        }
    }
    None
}
