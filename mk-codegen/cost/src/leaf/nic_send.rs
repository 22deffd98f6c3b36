//! Sends, of which nobody has measured any.

use super::Cost;
use crate::{error::CostError, unroller::Unroller};
use mk_plan::{Family, Task, leaf::NicSend};

impl Cost for NicSend {
    fn jobs(&self, _: &mut Unroller<'_>, task: &Task, x: &Family, _: f64) -> Result<(), CostError> {
        Err(Unroller::unsupported(task, x))
    }
}
