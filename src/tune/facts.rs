//! What a pipeline is, as far as settings depend on it.

use crate::{Bound, Program};
use mk_syntax::{Op, ValueId};
use std::collections::HashSet;

/// What decides which settings make sense for a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ranks.
    pub ranks: u32,
    /// Whether rows are gathered.
    pub gathers: bool,
    /// Whether there are matrix products.
    pub products: bool,
    /// Whether there are several.
    pub chained: bool,
    /// Whether a product has a gated epilogue (`swiglu`).
    pub gated: bool,
    /// Whether nothing elementwise is done to what is multiplied.
    pub plain: bool,
    /// Whether partial results are summed.
    pub sums: bool,
    /// Whether everybody gets the sum.
    pub all_reduces: bool,
    /// Whether something elementwise is done to a sum.
    pub finishes: bool,
    /// Global rows of the first result.
    pub rows: u64,
    /// Its columns; 1 where it has none.
    pub columns: u64,
}

impl Facts {
    /// Of a pipeline with its sizes.
    pub fn new(program: &Program, bound: &Bound, ranks: u32) -> Facts {
        let shape = program.results().first().and_then(|id| bound.shape(*id)).unwrap_or_default();
        let (rows, columns) = (shape.first(), shape.get(1));
        let mut facts = Facts {
            ranks,
            plain: true,
            rows: rows.copied().unwrap_or(0),
            columns: columns.copied().unwrap_or(1),
            ..Facts::default()
        };
        // Sums, and what is made of them element by element.
        let mut summed: HashSet<ValueId> = HashSet::new();
        for node in program.nodes() {
            if node.op.is_elementwise() && node.inputs.iter().any(|x| summed.contains(x)) {
                facts.finishes = true;
                summed.insert(node.result);
                continue;
            }
            if matches!(node.op, Op::ReduceScatter { .. } | Op::AllReduce { .. }) {
                summed.insert(node.result);
            }
            match node.op {
                Op::Gather { .. } => facts.gathers = true,
                Op::Gemm { .. } => (facts.chained, facts.products) = (facts.products, true),
                Op::Swiglu => (facts.gated, facts.plain) = (true, false),
                Op::Bias | Op::Gelu | Op::Silu | Op::Relu | Op::Mul | Op::Add | Op::Scale(_) => {
                    facts.plain = false;
                }
                Op::ReduceScatter { .. } => facts.sums = true,
                Op::AllReduce { .. } => {
                    facts.sums = true;
                    facts.all_reduces = true;
                }
                _ => {}
            }
        }
        facts
    }

    pub(super) fn communicates(&self) -> bool {
        self.ranks > 1 && (self.gathers || self.sums)
    }
}
