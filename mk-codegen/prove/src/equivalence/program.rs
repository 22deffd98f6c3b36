//! What a pipeline computes: the checked program, operation by operation, on scaled tensors.
//!
//! Nothing of the passes is used: a mistake of theirs cannot be in both.

use super::{
    algebra::{Algebra, Block, Function},
    budget::EXPONENTIAL,
    cells::{Cells, Lines},
    error::FieldError,
    launch::MAX_ELEMENTS,
    ragged::{self, Counts},
    softmax,
};
use mk_plan::{Axis, Mesh};
use mk_syntax::{Bound, Curve, DType, Def, Node, Op, Placement, Program, ValueId};

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
    lines: Vec<Vec<u32>>,
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
            Op::GroupedGemm => [&of(0)[..1], &of(1)[2..]].concat(),
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
            Op::GroupedGemm => {
                same(of(0)[1], of(1)[1], extent(node.inputs[0], 1));
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
            Op::Bias => {
                let last = of(0).len() - 1;
                same(of(0)[last], of(1)[0], extent(node.inputs[1], 0));
            }
            Op::Attention { causal, .. } => {
                // Places are one index for queries and keys where a mask compares them.
                let of_keys = if causal { &[0, 1, 3][..] } else { &[0, 3] };
                for d in of_keys {
                    same(of(0)[*d], of(1)[*d], extent(node.inputs[1], *d));
                }
                for d in 0..3 {
                    same(of(1)[d], of(2)[d], extent(node.inputs[1], d));
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
            Op::AttentionDq { causal, .. } | Op::AttentionDk { causal, .. } => {
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

    /// First index and length of a rank's shard of a value that is sharded: all are as long as the first, as far as there is something.
    fn shard(&self, value: ValueId, rank: usize) -> (i32, i32) {
        let Some(Placement::Shard(d)) = self.placement(value) else { return (0, 0) };
        let n = self.extent(value, d);
        let part = (n + self.ranks as i64 - 1) / self.ranks as i64;
        let at = |rank: usize| (rank as i64 * part).min(n) as i32;
        (at(rank), at(rank + 1) - at(rank))
    }

    /// First index and length of the stretches of a dimension that a rank has of a value, one behind the other: two in zigzag.
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
    Summands(Vec<Tensor<E>>),
}

impl<E> Value<E> {
    /// What a rank has of it, where it is not sharded.
    pub fn on(&self, rank: usize) -> &Tensor<E> {
        match self {
            Value::Whole(t) => t,
            Value::Summands(list) => &list[rank],
        }
    }
}

/// Multiplications and elements that a program takes on scaled tensors, about.
fn size(dims: &Dims<'_>, cells: &Cells) -> (u64, u64) {
    let extents = |value: ValueId| -> Vec<u64> {
        dims.lines[value.index()].iter().map(|l| cells.extent(*l) as u64).collect()
    };
    let volume = |list: &[u64]| list.iter().fold(1u64, |n, x| n.saturating_mul(*x));
    let (mut work, mut elements) = (0u64, 0u64);
    for value in (0..dims.program.n_values()).map(ValueId::new) {
        let summands = match dims.placement(value) {
            Some(Placement::Partial) => dims.ranks as u64,
            _ => 1,
        };
        let made = volume(&extents(value));
        elements = elements.saturating_add(made.saturating_mul(summands));
        let Some(Def::Node(node)) = dims.program.def(value) else { continue };
        let of = |i: usize| extents(node.inputs[i]);
        let each = match node.op {
            Op::Gemm { a_transposed, .. } => {
                let cut = !matches!(dims.placement(node.inputs[0]), Some(Placement::Partial));
                let times = if cut { 1 } else { summands };
                of(0)[usize::from(!a_transposed)].saturating_mul(times)
            }
            Op::GroupedGemm => of(1)[1],
            // Each query with each key: scores, weights, sums; and their derivatives.
            Op::Attention { .. }
            | Op::Lse
            | Op::AttentionDq { .. }
            | Op::AttentionDk { .. }
            | Op::AttentionDv => {
                let (q, keys) = (of(0), of(node.inputs.len().min(2) - 1));
                let (rows, columns) = (q.get(..3), q.get(3).copied().unwrap_or(1));
                let pairs =
                    rows.map_or(0, volume).saturating_mul(keys.get(1).copied().unwrap_or(1));
                let times = if matches!(node.op, Op::Attention { .. } | Op::Lse) { 2 } else { 5 };
                work = work.saturating_add(pairs.saturating_mul(times * columns + EXPONENTIAL));
                0
            }
            _ => 0,
        };
        work = work.saturating_add(made.saturating_mul(each));
    }
    (work, elements)
}

/// All values of a program on one of the groups along its axis, where that takes no more than so many multiplications.
pub(super) fn evaluate<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    group: usize,
    most: u64,
) -> Result<Vec<Value<A::Elem>>, FieldError> {
    let (work, elements) = size(dims, cells);
    if elements > MAX_ELEMENTS as u64 {
        return Err(FieldError::TooLarge { what: "elements of the pipeline's values".into() });
    }
    if work > most {
        return Err(FieldError::multiplications());
    }
    let mut values: Vec<Value<A::Elem>> = Vec::new();
    for i in 0..dims.program.n_values() {
        let value = ValueId::new(i);
        let made = match dims.program.def(value) {
            Some(Def::Node(node)) => Evaluator { algebra, dims, cells, values: &values }.node(node),
            _ => match dims.placement(value) {
                Some(Placement::Partial) => Value::Summands(
                    (0..dims.ranks)
                        .map(|r| input(algebra, dims, cells, value, (group, Some(r))))
                        .collect(),
                ),
                _ => Value::Whole(input(algebra, dims, cells, value, (group, None))),
            },
        };
        values.push(made);
        if algebra.spent() {
            return Err(FieldError::explanation());
        }
    }
    Ok(values)
}

/// An input, or a rank's summand of it.
fn input<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    value: ValueId,
    (group, rank): (usize, Option<usize>),
) -> Tensor<A::Elem> {
    let lines = &dims.lines[value.index()];
    let shape: Vec<usize> = lines.iter().map(|l| cells.extent(*l)).collect();
    let mut at = vec![0; shape.len()];
    let mut block = Block { tensor: value.index(), group, rank, cells: vec![0; shape.len()] };
    let len = shape.iter().product();
    let mut data = Vec::with_capacity(len);
    for _ in 0..len {
        data.push(algebra.input(&block, &at));
        for d in (0..shape.len()).rev() {
            at[d] += 1;
            if at[d] < shape[d] {
                block.cells[d] = cells.cell(lines[d], at[d]);
                break;
            }
            (at[d], block.cells[d]) = (0, 0);
        }
    }
    Tensor { shape, data }
}

struct Evaluator<'e, A: Algebra> {
    algebra: &'e mut A,
    dims: &'e Dims<'e>,
    cells: &'e Cells,
    values: &'e [Value<A::Elem>],
}

impl<A: Algebra> Evaluator<'_, A> {
    fn node(&mut self, node: &Node) -> Value<A::Elem> {
        let values = self.values;
        let x = &values[node.inputs[0].index()];
        let y = node.inputs.get(1).map(|y| &values[y.index()]);
        match (node.op, y) {
            (Op::Gather { .. }, _) | (Op::Cast(DType::F32), _) => self.each(x, |_, t| t.clone()),
            (Op::Attention { .. }, _) => Value::Whole(self.attention(node)[0].clone()),
            (Op::Lse, _) => match self.dims.program.def(node.inputs[0]) {
                Some(Def::Node(attention)) => Value::Whole(self.attention(attention)[1].clone()),
                _ => self.each(x, |_, t| t.clone()),
            },
            (Op::AttentionStats, _) => Value::Whole(self.statistics(node)),
            (Op::AttentionDq { .. } | Op::AttentionDk { .. }, _) => self.gradients(node, 0),
            (Op::AttentionDv, _) => match self.dims.program.def(node.inputs[0]) {
                Some(Def::Node(gradients)) => self.gradients(gradients, 1),
                _ => self.each(x, |_, t| t.clone()),
            },
            (Op::Gemm { .. }, Some(y)) => self.gemm(node, x, y),
            (Op::GroupedGemm, Some(w)) => {
                let of = [x.on(0), w.on(0)];
                Value::Whole(ragged::product(self.algebra, self.dims, self.cells, node, of))
            }
            (Op::Dispatch { .. }, _) => {
                let (dims, cells) = (self.dims, self.cells);
                Value::Whole(ragged::dispatched::<A>(dims, cells, node, x.on(0)))
            }
            (Op::Combine, _) => {
                let of = [x.on(0), values[node.inputs[2].index()].on(0)];
                Value::Whole(ragged::combined(self.algebra, self.dims, self.cells, node, of))
            }
            (Op::ReduceScatter { .. } | Op::AllReduce { .. }, _) => match x {
                Value::Whole(t) => Value::Whole(t.clone()),
                Value::Summands(list) => Value::Whole(self.sum(list)),
            },
            (Op::Bias | Op::Add, Some(y)) => self.zip(x, y, A::add),
            (Op::Mul, Some(y)) => self.zip(x, y, A::mul),
            (Op::Slope(curve), Some(y)) => {
                let f = match curve {
                    Curve::Gelu => Function::GeluSlope,
                    Curve::GeluTanh => Function::GeluTanhSlope,
                    Curve::Silu => Function::SiluSlope,
                    Curve::Relu => Function::ReluSlope,
                };
                self.zip(x, y, |a, x, y| {
                    let slope = a.apply(f, y);
                    a.mul(x, slope)
                })
            }
            (Op::GeluTanh, _) => self.map(x, |a, e| a.apply(Function::GeluTanh, e)),
            (Op::Gelu, _) => self.map(x, |a, e| a.apply(Function::Gelu, e)),
            (Op::Silu, _) => self.map(x, |a, e| a.apply(Function::Silu, e)),
            (Op::Relu, _) => self.map(x, |a, e| a.apply(Function::Relu, e)),
            (Op::Scale(factor), _) => self.map(x, |a, e| a.scale(e, factor as f32)),
            // Nothing is cast to integers.
            (Op::Cast(DType::I32 | DType::I64), _) => self.each(x, |_, t| t.clone()),
            (Op::Cast(DType::Bf16), _) => self.map(x, |a, e| a.apply(Function::RoundBf16, e)),
            (Op::Cast(DType::F16), _) => self.map(x, |a, e| a.apply(Function::RoundF16, e)),
            (Op::Swiglu, _) => self.each(x, |a, t| swiglu(a, t)),
            (Op::SwigluGrad, Some(h)) => self.both(x, h, swiglu_grad),
            // The checker gives these operations two operands.
            (
                Op::Gemm { .. }
                | Op::GroupedGemm
                | Op::Bias
                | Op::Add
                | Op::Mul
                | Op::Slope(_)
                | Op::SwigluGrad,
                None,
            ) => self.each(x, |_, t| t.clone()),
        }
    }

    fn attention(&mut self, node: &Node) -> [Tensor<A::Elem>; 2] {
        let values = self.values;
        let operands = [0, 1, 2].map(|i| values[node.inputs[i].index()].on(0));
        softmax::attention(self.algebra, self.dims, self.cells, node, operands)
    }

    fn statistics(&mut self, node: &Node) -> Tensor<A::Elem> {
        let values = self.values;
        let operands = [0, 1, 2].map(|i| values[node.inputs[i].index()].on(0));
        softmax::statistics(self.algebra, operands)
    }

    /// Gradients of queries, or of keys (0) and values (1); of keys that all ranks have, what each rank's queries give.
    fn gradients(&mut self, node: &Node, which: usize) -> Value<A::Elem> {
        let (values, dims, cells) = (self.values, self.dims, self.cells);
        let at = gradient_operands(node.op);
        let operands = at.map(|i| values[node.inputs[i].index()].on(0));
        let queries = node.inputs[at[0]];
        let mut of = |rank: Option<usize>| {
            let line = dims.line(queries, 1);
            let stretches = match rank {
                Some(rank) => dims.stretches(queries, rank, 1),
                None => vec![(0, dims.extent(queries, 1) as i32)],
            };
            let scaled = |(at, len): &(i32, i32)| cells.at(line, *at)..cells.at(line, at + len);
            let rows: Vec<_> = stretches.iter().flat_map(scaled).collect();
            let all = softmax::gradients(self.algebra, dims, cells, node, operands, &rows);
            all.into_iter().nth(which)
        };
        let empty = || Tensor { shape: vec![0], data: Vec::new() };
        match node.ty.placement.first() {
            Some(Placement::Partial) => Value::Summands(
                (0..dims.ranks).map(|rank| of(Some(rank)).unwrap_or_else(empty)).collect(),
            ),
            _ => Value::Whole(of(None).unwrap_or_else(empty)),
        }
    }

    fn each(
        &mut self,
        x: &Value<A::Elem>,
        mut f: impl FnMut(&mut A, &Tensor<A::Elem>) -> Tensor<A::Elem>,
    ) -> Value<A::Elem> {
        match x {
            Value::Whole(t) => Value::Whole(f(self.algebra, t)),
            Value::Summands(list) => {
                Value::Summands(list.iter().map(|t| f(self.algebra, t)).collect())
            }
        }
    }

    fn map(
        &mut self,
        x: &Value<A::Elem>,
        mut f: impl FnMut(&mut A, A::Elem) -> A::Elem,
    ) -> Value<A::Elem> {
        self.each(x, |a, t| Tensor {
            shape: t.shape.clone(),
            data: t.data.iter().map(|e| f(a, *e)).collect(),
        })
    }

    /// Element by element; a vector is added to, or multiplied by, each row.
    fn zip(
        &mut self,
        x: &Value<A::Elem>,
        y: &Value<A::Elem>,
        f: impl Fn(&mut A, A::Elem, A::Elem) -> A::Elem,
    ) -> Value<A::Elem> {
        self.both(x, y, |algebra, x, y| {
            let others = y.data.iter().cycle();
            let data = x.data.iter().zip(others).map(|(x, y)| f(algebra, *x, *y)).collect();
            Tensor { shape: x.shape.clone(), data }
        })
    }

    /// Of two values, on every rank where they differ.
    fn both(
        &mut self,
        x: &Value<A::Elem>,
        y: &Value<A::Elem>,
        f: impl Fn(&mut A, &Tensor<A::Elem>, &Tensor<A::Elem>) -> Tensor<A::Elem>,
    ) -> Value<A::Elem> {
        match (x, y) {
            (Value::Whole(x), Value::Whole(y)) => Value::Whole(f(self.algebra, x, y)),
            _ => {
                let of = |rank| f(self.algebra, x.on(rank), y.on(rank));
                Value::Summands((0..self.dims.ranks).map(of).collect())
            }
        }
    }

    fn sum(&mut self, list: &[Tensor<A::Elem>]) -> Tensor<A::Elem> {
        let mut total = list[0].clone();
        for t in &list[1..] {
            for (x, y) in total.data.iter_mut().zip(&t.data) {
                *x = self.algebra.add(*x, *y);
            }
        }
        total
    }

    /// A product; where the inner dimension is sharded, each rank's part of it.
    fn gemm(&mut self, node: &Node, x: &Value<A::Elem>, y: &Value<A::Elem>) -> Value<A::Elem> {
        let Op::Gemm { a_transposed, b_transposed } = node.op else {
            return self.each(x, |_, t| t.clone());
        };
        let inner = usize::from(!a_transposed);
        let k = x.on(0).shape[inner];
        let is_whole = matches!((x, y), (Value::Whole(_), Value::Whole(_)));
        let cut = is_whole && node.ty.placement.first() == Some(&Placement::Partial);
        let (dims, cells) = (self.dims, self.cells);
        let mut of = |rank: usize| {
            let part = if cut {
                let (base, len) = dims.part(node.inputs[0], rank)[inner];
                let line = dims.line(node.inputs[0], inner);
                cells.at(line, base)..cells.at(line, base + len)
            } else {
                0..k
            };
            let a = x.on(rank);
            let b = y.on(rank);
            let m = a.shape[1 - inner];
            let n = b.data.len() / b.shape[usize::from(b_transposed)].max(1);
            let mut data = vec![A::ZERO; m * n];
            for (i, row) in data.chunks_mut(n.max(1)).enumerate() {
                if self.algebra.spent() {
                    break;
                }
                for l in part.clone() {
                    let left = a.data[if a_transposed { l * m + i } else { i * k + l }];
                    for (j, sum) in row.iter_mut().enumerate() {
                        let right = b.data[if b_transposed { j * k + l } else { l * n + j }];
                        let product = self.algebra.mul(left, right);
                        *sum = self.algebra.add(*sum, product);
                    }
                }
            }
            let columns = if b_transposed { &b.shape[..1] } else { &b.shape[1..] };
            Tensor { shape: [&[m], columns].concat(), data }
        };
        if is_whole && !cut {
            Value::Whole(of(0))
        } else {
            Value::Summands((0..dims.ranks).map(of).collect())
        }
    }
}

/// `[m, f]` and `[m, 2, f]` `-> [m, 2, f]`.
fn swiglu_grad<A: Algebra>(
    algebra: &mut A,
    d: &Tensor<A::Elem>,
    h: &Tensor<A::Elem>,
) -> Tensor<A::Elem> {
    let f = h.shape[2].max(1);
    let mut data = Vec::with_capacity(h.data.len());
    for (d, h) in d.data.chunks(f).zip(h.data.chunks(2 * f)) {
        let (gates, ups) = h.split_at(f);
        for (d, (gate, up)) in d.iter().zip(gates.iter().zip(ups)) {
            let slope = algebra.apply(Function::SiluSlope, *gate);
            let d = algebra.mul(*d, slope);
            data.push(algebra.mul(d, *up));
        }
        for (d, gate) in d.iter().zip(gates) {
            let gate = algebra.apply(Function::Silu, *gate);
            data.push(algebra.mul(*d, gate));
        }
    }
    Tensor { shape: h.shape.clone(), data }
}

/// `[m, 2, f] -> [m, f]`.
fn swiglu<A: Algebra>(algebra: &mut A, t: &Tensor<A::Elem>) -> Tensor<A::Elem> {
    let f = t.shape[2];
    let mut data = Vec::with_capacity(t.shape[0] * f);
    for row in t.data.chunks(2 * f.max(1)) {
        for j in 0..f {
            let gate = algebra.apply(Function::Silu, row[j]);
            data.push(algebra.mul(gate, row[f + j]));
        }
    }
    Tensor { shape: vec![t.shape[0], f], data }
}
