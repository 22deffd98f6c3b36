//! One dimension of a region as a function of the run-time dimension: base and end, where it is not empty.
//!
//! Equal functions are one [`SpanId`], so that pairs of tiles are pairs of few functions.

pub(super) mod domain;
pub(super) mod function;

use domain::{Line, Places, Run};
use function::Piece;

use crate::hash::FastMap;

pub(in crate::valid) type SpanId = u32;
/// A set of places, interned. 0 is every place, and all there is without a run-time dimension.
pub(in crate::valid) type LiveId = u32;
pub(in crate::valid) const ALWAYS: LiveId = 0;

/// A part of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::valid) struct Part {
    pub at: Places,
    pub base: Line,
    pub end: Line,
}

/// Base and end wherever the end is above the base.
pub(in crate::valid) struct Span {
    pub parts: Vec<Part>,
    /// The least base and the greatest end.
    pub hull: (i64, i64),
    /// Whether base and end are the same for all values that are looked at.
    pub constant: bool,
    pub live: LiveId,
    /// Spans with the same one are as long everywhere.
    pub length: u32,
}

/// All spans and sets of places.
pub(in crate::valid) struct Spans {
    pub runs: Vec<Run>,
    pub all: Vec<Span>,
    ids: FastMap<Vec<Part>, SpanId>,
    lengths: FastMap<Vec<(Places, Line)>, u32>,
    pub lives: Vec<Vec<Places>>,
    live_ids: FastMap<Vec<Places>, LiveId>,
}

impl Spans {
    pub fn new(runs: Vec<Run>) -> Spans {
        Spans {
            runs,
            all: Vec::new(),
            ids: FastMap::default(),
            lengths: FastMap::default(),
            lives: vec![Vec::new()],
            live_ids: FastMap::default(),
        }
    }

    /// The span from `base`, as long as `len`, both in pieces over the same places; `None` if it is empty everywhere.
    pub fn intern(&mut self, base: &[Piece], len: &[Piece], whole: LiveId) -> Option<SpanId> {
        let mut parts: Vec<Part> = Vec::new();
        for (at, [base, len]) in refine([base, len]) {
            let Some((lo, hi)) = len.positive(at.lo, at.hi) else { continue };
            parts.push(Part { at: Places { run: at.run, lo, hi }, base, end: base.plus(len) });
        }
        if let Some(id) = self.ids.get(&parts) {
            return Some(*id);
        }
        let first = parts.first()?;
        let ends = |line: &Line, at: &Places| [line.at(at.lo), line.at(at.hi)];
        let low = parts.iter().flat_map(|p| ends(&p.base, &p.at)).min()?;
        let high = parts.iter().flat_map(|p| ends(&p.end, &p.at)).max()?;
        let fixed = |p: &Part| {
            p.base.slope == 0 && p.end.slope == 0 && (p.base, p.end) == (first.base, first.end)
        };
        let live = self.live(joined(parts.iter().map(|p| p.at)), whole);
        let constant = live == whole && parts.iter().all(fixed);
        let lengths: Vec<_> = parts.iter().map(|p| (p.at, p.end.minus(p.base))).collect();
        let next = self.lengths.len() as u32;
        let length = *self.lengths.entry(lengths).or_insert(next);
        let id = self.all.len() as SpanId;
        self.all.push(Span { parts: parts.clone(), hull: (low, high), constant, live, length });
        self.ids.insert(parts, id);
        Some(id)
    }

    /// The name of a set of places, `whole` being the name of all that are looked at.
    pub fn live(&mut self, places: Vec<Places>, whole: LiveId) -> LiveId {
        if whole != ALWAYS && self.lives[whole as usize] == places {
            return whole;
        }
        if let Some(id) = self.live_ids.get(&places) {
            return *id;
        }
        let id = self.lives.len() as LiveId;
        self.lives.push(places.clone());
        self.live_ids.insert(places, id);
        id
    }

    /// Places of both sets.
    pub fn both(&mut self, a: LiveId, b: LiveId, whole: LiveId) -> Option<LiveId> {
        if a == b || b == whole {
            return Some(a);
        }
        if a == whole {
            return Some(b);
        }
        let mut places = Vec::new();
        meet(&self.lives[a as usize], &self.lives[b as usize], |p, _, _| places.push(p));
        let places = joined(places.into_iter());
        (!places.is_empty()).then(|| self.live(places, whole))
    }

    /// Whether a set of places has all those of another one. Sets of neighbours are joined, so that one range has the
    /// other.
    pub fn covers(&self, set: LiveId, other: LiveId) -> bool {
        if set == other || set == ALWAYS {
            return true;
        }
        let (set, other) = (&self.lives[set as usize], &self.lives[other as usize]);
        other.iter().all(|o| {
            let i = set.partition_point(|s| (s.run, s.hi) < (o.run, o.lo));
            set.get(i).is_some_and(|s| s.run == o.run && s.lo <= o.lo && o.hi <= s.hi)
        })
    }

    /// The places at which two spans have an element in common.
    pub fn common(&self, a: SpanId, b: SpanId) -> Vec<Places> {
        let (a, b) = (&self.all[a as usize].parts, &self.all[b as usize].parts);
        let mut out = Vec::new();
        meet(a, b, |at, x, y| {
            let below = y.end.minus(x.base).positive(at.lo, at.hi);
            let Some((lo, hi)) = below else { return };
            if let Some((lo, hi)) = x.end.minus(y.base).positive(lo, hi) {
                out.push(Places { run: at.run, lo, hi });
            }
        });
        out
    }

    /// The places at which two boxes, given by a span in each dimension, have an element in common. More than one
    /// varying dimension may have it at different places only.
    pub fn overlap(&self, a: &[SpanId], b: &[SpanId]) -> Vec<Places> {
        let mut places: Option<Vec<Places>> = None;
        for (a, b) in a.iter().zip(b) {
            let here = match a == b {
                true => self.all[*a as usize].parts.iter().map(|p| p.at).collect(),
                false => self.common(*a, *b),
            };
            places = Some(match places {
                None => here,
                Some(before) => {
                    let mut both = Vec::new();
                    meet(&before, &here, |p, _, _| both.push(p));
                    both
                }
            });
        }
        places.unwrap_or_default()
    }

    /// The value of the dimension at a place.
    pub fn value(&self, run: u32, k: i64) -> i64 {
        self.runs[run as usize].value(k)
    }

    /// A span's base and length at a place, if it is not empty there.
    pub fn at(&self, id: SpanId, run: u32, k: i64) -> Option<(i64, i64)> {
        let parts = &self.all[id as usize].parts;
        let i = parts.partition_point(|p| (p.at.run, p.at.hi) < (run, k));
        let p = parts.get(i).filter(|p| p.at.run == run && p.at.lo <= k)?;
        Some((p.base.at(k), p.end.at(k) - p.base.at(k)))
    }
}

/// Calls `f` for every range that something of `a` and something of `b` have in common. Both are in order.
pub(in crate::valid) fn meet<T: AtPlaces, U: AtPlaces>(
    a: &[T],
    b: &[U],
    mut f: impl FnMut(Places, &T, &U),
) {
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (p, q) = (x.places(), y.places());
        if p.run == q.run {
            let (lo, hi) = (p.lo.max(q.lo), p.hi.min(q.hi));
            if lo <= hi {
                f(Places { run: p.run, lo, hi }, x, y);
            }
        }
        if (p.run, p.hi) <= (q.run, q.hi) {
            i += 1;
        } else {
            j += 1;
        }
    }
}

/// Something that holds at some places of a run.
pub(in crate::valid) trait AtPlaces {
    fn places(&self) -> Places;
}

impl AtPlaces for Places {
    fn places(&self) -> Places {
        *self
    }
}

impl AtPlaces for Part {
    fn places(&self) -> Places {
        self.at
    }
}

impl AtPlaces for Piece {
    fn places(&self) -> Places {
        Places { run: self.run, lo: self.lo, hi: self.hi }
    }
}

/// Two functions on the ranges on which both are linear.
pub(in crate::valid) fn refine([a, b]: [&[Piece]; 2]) -> Vec<(Places, [Line; 2])> {
    let mut out = Vec::with_capacity(a.len().max(b.len()));
    meet(a, b, |at, a, b| out.push((at, [a.line, b.line])));
    out
}

/// Neighbouring ranges, in order, as one.
fn joined(places: impl Iterator<Item = Places>) -> Vec<Places> {
    let mut out: Vec<Places> = Vec::new();
    for p in places {
        match out.last_mut() {
            Some(last) if last.run == p.run && last.hi + 1 == p.lo => last.hi = p.hi,
            _ => out.push(p),
        }
    }
    out
}
