//! Which boxes overlap for some value of the run-time dimension.
//!
//! Boxes of one memory are grouped by their span in one dimension after the other, so that functions are compared and not tiles.

use crate::valid::{
    boxes::{BoxId, Boxed, OVERLAP_WEIGHT},
    hash::FastMap,
    spans::{SpanId, Spans},
};

/// Fills in, for every box, those that overlap it, itself included. `None` above `limit` looks.
pub(in crate::valid) fn overlaps(
    spans: &mut Spans,
    all: &[Boxed],
    memories: &[Vec<BoxId>],
    out: &mut [Vec<BoxId>],
    limit: u64,
) -> Option<()> {
    let mut join = Join { spans, all, out, looked: 0, limit };
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
        join.pairs(ids, ids, &dims)?;
    }
    Some(())
}

struct Join<'s> {
    spans: &'s mut Spans,
    all: &'s [Boxed],
    out: &'s mut [Vec<BoxId>],
    looked: u64,
    limit: u64,
}

impl Join<'_> {
    fn look(&mut self, weight: u64) -> Option<()> {
        self.looked += weight;
        (self.looked <= self.limit).then_some(())
    }

    /// Boxes of two lists that overlap, in the given dimensions; they do in the others.
    fn pairs(&mut self, a: &[BoxId], b: &[BoxId], dims: &[usize]) -> Option<()> {
        let Some((d, rest)) = dims.split_first() else {
            for &x in a {
                for &y in b {
                    let (p, q) = (&self.all[x as usize].spans, &self.all[y as usize].spans);
                    let varies = |id: &SpanId| !self.spans.all[*id as usize].constant;
                    let both = p.iter().zip(&q[..]).filter(|(p, q)| varies(p) || varies(q));
                    // In several dimensions they may overlap for different values only.
                    if both.count() < 2 || x == y || !self.spans.overlap(p, q).is_empty() {
                        self.out[x as usize].push(y);
                    }
                    self.look(OVERLAP_WEIGHT)?;
                }
            }
            return Some(());
        };
        let (left, right) = (self.groups(a, *d), self.groups(b, *d));
        for (x, list) in &left {
            let hull = self.spans.all[*x as usize].hull;
            for (y, other) in &right {
                if self.spans.all[*y as usize].hull.0 >= hull.1 {
                    break;
                }
                self.look(1)?;
                if self.spans.meets(*x, *y) {
                    self.pairs(list, other, rest)?;
                }
            }
        }
        Some(())
    }

    /// By span in a dimension, in the order of least bases.
    fn groups(&self, ids: &[BoxId], d: usize) -> Vec<(SpanId, Vec<BoxId>)> {
        let mut groups: FastMap<SpanId, Vec<BoxId>> = FastMap::default();
        for id in ids {
            groups.entry(self.all[*id as usize].spans[d]).or_default().push(*id);
        }
        let mut out: Vec<_> = groups.into_iter().collect();
        out.sort_unstable_by_key(|(span, _)| (self.spans.all[*span as usize].hull.0, *span));
        out
    }
}
