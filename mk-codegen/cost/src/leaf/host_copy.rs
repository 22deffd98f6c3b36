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
        // One engine saturates the link, at a higher rate than SMs, whose rate the model has for the link. Its reads
        // are small against memory bandwidth.
        traffic.flows.retain(|f| is_link(f.resource));
        // Start-up time counts for the first copy only; the link is busy meanwhile.
        let first = u.plan.families.iter().find(|(_, f)| f.leaf.is_host_copy());
        let is_first = first.is_some_and(|(id, _)| id == task.family) && task.linear() == 0;
        let begins = if is_first { u.model.engine_begin_s } else { 0.0 };
        let seconds = begins + u.model.movers.engine.seconds(traffic.written);
        let bytes = seconds * u.model.link_bytes_per_s;
        traffic.flows.iter_mut().for_each(|f| f.bytes = bytes);
        u.moves(task, x, 1, traffic, 0.0)
    }
}
