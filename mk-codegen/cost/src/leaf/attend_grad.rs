//! Gradients of attention.

use super::{Cost, Done, attend::Attends};
use crate::{error::Result, unroller::Unroller};
use mk_plan::{AttendGradTile, Task};

impl Cost for AttendGradTile {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        u.attention(task, x, &attends(self))
    }

    fn length(&self, u: &Unroller<'_>, task: &Task) -> Result<Option<i64>> {
        u.attended(task, &attends(self))
    }
}

fn attends(x: &AttendGradTile) -> Attends {
    Attends {
        block: x.block,
        stages: x.stages,
        scores: 2.0,
        results: x.of.made().len() as f64,
        moving: x.of.moving()[0],
    }
}
