//! What a pipeline is, as far as settings depend on it.

use mk_syntax::{Bound, Op, Program, ValueId};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

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
    /// Global rows of the products that no other product reads: the fewest. Without products, of the first result.
    pub rows: u64,
    /// Columns of that one; 1 where it has none.
    pub columns: u64,
    /// The most rows of these products.
    pub most_rows: u64,
    /// Global rows of what is summed, the fewest.
    pub sum_rows: u64,
    /// Columns of that.
    pub sum_columns: u64,
}

impl Facts {
    /// Of a pipeline with its sizes.
    pub fn new(program: &Program, bound: &Bound, ranks: u32) -> Facts {
        let size = |id: ValueId| -> [u64; 2] {
            let shape = bound.shape(id).unwrap_or_default();
            let columns = if shape.len() > 1 { shape.last() } else { None };
            [shape.first().copied().unwrap_or(0), columns.copied().unwrap_or(1)]
        };
        let mut facts = Facts { ranks, plain: true, ..Facts::default() };
        // Products, those that others read apart, and what is made of them element by element; sums.
        let mut products: Vec<(ValueId, bool)> = Vec::new();
        let mut made: HashMap<ValueId, usize> = HashMap::new();
        let mut sums: Vec<[u64; 2]> = Vec::new();
        let mut summed: HashSet<ValueId> = HashSet::new();
        for node in program.nodes() {
            let of = node.inputs.iter().find_map(|x| made.get(x).copied());
            let behind_sum = node.inputs.iter().any(|x| summed.contains(x));
            match node.op {
                Op::Gather { .. } => facts.gathers = true,
                Op::Gemm { .. } => {
                    (facts.chained, facts.products) = (facts.products, true);
                    if let Some(read) = of.and_then(|i| products.get_mut(i)) {
                        read.1 = true;
                    }
                    made.insert(node.result, products.len());
                    products.push((node.result, false));
                    continue;
                }
                Op::ReduceScatter { .. } | Op::AllReduce { .. } => {
                    facts.sums = true;
                    facts.all_reduces |= matches!(node.op, Op::AllReduce { .. });
                    sums.extend(node.inputs.first().map(|x| size(*x)));
                    summed.insert(node.result);
                }
                _ if behind_sum => {
                    facts.finishes = true;
                    summed.insert(node.result);
                }
                Op::Swiglu => (facts.gated, facts.plain) = (true, false),
                Op::Bias | Op::Gelu | Op::Silu | Op::Relu | Op::Mul | Op::Add | Op::Scale(_) => {
                    facts.plain = false;
                }
                _ => {}
            }
            made.extend(of.map(|product| (node.result, product)));
        }
        // The order of results says nothing.
        let last = products.iter().filter(|(_, read)| !read).map(|(id, _)| size(*id));
        let sizes: Vec<_> = last.collect();
        let fewest =
            |sizes: &[[u64; 2]]| sizes.iter().min_by_key(|s| (s[0], Reverse(s[1]))).copied();
        let first = program.results().first().map_or([0, 1], |id| size(*id));
        [facts.rows, facts.columns] = fewest(&sizes).unwrap_or(first);
        facts.most_rows = sizes.iter().map(|s| s[0]).max().unwrap_or(first[0]);
        [facts.sum_rows, facts.sum_columns] = fewest(&sums).unwrap_or(first);
        facts
    }

    pub(super) fn communicates(&self) -> bool {
        self.ranks > 1 && (self.gathers || self.sums)
    }
}
