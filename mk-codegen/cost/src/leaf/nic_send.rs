//! Sends, of which nobody has measured any.

use super::{Cost, Done};
use crate::unroller::Unroller;
use mk_plan::{Task, leaf::NicSend};

impl Cost for NicSend {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        Err(Unroller::unsupported(task, x))
    }
}
