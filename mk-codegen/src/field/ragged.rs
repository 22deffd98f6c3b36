//! Ragged rows: which expert each has, in some launches, and their product with matrices of experts.
//!
//! The caller's counts say how many rows each expert has. Plan and pipeline are evaluated with the counts of a few launches; rows without an expert
//! are not compared. For all other counts the verifier shows that a plan touches no other memory.

use super::{
    algebra::Algebra,
    cells::{Cells, Lines},
    program::{Dims, Tensor},
};
use crate::ir::{Plan, Space, TabId, TableSet, TableSource};
use mk_syntax::{Node, Op, Placement, Program, RAGGED_BLOCK, ValueId};
use std::collections::BTreeMap;

/// How many launches are looked at.
const LAUNCHES: usize = 3;

/// Rows of each expert on each rank, by the tensor that has them.
pub(super) type Counts = BTreeMap<ValueId, Vec<Vec<i32>>>;

/// Tables of some launches, with the counts of each.
pub(super) fn launches(plan: &Plan, program: &Program) -> Vec<(TableSet, Counts)> {
    let given = |id: TabId| {
        let buffer = &plan.buffers[plan.tables[id].stored?];
        let tensor = program.tensor(&buffer.name)?;
        (buffer.space == Space::In).then_some(tensor)
    };
    let n = if plan.tables.is_empty() { 1 } else { LAUNCHES };
    let launch = |launch: usize| {
        let example = TableSet::example(plan);
        let counts = |rank: usize, id: TabId| {
            let even = example.values(rank, id);
            let (Some(tensor), TableSource::Runtime { max, .. }) =
                (given(id), &plan.tables[id].source)
            else {
                return even.to_vec();
            };
            // Ranks that have the same experts have the same counts.
            let sharded = tensor.ty.placement.first() != Some(&Placement::Replicate);
            let rank = if sharded { rank } else { 0 };
            uneven(even, room(plan, id), *max, launch + rank)
        };
        let set = TableSet::new(plan, counts);
        let ranks = 0..plan.mesh.size() as usize;
        let of_table = |id: TabId| {
            let values = ranks.clone().map(|rank| set.values(rank, id).to_vec()).collect();
            Some((given(id)?.id, values))
        };
        let counts = plan.tables.keys().filter_map(of_table).collect();
        (set, counts)
    };
    (0..n).map(launch).collect()
}

/// Blocks for the rows that a table counts.
fn room(plan: &Plan, counts: TabId) -> i32 {
    let blocks = plan.tables.values().filter_map(|t| match t.source {
        TableSource::Blocks { of, .. } if of == counts => t.shape.first().copied(),
        _ => None,
    });
    blocks.min().map_or(i32::MAX, |n| n as i32)
}

/// As even, all in one expert, or some of them empty, by turns.
fn uneven(even: &[i32], mut room: i32, max: i32, turn: usize) -> Vec<i32> {
    let block = RAGGED_BLOCK as i32;
    let n = even.len();
    match turn % LAUNCHES {
        0 => even.to_vec(),
        1 => {
            let whole = room.saturating_mul(block).min(max);
            (0..n).map(|i| if i == turn / LAUNCHES % n.max(1) { whole } else { 0 }).collect()
        }
        _ => (0..n)
            .map(|i| {
                let blocks =
                    if (i + turn).is_multiple_of(2) { 0 } else { (1 + i as i32 % 3).min(room) };
                room -= blocks;
                (blocks * block - 1 - 5 * i as i32 % block).clamp(0, max)
            })
            .collect(),
    }
}

impl Dims<'_> {
    /// The counts of a value that is ragged rows.
    pub fn counts(&self, value: ValueId) -> Option<ValueId> {
        let mut at = value;
        loop {
            let node = match self.program.def(at)? {
                mk_syntax::Def::Node(node) => node,
                mk_syntax::Def::Param(_) => return None,
            };
            match node.op {
                Op::GroupedGemm => return node.inputs.get(2).copied(),
                op if op.is_elementwise() || op == Op::Swiglu => at = *node.inputs.first()?,
                _ => return None,
            }
        }
    }

    /// The expert of each row of all ranks, where it has one; `None` for a value that is not ragged.
    pub fn experts(&self, value: ValueId) -> Option<Vec<Option<i32>>> {
        let of = self.counts(value)?;
        let (counts, rows) = (self.ragged.get(&of)?, self.extent(value, 0) as usize);
        let block = RAGGED_BLOCK as usize;
        let sharded = self.placement(value) != Some(Placement::Replicate);
        let ranks = if sharded { self.ranks } else { 1 };
        let mut all = vec![None; rows];
        for (rank, counts) in counts.iter().take(ranks).enumerate() {
            let mut at = rank * (rows / ranks);
            for (e, n) in counts.iter().enumerate() {
                let n = (*n).max(0) as usize;
                let expert = (rank * counts.len() + e) as i32;
                let end = (at + n).min(rows);
                all[at.min(end)..end].fill(Some(expert));
                at += n.div_ceil(block) * block;
            }
        }
        Some(all)
    }

    /// Cuts the rows of a product where an expert's begin and end, and experts from each other.
    pub(super) fn cut_experts(&self, node: &Node, lines: &mut Lines) {
        let Some(experts) = self.experts(node.result) else { return };
        let row = self.line(node.result, 0);
        for (i, pair) in experts.windows(2).enumerate() {
            if pair[0] != pair[1] {
                lines.cut(row, i as i32 + 1);
            }
        }
        let matrices = node.inputs[1];
        let line = self.line(matrices, 0);
        (1..self.extent(matrices, 0)).for_each(|e| lines.cut(line, e as i32));
    }
}

/// Each row times the matrix of its expert; rows of none have no value.
pub(super) fn product<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    node: &Node,
    [x, w]: [&Tensor<A::Elem>; 2],
) -> Tensor<A::Elem> {
    let experts = dims.experts(node.result).unwrap_or_default();
    let (row, expert) = (dims.line(node.result, 0), dims.line(node.inputs[1], 0));
    let (depth, columns) = (w.shape[1], w.shape[2..].iter().product::<usize>());
    let mut data = vec![A::ZERO; x.shape[0] * columns];
    for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
        let Some(Some(e)) = experts.get(cells.original(row, i) as usize) else { continue };
        let matrix = &w.data[cells.at(expert, *e) * depth * columns..];
        for (l, right) in matrix.chunks(columns.max(1)).take(depth).enumerate() {
            let left = x.data[i * depth + l];
            for (sum, right) in out.iter_mut().zip(right) {
                let product = algebra.mul(left, *right);
                *sum = algebra.add(*sum, product);
            }
        }
    }
    Tensor { shape: [&x.shape[..1], &w.shape[2..]].concat(), data }
}
