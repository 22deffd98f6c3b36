//! Accesses look at stamps.

use crate::{Result, SimError, machine::Machine, stamps::text};
use mk_plan::{Mode, Region, Space};

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
    pub fn check_read(&mut self, region: &Region, epoch: i64) -> Result<()> {
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
    pub fn check_write(&mut self, region: &Region, epoch: i64, mode: Mode) -> Result<()> {
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
    pub fn check_outputs(&mut self, rank: usize, epoch: i64) -> Result<()> {
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
