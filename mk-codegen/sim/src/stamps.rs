//! Which epoch and version wrote each element: a run with [`super::Options::check`] stops at the first access that
//! finds another stamp than the one that it means.
//!
//! A read must find its own epoch and version (an input: its own epoch). A write must not find its own stamp, which is
//! somebody else's of this epoch, or a greater one, which it would hide. An output must not be written when its caller
//! has read it.

use super::{
    error::Result,
    memory::{elements, rows},
};
use mk_plan::{BufId, Entity, Plan, Points, Region};

/// Epoch and version; epoch 0: nobody.
pub(super) type Stamp = (i64, i64);

/// Stamps of all elements, by rank and buffer.
pub(super) struct Stamps {
    ranks: Vec<Vec<Slab>>,
}

struct Slab {
    shape: Vec<usize>,
    stamps: Vec<Stamp>,
}

impl Stamps {
    pub fn new(plan: &Plan, points: &Points<'_>) -> Result<Stamps> {
        let mut ranks = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let mut slabs = Vec::new();
            for id in plan.buffers.keys() {
                let shape = points.shape(id, rank)?;
                let len = elements(&shape, || id.to_string())? as usize;
                let shape = shape.iter().map(|n| *n as usize).collect();
                slabs.push(Slab { shape, stamps: vec![(0, 0); len] });
            }
            ranks.push(slabs);
        }
        Ok(Stamps { ranks })
    }

    /// Stamps a whole buffer: 0 for memory that is nobody's now.
    pub fn fill(&mut self, rank: usize, buffer: BufId, epoch: i64) {
        self.ranks[rank][buffer.index()].stamps.fill((epoch, 0));
    }

    /// The first stamp of a region that does not fit.
    pub fn first(
        &mut self,
        region: &Region,
        mut fits: impl FnMut(&mut Stamp) -> bool,
    ) -> Option<Stamp> {
        let slab = &mut self.ranks[region.rank][region.buffer.index()];
        let cols = region.dims.last().map_or(0, |d| d.1 as usize);
        let mut found = None;
        rows(&slab.shape, region, |at| {
            for s in &mut slab.stamps[at..at + cols] {
                let before = *s;
                if !fits(s) && found.is_none() {
                    found = Some(before);
                }
            }
        });
        found
    }

    /// The first stamp of a buffer that does not fit.
    pub fn any(&self, rank: usize, buffer: BufId, fits: impl Fn(&Stamp) -> bool) -> Option<Stamp> {
        self.ranks[rank][buffer.index()].stamps.iter().find(|s| !fits(s)).copied()
    }
}

pub(super) fn text(stamp: Stamp) -> String {
    match stamp {
        (0, _) => "memory that nobody has written".into(),
        (epoch, 0) => format!("what epoch {epoch} wrote"),
        (epoch, version) => format!("version {version} of epoch {epoch}"),
    }
}
