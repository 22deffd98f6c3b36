//! Reductions, and leaves with the same memory traffic: normalised rows, statistics, tables.

use super::{Cost, Done};
use crate::{error::Result, unroller::Unroller};
use mk_plan::{
    DotTile, Family, MergeTile, NormTile, QuantTile, ReduceTile, RopeTile, SinkTile, StatsTile,
    SwigluGradTile, Tabulate, Task,
};

/// In a loop, all iterations are one job.
fn sum(u: &mut Unroller<'_>, task: &Task, x: &Family, iterations: i64) -> Result<()> {
    let (traffic, m) = (u.traffic(task, x, iterations)?, &u.model.movers);
    let mover = traffic.pick(m.sum_local, m.sum_push, m.sum_pull);
    let seconds = mover.seconds(traffic.read + traffic.written);
    u.moves(task, x, iterations, traffic, seconds)
}

macro_rules! as_sums {
    ($($leaf:ty),*) => {$(
        impl Cost for $leaf {
            fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
                let iterations = u.points.inner(task)?;
                sum(u, task, u.family(task), iterations)
            }
        }
    )*};
}

as_sums!(
    DotTile,
    MergeTile,
    NormTile,
    QuantTile,
    ReduceTile,
    RopeTile,
    SinkTile,
    StatsTile,
    SwigluGradTile,
    Tabulate
);
