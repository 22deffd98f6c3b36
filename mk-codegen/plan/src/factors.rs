//! Factors of a sum's contributions.

use super::{names::Operand, plan::Family};

/// Which contributions of a [`ReduceTile`](super::leaf::ReduceTile) have a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// None: the sum has no factors.
    None,
    /// Those whose factor is there. Others are left out of the sum.
    Some,
    /// All of them.
    All,
}

impl Family {
    /// Which contributions have a factor: all, unless factors have a condition that contributions do not have.
    pub fn factors(&self) -> Factors {
        let mut all = self.accesses.iter().filter(|a| a.operand == Operand::W).peekable();
        if all.peek().is_none() {
            return Factors::None;
        }
        let src = self.accesses.iter().find(|a| a.operand == Operand::Src);
        let same = all.all(|w| src.is_some_and(|src| src.when == w.when));
        if same { Factors::All } else { Factors::Some }
    }
}
