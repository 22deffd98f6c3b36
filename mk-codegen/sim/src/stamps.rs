//! Which epoch and version wrote each element: a run with [`super::Options::check`] stops at the first access that finds another
//! stamp than the one that it means.
//!
//! A read must find its own epoch and version (an input: its own epoch). A write must not find its own stamp, which is
//! somebody else's of this epoch, or a greater one, which it would hide. An output must not be written when its caller has read it.

use super::{
    SimError,
    machine::Machine,
    memory::{elements, rows},
};
use mk_plan::{BufId, Entity, Mode, Plan, Points, Region, Space};

/// Epoch and version; epoch 0: nobody.
type Stamp = (i64, i64);

/// Stamps of all elements, by rank and buffer.
pub(super) struct Stamps {
    ranks: Vec<Vec<Slab>>,
}

struct Slab {
    shape: Vec<usize>,
    stamps: Vec<Stamp>,
}

impl Stamps {
    pub fn new(plan: &Plan, points: &Points<'_>) -> Result<Stamps, SimError> {
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
    fn first(
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
    fn any(&self, rank: usize, buffer: BufId, fits: impl Fn(&Stamp) -> bool) -> Option<Stamp> {
        self.ranks[rank][buffer.index()].stamps.iter().find(|s| !fits(s)).copied()
    }
}

fn text(stamp: Stamp) -> String {
    match stamp {
        (0, _) => "memory that nobody has written".into(),
        (epoch, 0) => format!("what epoch {epoch} wrote"),
        (epoch, version) => format!("version {version} of epoch {epoch}"),
    }
}

impl Machine<'_> {
    fn violated(&self, what: &str, region: &Region, epoch: i64, found: String) -> SimError {
        let name = &self.plan.buffers[region.buffer].name;
        let access = format!(
            "epoch {epoch} {what} {} {name:?} @ rank {} {:?}",
            region.buffer, region.rank, region.dims
        );
        SimError::Violated { access, found }
    }

    /// Checks what an epoch reads.
    pub fn check_read(&mut self, region: &Region, epoch: i64) -> Result<(), SimError> {
        let Some(stamps) = &mut self.stamps else { return Ok(()) };
        let input = self.plan.buffers[region.buffer].space == Space::In;
        let want = (epoch, if input { 0 } else { region.version });
        match stamps.first(region, |s| *s == want) {
            None => Ok(()),
            Some(s) => {
                let found = format!("finds {}, not {}", text(s), text(want));
                Err(self.violated("reads", region, epoch, found))
            }
        }
    }

    /// Checks and stamps what an epoch writes.
    pub fn check_write(&mut self, region: &Region, epoch: i64, mode: Mode) -> Result<(), SimError> {
        let Some(stamps) = &mut self.stamps else { return Ok(()) };
        let own = (epoch, region.version);
        let adds = mode == Mode::Accumulate;
        let found = stamps.first(region, |s| {
            let fits = *s < own || (adds && *s == own);
            *s = own;
            fits
        });
        if let Some(s) = found {
            return Err(self.violated("writes", region, epoch, format!("finds {}", text(s))));
        }
        let late = self.plan.buffers[region.buffer].space == Space::Out
            && self.ranks[region.rank].outputs_read >= epoch;
        if late {
            let found = "the caller has read it before".to_string();
            return Err(self.violated("writes", region, epoch, found));
        }
        Ok(())
    }

    /// Checks what the caller of a rank reads after a launch.
    pub fn check_outputs(&mut self, rank: usize, epoch: i64) -> Result<(), SimError> {
        self.ranks[rank].outputs_read = epoch;
        let Some(stamps) = &self.stamps else { return Ok(()) };
        for (id, b) in self.plan.buffers.iter().filter(|b| b.1.space == Space::Out) {
            if let Some(s) = stamps.any(rank, id, |s| s.0 == 0 || s.0 == epoch) {
                return Err(SimError::Violated {
                    access: format!(
                        "the caller of rank {rank} reads {id} {:?} of epoch {epoch}",
                        b.name
                    ),
                    found: format!("finds {}", text(s)),
                });
            }
        }
        Ok(())
    }
}
