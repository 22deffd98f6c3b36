//! Copies by a CTA.

use super::{Cost, Done};
use crate::unroller::Unroller;
use mk_plan::{CopyTile, CopyVia, Task};

impl Cost for CopyTile {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        if x.inner.is_some() {
            return Err(Unroller::unsupported(task, x));
        }
        let (traffic, m) = (u.traffic(task, x, 1)?, &u.model.movers);
        let mover = match self.via {
            CopyVia::Bulk => traffic.pick(m.bulk_local, m.bulk_push, m.bulk_pull),
            _ => traffic.pick(m.ldst_local, m.ldst_push, m.ldst_pull),
        };
        let seconds = mover.seconds(traffic.written);
        u.moves(task, x, 1, traffic, seconds)
    }

    fn is_bulk(&self) -> bool {
        self.via == CopyVia::Bulk
    }
}
