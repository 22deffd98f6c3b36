//! The dimensions of a pipeline's values, and the values.

use super::{cells::Lines, error::FieldError};
use mk_plan::{Axis, Mesh};
use mk_syntax::{Bound, Def, Node, Op, Placement, Program, Scores, ValueId};
use std::collections::BTreeMap;

/// Rows of each expert on each rank, by the tensor that has them.
pub(super) type Counts = BTreeMap<ValueId, Vec<Vec<i32>>>;

/// The dimensions of a program's values. Those that operations take for the same are one line.
pub(super) struct Dims<'a> {
    pub program: &'a Program,
    pub bound: &'a Bound,
    /// Ranks along the program's axis, and of the world.
    pub ranks: usize,
    pub world: usize,
    axis: Axis,
    /// Rows of each expert.
    pub ragged: Counts,
    /// The line of each dimension of each value.
    pub lines: Vec<Vec<u32>>,
}

impl<'a> Dims<'a> {
    /// Makes a line of each dimension, cut where shards begin.
    pub fn new(
        program: &'a Program,
        bound: &'a Bound,
        mesh: &Mesh,
        ragged: Counts,
        lines: &mut Lines,
    ) -> Result<Dims<'a>, FieldError> {
        let axis = mesh.axis(&program.mesh_axes()[0]).ok_or_else(|| FieldError::Interface {
            what: format!("its mesh has no axis `{}`", program.mesh_axes()[0]),
        })?;
        let ranks = axis.size as usize;
        let wide = |node: &&Node| {
            let left = node.inputs.first().and_then(|x| program.ty(*x));
            matches!(node.op, Op::Gemm { .. }) && left.is_some_and(|t| t.dims.len() > 2)
        };
        if let Some(node) = program.nodes().iter().find(wide) {
            let what = format!("`{}` of gates and ups", node.op.name());
            return Err(FieldError::unsupported(
                what,
                "cut the pipeline there: no kernel computes it",
            ));
        }
        let world = mesh.size() as usize;
        let mut dims = Dims { program, bound, ranks, world, axis, ragged, lines: Vec::new() };
        for i in 0..program.n_values() {
            let value = ValueId::new(i);
            let mut own: Vec<u32> = match program.def(value) {
                Some(Def::Node(node)) => dims.of_node(node),
                _ => Vec::new(),
            };
            let shape = bound.shape(value).unwrap_or(&[]);
            if let Some(Def::Node(Node { op: Op::AttentionStats, .. })) = program.def(value) {
                own.extend(shape.last().map(|n| lines.line(*n as i64)));
            }
            match program.def(value) {
                // Rows are no tokens, and tokens no rows.
                Some(Def::Node(Node { op: Op::Dispatch { .. }, .. })) => {
                    own[0] = lines.line(shape[0] as i64);
                }
                // Nor are they experts.
                Some(Def::Node(Node { op: Op::GroupedWgrad, .. })) => {
                    own[0] = lines.line(shape[0] as i64);
                }
                Some(Def::Node(Node { op: Op::Combine, inputs, .. })) => {
                    own[0] = dims.line(inputs[1], 0);
                }
                _ => {}
            }
            let own = if own.len() == shape.len() {
                own
            } else {
                shape.iter().map(|n| lines.line(*n as i64)).collect()
            };
            dims.lines.push(own);
            if let Some(d) = dims.placement(value).and_then(Placement::cut) {
                let line = dims.line(value, d);
                for rank in 0..ranks {
                    dims.stretches(value, rank, d).iter().for_each(|(at, _)| lines.cut(line, *at));
                }
            }
        }
        for node in program.nodes() {
            dims.join(node, lines);
        }
        Ok(dims)
    }

    /// The lines of a result, where they are those of operands.
    fn of_node(&self, node: &Node) -> Vec<u32> {
        let of = |i: usize| self.lines[node.inputs[i].index()].as_slice();
        match node.op {
            Op::Gemm { a_transposed, b_transposed } => {
                let row = of(0)[usize::from(a_transposed)];
                let columns = if b_transposed { &of(1)[..1] } else { &of(1)[1..] };
                [&[row], columns].concat()
            }
            Op::GroupedGemm { transposed: false } => [&of(0)[..1], &of(1)[2..]].concat(),
            Op::GroupedGemm { transposed: true } => vec![of(0)[0], of(1)[1]],
            Op::GroupedWgrad => [&of(0)[..2], &of(1)[1..]].concat(),
            Op::Swiglu => vec![of(0)[0], of(0)[2]],
            Op::SwigluGrad => of(1).to_vec(),
            // As wide as values.
            Op::Attention { .. } => [&of(0)[..3], &of(2)[3..]].concat(),
            // Of statistics, those of a query are a line of their own.
            Op::Lse | Op::AttentionStats => vec![of(0)[0], of(0)[2], of(0)[1]],
            _ => of(0).to_vec(),
        }
    }

    /// Links dimensions that an operation takes for the same.
    fn join(&self, node: &Node, lines: &mut Lines) {
        let of = |i: usize| &self.lines[node.inputs[i].index()];
        let mut same = |a: u32, b: u32, n: i64| lines.link((a, 0, n as i32), (b, 0, n as i32));
        let extent = |value: ValueId, d: usize| self.extent(value, d);
        match node.op {
            Op::Gemm { a_transposed, b_transposed } => {
                let (k, other) = (usize::from(!a_transposed), usize::from(b_transposed));
                same(of(0)[k], of(1)[other], extent(node.inputs[0], k));
            }
            Op::GroupedGemm { transposed } => {
                let summed = if transposed { 2 } else { 1 };
                for (d, line) in of(0).iter().enumerate().skip(1) {
                    same(*line, of(1)[summed + d - 1], extent(node.inputs[0], d));
                }
                self.cut_experts(node, lines);
            }
            Op::GroupedWgrad => {
                same(of(0)[0], of(1)[0], extent(node.inputs[0], 0));
                self.cut_experts(node, lines);
            }
            Op::Dispatch { .. } | Op::Combine => self.cut_tokens(node, lines),
            Op::Swiglu => lines.cut(of(0)[1], 1),
            Op::SwigluGrad => {
                for (d, other) in [(0, 0), (1, 2)] {
                    same(of(0)[d], of(1)[other], extent(node.inputs[0], d));
                }
                lines.cut(of(1)[1], 1);
            }
            Op::Dequantize => same(of(0)[0], of(1)[0], extent(node.inputs[1], 0)),
            Op::Bias => {
                let last = of(0).len() - 1;
                same(of(0)[last], of(1)[0], extent(node.inputs[1], 0));
            }
            Op::RmsNorm { .. } | Op::RmsNormGrad { .. } => {
                let last = of(0).len() - 1;
                for (i, x) in node.inputs.iter().enumerate().skip(1) {
                    let vector = of(i).len() == 1;
                    for d in 0..of(i).len() {
                        same(of(0)[if vector { last } else { d }], of(i)[d], extent(*x, d));
                    }
                }
            }
            Op::Attention { scores: Scores { causal, window, .. }, .. } => {
                // Places are one index for queries and keys where a mask compares them.
                let of_keys = if causal { &[0, 1, 3][..] } else { &[0, 3] };
                for d in of_keys {
                    same(of(0)[*d], of(1)[*d], extent(node.inputs[1], *d));
                }
                for d in 0..3 {
                    same(of(1)[d], of(2)[d], extent(node.inputs[1], d));
                }
                if let Some(keys) = window {
                    lines.apart(of(0)[1], keys);
                }
                // Every head is by itself.
                for (i, d) in [(0, 2), (1, 2)] {
                    (0..extent(node.inputs[i], d)).for_each(|at| lines.cut(of(i)[d], at as i32));
                }
            }
            Op::AttentionStats => {
                let [o, d_o, lse] = [0, 1, 2];
                for d in 0..4 {
                    same(of(o)[d], of(d_o)[d], extent(node.inputs[o], d));
                }
                for (d, other) in [(0, 0), (2, 1), (1, 2)] {
                    same(of(o)[d], of(lse)[other], extent(node.inputs[o], d));
                }
                (0..extent(node.inputs[o], 2)).for_each(|at| lines.cut(of(o)[2], at as i32));
                let own = &self.lines[node.result.index()];
                (1..extent(node.result, 3)).for_each(|at| lines.cut(own[3], at as i32));
            }
            Op::AttentionDq { scores: Scores { causal, window, .. }, .. }
            | Op::AttentionDk { scores: Scores { causal, window, .. }, .. } => {
                let [q, d_o, stats, k, v] = gradient_operands(node.op);
                let of_keys = if causal { &[0, 1, 3][..] } else { &[0, 3] };
                for d in of_keys {
                    same(of(q)[*d], of(k)[*d], extent(node.inputs[k], *d));
                }
                for d in 0..4 {
                    same(of(q)[d], of(d_o)[d], extent(node.inputs[q], d));
                    same(of(k)[d], of(v)[d], extent(node.inputs[k], d));
                }
                for (d, other) in [(0, 0), (2, 1), (1, 2)] {
                    same(of(q)[d], of(stats)[other], extent(node.inputs[q], d));
                }
                if let Some(keys) = window {
                    lines.apart(of(q)[1], keys);
                }
                for i in [q, k] {
                    (0..extent(node.inputs[i], 2)).for_each(|at| lines.cut(of(i)[2], at as i32));
                }
                (1..extent(node.inputs[stats], 3))
                    .for_each(|at| lines.cut(of(stats)[3], at as i32));
            }
            Op::Mul | Op::Add | Op::Slope(_) => {
                for d in 0..of(0).len() {
                    same(of(0)[d], of(1)[d], extent(node.inputs[0], d));
                }
            }
            _ => {}
        }
    }

    pub fn line(&self, value: ValueId, dim: usize) -> u32 {
        self.lines[value.index()][dim]
    }

    pub fn extent(&self, value: ValueId, dim: usize) -> i64 {
        self.bound.shape(value).and_then(|s| s.get(dim)).map_or(0, |n| *n as i64)
    }

    pub fn placement(&self, value: ValueId) -> Option<Placement> {
        self.program.ty(value).and_then(|t| t.placement.first().copied())
    }

    /// The place of a rank along the program's axis.
    pub fn place(&self, rank: usize) -> usize {
        self.axis.place(rank)
    }

    /// Which of the groups along it a rank is in: each has inputs of its own.
    pub fn group(&self, rank: usize) -> usize {
        self.axis.group(rank)
    }

    /// First index and length of a rank's shard of a value that is sharded: all are as long as the first, as far as
    /// there is something.
    fn shard(&self, value: ValueId, rank: usize) -> (i32, i32) {
        let Some(Placement::Shard(d)) = self.placement(value) else { return (0, 0) };
        let n = self.extent(value, d);
        let part = (n + self.ranks as i64 - 1) / self.ranks as i64;
        let at = |rank: usize| (rank as i64 * part).min(n) as i32;
        (at(rank), at(rank + 1) - at(rank))
    }

    /// First index and length of the stretches of a dimension that a rank has of a value, in order: two in zigzag.
    pub fn stretches(&self, value: ValueId, rank: usize, dim: usize) -> Vec<(i32, i32)> {
        let n = self.extent(value, dim);
        match self.placement(value) {
            Some(Placement::Shard(d)) if d == dim => vec![self.shard(value, rank)],
            Some(Placement::Zigzag(d)) if d == dim => {
                let parts = 2 * self.ranks;
                let each = (n + parts as i64 - 1) / parts as i64;
                let at = |i: usize| (i as i64 * each).min(n) as i32;
                [rank, parts - 1 - rank].map(|i| (at(i), at(i + 1) - at(i))).to_vec()
            }
            _ => vec![(0, n as i32)],
        }
    }

    /// First index and length of a rank's part of a value in each dimension; of one in zigzag the first stretch.
    pub fn part(&self, value: ValueId, rank: usize) -> Vec<(i32, i32)> {
        let n = self.bound.shape(value).map_or(0, <[u64]>::len);
        let of_dim = |d| match self.placement(value) {
            Some(Placement::Shard(s)) if s == d => self.shard(value, rank),
            _ => (0, self.extent(value, d) as i32),
        };
        (0..n).map(of_dim).collect()
    }
}

/// Where queries, gradients of results, statistics, keys and values are among the operands.
pub(super) fn gradient_operands(op: Op) -> [usize; 5] {
    if matches!(op, Op::AttentionDk { .. }) { [2, 3, 4, 0, 1] } else { [0, 1, 2, 3, 4] }
}

/// A scaled tensor, row-major.
#[derive(Clone)]
pub(super) struct Tensor<E> {
    pub shape: Vec<usize>,
    pub data: Vec<E>,
}

/// A value: the whole, or what each rank adds to it.
pub(super) enum Value<E> {
    Whole(Tensor<E>),
    Contributions(Vec<Tensor<E>>),
}

impl<E> Value<E> {
    /// What a rank has of it, where it is not sharded.
    pub fn on(&self, rank: usize) -> &Tensor<E> {
        match self {
            Value::Whole(t) => t,
            Value::Contributions(list) => &list[rank],
        }
    }
}
