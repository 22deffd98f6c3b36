//! Gradients of attention.

use super::{Cost, Done, attend::Attends};
use crate::{error::Result, unroller::Unroller};
use mk_plan::{AttendGradTile, GradOf, Operand, Task};

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
    let (block, [keys, values]) = (x.block, [x.block[2], x.value_dim()]);
    // q kᵀ, and dO vᵀ unless only dV is wanted; then a product for each result.
    let deep = if x.of == GradOf::ValuesAlone { keys } else { keys + values };
    let wide = x.of.made().iter().map(|o| if *o == Operand::Dv { values } else { keys }).sum();
    Attends { block, stages: x.stages, deep, wide, moving: x.of.moving()[0] }
}
