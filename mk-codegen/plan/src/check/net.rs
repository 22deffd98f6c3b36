//! Sends: a command has one source and one destination, whatever the task.

use super::checker::Checker;
use crate::{names::Operand, plan::Family};

impl Checker<'_> {
    /// A send is one message in every task: where it goes is no matter of repetitions or conditions.
    pub(super) fn sends(&mut self, place: &str, x: &Family) {
        if !x.leaf.sends() {
            return;
        }
        let ends = x.accesses.iter().filter(|a| matches!(a.operand, Operand::Src | Operand::Dst));
        for a in ends.filter(|a| a.each.is_some() || a.when.is_some()) {
            let what = format!(
                "sends one message in each task: `{}` has no `each` and no `when`; an empty region sends nothing",
                a.operand
            );
            self.error(place, what);
        }
    }
}
