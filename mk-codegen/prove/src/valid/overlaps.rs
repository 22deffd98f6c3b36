//! Which boxes overlap; with a run-time dimension, for some value of it.
//!
//! There, boxes of one memory are grouped by their span in one dimension after the other, so that functions are
//! compared and not tiles.

use super::{
    boxes::{BoxId, Boxed, Boxes, OVERLAP_WEIGHT},
    spans::{SpanId, Spans},
};
use crate::hash::FastMap;

/// Most pairs of spans that are remembered.
const MAX_MET: usize = 1 << 22;

impl Boxes {
    /// For every box the boxes that overlap it, itself included, in ascending order. `None` if there are more than
    /// `limit` pairs to look at.
    ///
    /// With a run-time dimension: those that overlap it for some value.
    pub fn overlaps(&self, limit: u64) -> Option<Vec<Vec<BoxId>>> {
        let mut out = vec![Vec::new(); self.all.len()];
        let mut looked = 0u64;
        let memories = self.memories();
        if let Some(spans) = &self.spans {
            over_values(spans, &self.all, &memories, &mut out, limit)?;
        } else {
            for mut ids in memories {
                self.sweep(&mut ids, &mut out, &mut looked, limit)?;
            }
        }
        out.iter_mut().for_each(|list| list.sort_unstable());
        Some(out)
    }

    /// Values with which two boxes overlap, or what is in one of them is there: some at both ends of ranges.
    pub fn meeting(&self, a: BoxId, b: BoxId) -> Vec<i64> {
        let Some(spans) = &self.spans else { return Vec::new() };
        let [a, b] = [a, b].map(|id| &self.all[id as usize].spans[..]);
        let places = spans.overlap(a, b).into_iter().chain(spans.overlap(a, a));
        places.flat_map(|p| [spans.value(p.run, p.lo), spans.value(p.run, p.hi)]).collect()
    }
}

/// Fills in, for every box, those that overlap it for some value, itself included. `None` above `limit` looks.
fn over_values(
    spans: &Spans,
    all: &[Boxed],
    memories: &[Vec<BoxId>],
    out: &mut [Vec<BoxId>],
    limit: u64,
) -> Option<()> {
    let varies = |id: &SpanId| !spans.all[*id as usize].constant;
    let bits = |b: &Boxed| {
        let dims = b.spans.iter().enumerate().filter(|(_, id)| varies(id));
        // Dimensions that nobody has count as one: they are looked at less closely.
        dims.fold(0u32, |bits, (d, _)| bits | 1 << d.min(31))
    };
    let varying = all.iter().map(bits).collect();
    let mut join = Join { spans, all, varying, met: FastMap::default(), out, looked: 0, limit };
    for ids in memories {
        let n_dims = ids.first().map_or(0, |id| all[*id as usize].spans.len());
        let distinct = |d: usize| {
            let mut found: Vec<SpanId> = ids.iter().map(|id| all[*id as usize].spans[d]).collect();
            found.sort_unstable();
            found.dedup();
            found.len()
        };
        let mut dims: Vec<usize> = (0..n_dims).collect();
        dims.sort_by_key(|d| std::cmp::Reverse(distinct(*d)));
        let boxes = join.grouped(ids.clone(), &dims);
        join.pairs(&boxes, &boxes)?;
    }
    Some(())
}

/// Boxes of one memory that have the same span in some dimensions, by their span in the next one.
enum Grouped {
    /// In the order of least bases, and the greatest extent of a hull.
    By(Vec<(SpanId, Grouped)>, i64),
    Boxes(Vec<BoxId>),
}

struct Join<'s> {
    spans: &'s Spans,
    all: &'s [Boxed],
    /// For each box, the dimensions that vary, as bits.
    varying: Vec<u32>,
    /// Pairs of spans that were compared.
    met: FastMap<(SpanId, SpanId), bool>,
    out: &'s mut [Vec<BoxId>],
    looked: u64,
    limit: u64,
}

impl Join<'_> {
    fn look(&mut self, weight: u64) -> Option<()> {
        self.looked += weight;
        (self.looked <= self.limit).then_some(())
    }

    /// Whether two spans have an element in common for some value.
    fn meets(&mut self, a: SpanId, b: SpanId) -> bool {
        if a == b {
            return true;
        }
        let (x, y) = (&self.spans.all[a as usize], &self.spans.all[b as usize]);
        if x.hull.0 >= y.hull.1 || y.hull.0 >= x.hull.1 {
            return false;
        }
        let key = (a.min(b), a.max(b));
        if let Some(known) = self.met.get(&key) {
            return *known;
        }
        let found = !self.spans.common(a, b).is_empty();
        if self.met.len() < MAX_MET {
            self.met.insert(key, found);
        }
        found
    }

    fn grouped(&self, ids: Vec<BoxId>, dims: &[usize]) -> Grouped {
        let Some((d, rest)) = dims.split_first() else { return Grouped::Boxes(ids) };
        let mut groups: FastMap<SpanId, Vec<BoxId>> = FastMap::default();
        for id in ids {
            groups.entry(self.all[id as usize].spans[*d]).or_default().push(id);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|(span, _)| (self.spans.all[*span as usize].hull.0, *span));
        let extent = |(span, _): &(SpanId, _)| {
            let hull = self.spans.all[*span as usize].hull;
            hull.1 - hull.0
        };
        let longest = groups.iter().map(extent).max().unwrap_or(0);
        let below = |(span, ids)| (span, self.grouped(ids, rest));
        Grouped::By(groups.into_iter().map(below).collect(), longest)
    }

    /// Boxes of two groups that overlap, in the dimensions that are left; they do in the others.
    fn pairs(&mut self, a: &Grouped, b: &Grouped) -> Option<()> {
        match (a, b) {
            (Grouped::By(left, _), Grouped::By(right, longest)) => {
                for (x, list) in left {
                    let hull = self.spans.all[*x as usize].hull;
                    let low = |y: &(SpanId, _)| self.spans.all[y.0 as usize].hull.0;
                    let first = right.partition_point(|y| low(y) + longest <= hull.0);
                    for (y, other) in &right[first..] {
                        if self.spans.all[*y as usize].hull.0 >= hull.1 {
                            break;
                        }
                        self.look(1)?;
                        if self.meets(*x, *y) {
                            self.pairs(list, other)?;
                        }
                    }
                }
            }
            (Grouped::Boxes(left), Grouped::Boxes(right)) => {
                for &x in left {
                    for &y in right {
                        let varying = self.varying[x as usize] | self.varying[y as usize];
                        let (p, q) = (&self.all[x as usize].spans, &self.all[y as usize].spans);
                        // In several dimensions they may overlap for different values only.
                        if varying.count_ones() < 2
                            || x == y
                            || !self.spans.overlap(p, q).is_empty()
                        {
                            self.out[x as usize].push(y);
                        }
                        self.look(OVERLAP_WEIGHT)?;
                    }
                }
            }
            // All boxes of a memory have as many dimensions.
            _ => {}
        }
        Some(())
    }
}
