//! The dimensions of a pipeline's values, and the values.

use super::{
    FieldError, Result,
    cells::{Cells, Lines},
    rope,
};
use mk_plan::{Mesh, Places};
use mk_syntax::{Bound, Def, Factors, Node, Op, Placement, Program, SCALE_BLOCK, ValueId};
use std::collections::BTreeMap;

/// Rows of each expert on each rank, by the tensor that has them.
pub(super) type Counts = BTreeMap<ValueId, Vec<Vec<i32>>>;

/// The dimensions of a program's values. Those that operations take for the same are one line.
pub(super) struct Dims<'a> {
    pub program: &'a Program,
    pub bound: &'a Bound,
    /// Ranks along the program's axes, and of the world.
    pub ranks: usize,
    pub world: usize,
    /// The program's axes in the mesh, and the others.
    places: Places,
    others: Places,
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
    ) -> Result<Dims<'a>> {
        let [places, others] = mesh.places(program.mesh_axes()).map_err(|name| {
            FieldError::Interface { what: format!("its mesh has no axis `{name}`") }
        })?;
        let ranks = places.count();
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
        let mut dims =
            Dims { program, bound, ranks, world, places, others, ragged, lines: Vec::new() };
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
            if let Some(Def::Node(Node { op: Op::AttentionDsinks, .. })) = program.def(value) {
                own.insert(0, lines.line(1));
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
                Some(Def::Node(Node { op: Op::DispatchFactors, inputs, .. })) => {
                    own = vec![dims.line(inputs[0], 0), lines.line(shape[1] as i64)];
                }
                Some(Def::Node(Node { op: Op::Factor(_), inputs, .. })) => {
                    own = vec![lines.line(shape[0] as i64), dims.line(inputs[0], 0)];
                }
                Some(Def::Node(Node { op: Op::Combine, inputs, .. })) => {
                    own[0] = dims.line(inputs[1], 0);
                }
                Some(Def::Node(Node { op: Op::CombineGrad | Op::WeighGrad, inputs, .. })) => {
                    own = [0, 1].map(|d| dims.line(inputs[1], d)).to_vec();
                }
                _ => {}
            }
            let own = if own.len() == shape.len() {
                own
            } else {
                shape.iter().map(|n| lines.line(*n as i64)).collect()
            };
            dims.lines.push(own);
            for d in dims.placements(value).iter().filter_map(|p| p.cut()) {
                let line = dims.line(value, d);
                for place in 0..ranks {
                    dims.stretches(value, place, d).iter().for_each(|(at, _)| lines.cut(line, *at));
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
            Op::GroupedGemm { transposed: true } => {
                let behind = of(1).len() + 1 - of(0).len();
                [&of(0)[..1], &of(1)[1..behind]].concat()
            }
            Op::GroupedWgrad => [&of(0)[..2], &of(1)[1..]].concat(),
            Op::Swiglu => vec![of(0)[0], of(0)[2]],
            Op::SwigluGrad => of(1).to_vec(),
            // As wide as values.
            Op::Attention { .. } => [&of(0)[..3], &of(2)[3..]].concat(),
            Op::AttentionDv => match self.program.def(node.inputs[0]) {
                Some(Def::Node(dk)) => {
                    let values = &self.lines[dk.inputs[1].index()];
                    [&of(0)[..3], &values[3..]].concat()
                }
                _ => of(0).to_vec(),
            },
            Op::AttentionDsinks => vec![of(0)[1]],
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
                let summed = if transposed { of(1).len() + 1 - of(0).len() } else { 1 };
                for (d, line) in of(0).iter().enumerate().skip(1) {
                    same(*line, of(1)[summed + d - 1], extent(node.inputs[0], d));
                }
                self.cut_experts(node, lines);
            }
            Op::GroupedWgrad => {
                same(of(0)[0], of(1)[0], extent(node.inputs[0], 0));
                self.cut_experts(node, lines);
            }
            Op::CombineGrad => {
                same(of(0)[1], of(2)[1], extent(node.inputs[0], 1));
                self.cut_tokens(node, lines);
            }
            Op::WeighGrad => {
                for d in [0, 1] {
                    same(of(0)[d], of(2)[d], extent(node.inputs[0], d));
                }
                self.cut_tokens(node, lines);
            }
            Op::Dispatch { .. } | Op::DispatchFactors | Op::Combine | Op::Weigh => {
                self.cut_tokens(node, lines)
            }
            Op::Swiglu => lines.cut(of(0)[1], 1),
            Op::SwigluGrad => {
                for (d, other) in [(0, 0), (1, 2)] {
                    same(of(0)[d], of(1)[other], extent(node.inputs[0], d));
                }
                lines.cut(of(1)[1], 1);
            }
            Op::Dequantize(factors) => {
                match factors {
                    Factors::Rows => same(of(0)[0], of(1)[0], extent(node.inputs[1], 0)),
                    Factors::Steps => same(of(0)[0], of(1)[1], extent(node.inputs[1], 1)),
                    // Of a stack, each matrix has its own.
                    Factors::Blocks => {
                        for d in 0..of(0).len() - 2 {
                            same(of(0)[d], of(1)[d], extent(node.inputs[0], d));
                        }
                    }
                }
                let [x, f] = [0, 1].map(|i| node.inputs[i]);
                self.cut_blocks(factors, x, f, lines);
            }
            Op::Quantize(_) => {
                // All blocks of rows, with factors or without a reader of them.
                let line = of(0)[1];
                for i in 1..(extent(node.inputs[0], 1) as u64).div_ceil(SCALE_BLOCK) {
                    lines.cut(line, (i * SCALE_BLOCK) as i32);
                }
            }
            Op::Factor(factors) => {
                let own = &self.lines[node.result.index()];
                same(of(0)[0], own[1], extent(node.result, 1));
                self.cut_blocks(factors, node.inputs[0], node.result, lines);
            }
            Op::Bias if of(1).len() > 1 => {
                for d in 1..of(1).len() {
                    same(of(0)[d], of(1)[d], extent(node.inputs[1], d));
                }
                let line = of(1)[0];
                (1..extent(node.inputs[1], 0)).for_each(|e| lines.cut(line, e as i32));
            }
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
            Op::Rope { .. } => {
                same(of(0)[0], of(1)[0], extent(node.inputs[0], 0));
                let lens = node.inputs[..2].iter().map(|x| extent(*x, 1) as i32);
                if let [columns, head] = lens.collect::<Vec<_>>()[..] {
                    rope::link(lines, (of(0)[1], 0), (of(1)[1], 0), [columns, head]);
                }
            }
            Op::Attention { .. } => {
                for d in [0, 3] {
                    same(of(0)[d], of(1)[d], extent(node.inputs[1], d));
                }
                for d in 0..3 {
                    same(of(1)[d], of(2)[d], extent(node.inputs[1], d));
                }
                self.mask(node, [0, 1], lines);
                if node.sinks().is_some() {
                    let heads = extent(node.inputs[0], 2) as i32;
                    lines.link((of(0)[2], 0, heads), (of(3)[0], 0, heads));
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
            Op::AttentionDsinks => {
                same(of(0)[1], of(1)[0], extent(node.inputs[1], 0));
                (0..extent(node.inputs[1], 0)).for_each(|at| lines.cut(of(1)[0], at as i32));
                (1..extent(node.inputs[0], 3)).for_each(|at| lines.cut(of(0)[3], at as i32));
            }
            Op::AttentionDq { .. } | Op::AttentionDk { .. } => {
                let [q, d_o, stats, k, v] = gradient_operands(node.op);
                for d in [0, 3] {
                    same(of(q)[d], of(k)[d], extent(node.inputs[k], d));
                }
                for d in 0..3 {
                    same(of(q)[d], of(d_o)[d], extent(node.inputs[q], d));
                    same(of(k)[d], of(v)[d], extent(node.inputs[k], d));
                }
                same(of(v)[3], of(d_o)[3], extent(node.inputs[v], 3));
                for (d, other) in [(0, 0), (2, 1), (1, 2)] {
                    same(of(q)[d], of(stats)[other], extent(node.inputs[q], d));
                }
                self.mask(node, [q, k], lines);
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

    /// What queries and keys, the operands of these numbers, see of each other.
    fn mask(&self, node: &Node, operands: [usize; 2], lines: &mut Lines) {
        let (Op::Attention { scores, .. }
        | Op::AttentionDq { scores, .. }
        | Op::AttentionDk { scores, .. }) = node.op
        else {
            return;
        };
        let [q, k] = operands.map(|i| node.inputs[i]);
        let places = self.places_of(q, k);
        if scores.causal || scores.packed {
            places.join(lines);
        }
        if let Some(begins) = self.documents(node) {
            lines.documents(places.line, begins);
        }
        if let Some(keys) = scores.window {
            lines.apart(places.line, keys);
        }
        // Every head is by itself.
        for x in [q, k] {
            (0..self.extent(x, 2)).for_each(|at| lines.cut(self.line(x, 2), at as i32));
        }
    }

    /// What shares a factor is apart from the rest, and so is its factor.
    fn cut_blocks(&self, factors: Factors, x: ValueId, f: ValueId, lines: &mut Lines) {
        let pairs = match factors {
            Factors::Rows => &[][..],
            Factors::Steps => &[(1, 0)],
            Factors::Blocks => &[(0, 0), (1, 1)],
        };
        let stack = self.lines[x.index()].len().saturating_sub(2);
        for (d, other) in pairs.iter().map(|(d, other)| (stack + d, stack + other)) {
            for i in 1..self.extent(f, other) {
                lines.cut(self.line(x, d), (i * SCALE_BLOCK as i64) as i32);
                lines.cut(self.line(f, other), i as i32);
            }
        }
    }

    pub fn line(&self, value: ValueId, dim: usize) -> u32 {
        self.lines[value.index()][dim]
    }

    /// Where documents begin in this launch, of an attention of packed sequences or of its gradients.
    pub fn documents(&self, node: &Node) -> Option<&[i32]> {
        // All ranks have the same.
        self.ragged.get(&node.documents()?)?.first().map(Vec::as_slice)
    }

    /// Where queries and keys are in their sequence, of which the last are at one place.
    pub fn places_of(&self, q: ValueId, k: ValueId) -> SequenceOf {
        let lines = [q, k].map(|x| self.line(x, 1));
        let [queries, keys] = [q, k].map(|x| self.extent(x, 1) as i32);
        let (line, both) = (lines[usize::from(keys > queries)], queries.min(keys));
        SequenceOf { line, lines, first: [keys - both, queries - both], both }
    }

    pub fn extent(&self, value: ValueId, dim: usize) -> i64 {
        self.bound.shape(value).and_then(|s| s.get(dim)).map_or(0, |n| *n as i64)
    }

    /// On each of the program's axes.
    pub fn placements(&self, value: ValueId) -> &'a [Placement] {
        self.program.ty(value).map_or(&[], |t| &t.placement)
    }

    /// The place of a rank along the program's axes: row-major over them, the last one fastest.
    pub fn place(&self, rank: usize) -> usize {
        self.places.of(rank)
    }

    /// Which of the groups along them a rank is in: each has inputs of its own.
    pub fn group(&self, rank: usize) -> usize {
        self.others.of(rank)
    }

    /// How far apart two neighbours along one of the axes are in places, and how many there are.
    pub fn along(&self, axis: usize) -> (usize, usize) {
        let sizes = self.places.sizes();
        (sizes[axis + 1..].iter().product(), sizes[axis])
    }

    /// The contributions to a value that is partial.
    pub fn over(&self, value: ValueId) -> Over {
        let placements = self.placements(value).iter().enumerate();
        let partial = placements.filter(|(_, p)| **p == Placement::Partial);
        Over(partial.map(|(axis, _)| self.along(axis)).collect())
    }

    /// First index and length of the stretches of a dimension that a place has of a value, in order: two in zigzag.
    /// Shards are as long as the first, as far as there is something; of axes that share the dimension, each cuts a
    /// shard of the one before it.
    pub fn stretches(&self, value: ValueId, place: usize, dim: usize) -> Vec<(i32, i32)> {
        let (mut first, mut n) = (0, self.extent(value, dim));
        for (axis, placement) in self.placements(value).iter().enumerate() {
            if placement.cut() != Some(dim) {
                continue;
            }
            let (stride, ranks) = self.along(axis);
            let own = place / stride % ranks;
            let zigzag = matches!(placement, Placement::Zigzag(_));
            let parts = if zigzag { 2 * ranks } else { ranks };
            let each = (n + parts as i64 - 1) / parts as i64;
            let at = |i: usize| (i as i64 * each).min(n);
            if zigzag {
                let part = |i: usize| (at(i) as i32, (at(i + 1) - at(i)) as i32);
                return vec![part(own), part(parts - 1 - own)];
            }
            (first, n) = (first + at(own), at(own + 1) - at(own));
        }
        vec![(first as i32, n as i32)]
    }

    /// First index and length of a place's part of a value in each dimension; of one in zigzag all of it.
    pub fn part(&self, value: ValueId, place: usize) -> Vec<(i32, i32)> {
        let n = self.bound.shape(value).map_or(0, <[u64]>::len);
        let zigzag = |d| self.placements(value).contains(&Placement::Zigzag(d));
        let of_dim = |d| match zigzag(d) {
            true => (0, self.extent(value, d) as i32),
            false => self.stretches(value, place, d)[0],
        };
        (0..n).map(of_dim).collect()
    }
}

/// The sequence of an attention: the longer one of queries and keys.
pub(super) struct SequenceOf {
    pub line: u32,
    /// Of queries, and of keys.
    lines: [u32; 2],
    /// The places of the first of each.
    first: [i32; 2],
    /// How many are at one place.
    both: i32,
}

impl SequenceOf {
    /// Where a mask compares places, they are one index for queries and keys.
    fn join(&self, lines: &mut Lines) {
        let ([q, k], [ahead, behind]) = (self.lines, self.first);
        lines.link((q, behind, self.both), (k, ahead, self.both));
    }

    /// The places of the first query and key in the scaled sequence.
    pub fn scaled(&self, cells: &Cells) -> [usize; 2] {
        self.first.map(|at| cells.at(self.line, at))
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

/// Axes along which ranks have contributions: how far apart neighbours are in places, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Over(Vec<(usize, usize)>);

impl Over {
    /// The number of the contribution that a place has.
    fn number(&self, place: usize) -> usize {
        self.0.iter().fold(0, |i, (stride, n)| i * n + place / stride % n)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, n)| n).product()
    }

    /// A place that has each of them.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count()).map(|mut i| {
            let mut place = 0;
            for (stride, n) in self.0.iter().rev() {
                place += i % n * stride;
                i /= n;
            }
            place
        })
    }

    /// All axes of both.
    pub fn and(&self, other: &Over) -> Over {
        let more = other.0.iter().filter(|axis| !self.0.contains(axis));
        Over(self.0.iter().chain(more).copied().collect())
    }

    /// Without one of the axes.
    pub fn without(&self, axis: (usize, usize)) -> Over {
        Over(self.0.iter().copied().filter(|a| *a != axis).collect())
    }
}

/// A value: what each place adds to it; of one that is no sum, the whole is there once.
pub(super) struct Value<E> {
    pub over: Over,
    list: Vec<Tensor<E>>,
}

impl<E> Value<E> {
    /// One that is no sum.
    pub fn whole(tensor: Tensor<E>) -> Value<E> {
        Value { over: Over::default(), list: vec![tensor] }
    }

    /// Contributions, made at a place that has each of them.
    pub fn made(over: Over, mut of: impl FnMut(usize) -> Tensor<E>) -> Value<E> {
        let list = over.places().map(&mut of).collect();
        Value { over, list }
    }

    /// What a place has of it, where it is not sharded.
    pub fn on(&self, place: usize) -> &Tensor<E> {
        &self.list[self.over.number(place)]
    }
}
