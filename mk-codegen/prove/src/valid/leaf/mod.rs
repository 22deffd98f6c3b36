//! Rule 6, what a leaf takes for granted of its operands: one product's depth in both factors, a copy's size at both
//! ends.
//!
//! A template reads the size of a task off one of its operands; here, all of them say the same. Extents of 1 in front
//! of an operand's own dimensions only choose where it lies. A result has something that it is made of: a sum at least
//! one contribution, a product both factors, though they may be empty, attention keys. A file for each leaf.

mod attend;
mod attend_grad;
mod copy;
mod dot;
mod epilogue;
mod idle;
mod merge;
mod mma;
mod norm;
mod quant;
mod reduce;
mod rope;
mod sink;
mod stats;
mod swiglu_grad;
mod tabulate;

use super::touched::Touched;
use mk_plan::{Family, Leaf, Operand, of_leaf};

/// What rules ask of a leaf beside its contract.
trait Rules {
    /// Whether the operands of a task fit each other, or why they do not.
    fn misfit(&self, family: &Family, touched: &[Touched<'_>]) -> Result<(), String>;

    /// Operands that it adds up, or goes on with.
    fn contributions(&self) -> &'static [Operand] {
        &[]
    }
}

fn of(leaf: &Leaf) -> &dyn Rules {
    of_leaf!(leaf, x => x)
}

/// Whether the operands of a task fit each other, or why they do not.
pub(super) fn misfit(family: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
    of(&family.leaf).misfit(family, touched)
}

/// Operands that a leaf adds up, or goes on with.
pub(super) fn contributions(leaf: &Leaf) -> &'static [Operand] {
    of(leaf).contributions()
}
