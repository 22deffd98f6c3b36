//! What plans and their judges ask of a leaf.

use super::Mask;
use crate::{
    contract::{Allowed, Contract, Elements, OneType},
    epilogue::EpilogueOp,
    names::Operand,
};
use std::fmt::{self, Formatter};

/// A leaf: its fields, and what follows from them. Each has a file of its own.
pub trait Record {
    /// The name in the text format.
    fn name(&self) -> &'static str;

    /// The settings behind the name in the text format.
    ///
    /// # Errors
    /// Those of the formatter.
    fn settings(&self, _: &mut Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    /// What the verifier may rely on and the template must implement.
    fn contract(&self) -> Contract;

    /// The points of a task of this leaf, with or without an inner loop: unless it says otherwise, those of one agent
    /// that reads at the start and writes at the end.
    fn allowed(&self, inner: bool) -> Allowed {
        let _ = inner;
        Allowed::at_both_ends(&self.contract())
    }

    /// The groups of operands that have one type each, but for tables.
    fn types(&self) -> Vec<OneType>;

    /// The groups of operands that have one type each. Every operand of the contract is in one.
    fn elements(&self) -> Vec<OneType> {
        let mut groups = self.types();
        groups.push(OneType::new(&[Operand::Tab], Elements::I32));
        groups
    }

    /// Operands that go through tensor maps.
    fn through_tma(&self) -> Vec<Operand> {
        Vec::new()
    }

    /// What is done to each element of its results before they are rounded.
    fn epilogue(&self) -> &[EpilogueOp] {
        &[]
    }

    /// Sides of a tile, and shared-memory stages that data passes through, if there are any.
    fn pipeline(&self) -> Option<(&[u32], u32)> {
        None
    }

    /// What is wrong with the epilogue, for what the leaf is.
    fn misuse(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether it is arithmetic in floating point, for which types of operands make another kernel.
    fn computes(&self) -> bool {
        self.types().iter().any(|t| !matches!(t.of, Elements::Any | Elements::I32))
    }

    /// Whether it copies `src` to `dst` as it is.
    fn copies(&self) -> bool {
        false
    }

    /// Whether a network card carries it out.
    fn sends(&self) -> bool {
        false
    }

    /// Whether a copy engine carries it out.
    fn is_host_copy(&self) -> bool {
        false
    }

    /// Whether it announces the launch.
    fn enters(&self) -> bool {
        false
    }

    /// Where queries meet keys, which of them they see by their places in the sequence.
    fn mask(&self) -> Option<Mask> {
        None
    }

    /// Whether queries come in blocks, to a tile of keys.
    fn queries_move(&self) -> bool {
        false
    }

    /// CTAs that share a task.
    fn cluster(&self) -> u32 {
        1
    }

    /// Tiles below each other and side by side that make up a task.
    fn multicast(&self) -> [u32; 2] {
        [1, 1]
    }

    /// CTAs that share the steps of a tile along k.
    fn shares_depth(&self) -> u32 {
        1
    }

    /// Whether tasks can be scheduled dynamically: one agent takes them, and tells the others.
    fn has_dynamic_schedule(&self) -> bool {
        false
    }

    /// Columns of `c` in one tile of a GEMM; 0 for other leaves.
    fn out_columns(&self) -> u32 {
        0
    }
}
