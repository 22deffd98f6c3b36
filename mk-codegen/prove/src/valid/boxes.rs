//! Boxes of memory: interning and overlap.
//!
//! Every region that a plan touches becomes a [`BoxId`] of one [`Memory`] (a buffer on a rank). Tasks with equal
//! regions share a box, so that the pairs to prove are pairs of boxes, and overlaps are found once for all epochs.

use super::{
    region::{Dims, meet},
    spans::{ALWAYS, LiveId, SpanId, Spans},
};
use crate::hash::{FastMap, Mixer};
use mk_plan::{BufId, Entity, Region};
use std::{
    collections::hash_map::Entry,
    hash::{Hash, Hasher},
};

pub(super) type BoxId = u32;
/// What an overlap costs, in looks.
pub(super) const OVERLAP_WEIGHT: u64 = 16;

/// A distinct region of a buffer on a rank.
#[derive(Clone, Debug)]
pub(super) struct Boxed {
    pub rank: usize,
    pub buffer: BufId,
    /// With a run-time dimension, the hull over all its values.
    pub dims: Dims,
    /// With a run-time dimension, what the box is for each of its values.
    pub spans: Box<[SpanId]>,
    /// For which of its values there is anything in it.
    pub live: LiveId,
}

/// All distinct regions of a plan.
#[derive(Default)]
pub(super) struct Boxes {
    pub all: Vec<Boxed>,
    /// The last box with a hash, and before each box the one of the same hash before it.
    heads: FastMap<u64, BoxId>,
    before: Vec<Option<BoxId>>,
    /// Functions of the run-time dimension, if regions are looked at for all its values.
    pub spans: Option<Spans>,
}

impl Boxes {
    /// The box of a region, new or known.
    pub fn intern(&mut self, region: &Region) -> BoxId {
        self.add(region, &[], ALWAYS)
    }

    /// The box with the given hull and functions, new or known.
    pub fn add(&mut self, hull: &Region, spans: &[SpanId], live: LiveId) -> BoxId {
        let Region { rank, buffer, ref dims, .. } = *hull;
        let mut hash = Mixer::default();
        (rank, buffer.index(), spans).hash(&mut hash);
        for (base, len) in dims {
            hash.write_i64(*base);
            hash.write_i64(*len);
        }
        let head = self.heads.entry(hash.finish());
        let mut known = match &head {
            Entry::Occupied(head) => Some(*head.get()),
            Entry::Vacant(_) => None,
        };
        let last = known;
        while let Some(id) = known {
            let b = &self.all[id as usize];
            if (b.rank, b.buffer) == (rank, buffer) && *b.dims == dims[..] && *b.spans == *spans {
                return id;
            }
            known = self.before[id as usize];
        }
        let id = self.all.len() as BoxId;
        let dims = dims[..].into();
        self.all.push(Boxed { rank, buffer, dims, spans: spans.into(), live });
        self.before.push(last);
        head.insert_entry(id);
        id
    }

    /// Whether there is something in a box for all values for which there is in another one: `of` is that one's
    /// [`Boxed::live`].
    pub fn covers(&self, id: BoxId, of: LiveId) -> bool {
        let live = self.all[id as usize].live;
        self.spans.as_ref().is_none_or(|spans| spans.covers(live, of))
    }

    /// Boxes of the same memory.
    pub fn memories(&self) -> Vec<Vec<BoxId>> {
        let mut memories: FastMap<(usize, BufId), Vec<BoxId>> = FastMap::default();
        for (id, b) in self.all.iter().enumerate() {
            memories.entry((b.rank, b.buffer)).or_default().push(id as BoxId);
        }
        let mut out: Vec<_> = memories.into_values().collect();
        out.sort_unstable();
        out
    }

    /// For some boxes of one memory, pairs of which the hulls overlap, each box with itself, too: in both orders, as
    /// `out` takes them. `None` if there are more than `limit`.
    pub fn hulls(
        &self,
        ids: &[BoxId],
        out: &mut FastMap<BoxId, Vec<BoxId>>,
        limit: u64,
    ) -> Option<()> {
        let mut lists = vec![Vec::new(); self.all.len()];
        let mut looked = 0;
        self.sweep(&mut ids.to_vec(), &mut lists, &mut looked, limit)?;
        for id in ids {
            out.insert(*id, std::mem::take(&mut lists[*id as usize]));
        }
        Some(())
    }

    /// Sweeps along the dimension with the most distinct bases.
    pub fn sweep(
        &self,
        ids: &mut [BoxId],
        out: &mut [Vec<BoxId>],
        looked: &mut u64,
        limit: u64,
    ) -> Option<()> {
        let dims = |id: BoxId| &self.all[id as usize].dims;
        let distinct = |d: usize| {
            let mut bases: Vec<_> = ids.iter().map(|i| dims(*i)[d].0).collect();
            bases.sort_unstable();
            bases.dedup();
            bases.len()
        };
        let n_dims = ids.first().map_or(0, |i| dims(*i).len());
        let axis = (0..n_dims).max_by_key(|d| distinct(*d)).unwrap_or(0);
        ids.sort_unstable_by_key(|i| dims(*i).get(axis).map(|d| d.0));
        let mut active: Vec<BoxId> = Vec::new();
        for &id in ids.iter() {
            let base = dims(id).get(axis).map_or(0, |d| d.0);
            active.retain(|a| dims(*a).get(axis).is_none_or(|d| d.0 + d.1 > base));
            *looked += active.len() as u64;
            if *looked > limit {
                return None;
            }
            for &a in &active {
                if meet(dims(a), dims(id)) {
                    // An overlap takes memory, and work later on: it weighs more than a look.
                    *looked += OVERLAP_WEIGHT;
                    out[a as usize].push(id);
                    out[id as usize].push(a);
                }
            }
            out[id as usize].push(id);
            active.push(id);
        }
        Some(())
    }
}
