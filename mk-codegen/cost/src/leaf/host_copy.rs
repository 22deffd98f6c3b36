//! Copies by a copy engine.

use super::{Cost, Done};
use crate::{unroller::Unroller, work::is_link};
use mk_plan::{Task, leaf::HostCopy};

impl Cost for HostCopy {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        if x.inner.is_some() {
            return Err(Unroller::unsupported(task, x));
        }
        let mut traffic = u.traffic(task, x, 1)?;
        // One engine moves what the link does, and more of it than SMs, for which the link's rate stands. What it reads
        // is little of what memory gives, and not a part of it like that of each SM.
        traffic.flows.retain(|f| is_link(f.resource));
        // What is waited for before the first copy is no copy's; the link is the engine's own for as long.
        let first = u.plan.families.iter().find(|(_, f)| f.leaf.is_host_copy());
        let is_first = first.is_some_and(|(id, _)| id == task.family) && task.linear() == 0;
        let begins = if is_first { u.model.engine_begin_s } else { 0.0 };
        let seconds = begins + u.model.movers.engine.seconds(traffic.written);
        let bytes = seconds * u.model.link_bytes_per_s;
        traffic.flows.iter_mut().for_each(|f| f.bytes = bytes);
        u.moves(task, x, 1, traffic, 0.0)
    }
}
