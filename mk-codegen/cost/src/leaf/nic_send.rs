//! Sends: a rank's messages share the rate of its network card.

use super::{Cost, Done};
use crate::{
    unroller::Unroller,
    work::{Flow, card},
};
use mk_plan::{Task, leaf::NicSend};

impl Cost for NicSend {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        let mut traffic = u.traffic(task, x, 1)?;
        // A card reads memory at a small part of memory's rate, which is left out.
        let message = Flow { resource: card(task.rank()), bytes: traffic.written };
        traffic.flows = if message.bytes > 0.0 { vec![message] } else { Vec::new() };
        u.moves(task, x, 1, traffic, 0.0)
    }
}
