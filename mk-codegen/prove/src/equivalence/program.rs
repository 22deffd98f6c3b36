//! What a pipeline computes: the checked program, operation by operation, on scaled tensors.
//!
//! Nothing of the passes is used: a mistake of theirs cannot be in both.

use super::{
    algebra::{Algebra, Block, Function, add_row_times},
    budget::EXPONENTIAL,
    cells::Cells,
    dims::{Dims, Tensor, Value, gradient_operands},
    error::FieldError,
    launch::MAX_ELEMENTS,
    norm, ragged, softmax,
};
use mk_syntax::{Curve, DType, Def, Node, Op, Placement, ValueId};

/// Multiplications and elements that a program takes on scaled tensors, about.
fn size(dims: &Dims<'_>, cells: &Cells) -> (u64, u64) {
    let extents = |value: ValueId| -> Vec<u64> {
        dims.lines[value.index()].iter().map(|l| cells.extent(*l) as u64).collect()
    };
    let volume = |list: &[u64]| list.iter().fold(1u64, |n, x| n.saturating_mul(*x));
    let (mut work, mut elements) = (0u64, 0u64);
    for value in (0..dims.program.n_values()).map(ValueId::new) {
        let contributions = match dims.placement(value) {
            Some(Placement::Partial) => dims.ranks as u64,
            _ => 1,
        };
        let made = volume(&extents(value));
        elements = elements.saturating_add(made.saturating_mul(contributions));
        let Some(Def::Node(node)) = dims.program.def(value) else { continue };
        let of = |i: usize| extents(node.inputs[i]);
        let each = match node.op {
            Op::Gemm { a_transposed, .. } => {
                let cut = !matches!(dims.placement(node.inputs[0]), Some(Placement::Partial));
                let times = if cut { 1 } else { contributions };
                of(0)[usize::from(!a_transposed)].saturating_mul(times)
            }
            Op::GroupedGemm { transposed: false } => of(1)[1],
            Op::GroupedGemm { transposed: true } => of(1).iter().skip(2).product(),
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
                Some(Placement::Partial) => Value::Contributions(
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

/// An input, or a rank's contribution of it.
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
            (Op::GroupedGemm { .. }, Some(w)) => {
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
                Value::Contributions(list) => Value::Whole(self.sum(list)),
            },
            (Op::Dequantize, Some(scales)) => self.both(x, scales, |algebra, x, scales| {
                let width = x.data.len() / x.shape[0].max(1);
                let each = x.data.iter().enumerate();
                let data = each.map(|(i, e)| algebra.mul(*e, scales.data[i / width.max(1)]));
                Tensor { shape: x.shape.clone(), data: data.collect() }
            }),
            (Op::Bias | Op::Add, Some(y)) => self.zip(x, y, A::add),
            (Op::Mul, Some(y)) => self.zip(x, y, A::mul),
            (Op::Slope(curve), Some(y)) => {
                let f = Function::Slope(curve);
                self.zip(x, y, |a, x, y| {
                    let slope = a.apply(f, y);
                    a.mul(x, slope)
                })
            }
            (Op::Curve(curve), _) => self.map(x, |a, e| a.apply(Function::Curve(curve), e)),
            (Op::Scale(factor), _) => self.map(x, |a, e| a.scale(e, factor as f32)),
            (Op::Cast(to), _) => self.map(x, |a, e| a.apply(Function::Round(to), e)),
            (Op::RmsNorm { eps } | Op::RmsNormGrad { eps }, _) => self.norm(node, eps),
            (Op::Swiglu, _) => self.each(x, |a, t| swiglu(a, t)),
            (Op::SwigluGrad, Some(h)) => self.both(x, h, swiglu_grad),
            // The checker gives these operations two operands.
            (
                Op::Gemm { .. }
                | Op::GroupedGemm { .. }
                | Op::Dequantize
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

    /// Normalised rows, or gradients of them: the first operand of these is the gradient of the result.
    fn norm(&mut self, node: &Node, eps: f64) -> Value<A::Elem> {
        let grad = usize::from(matches!(node.op, Op::RmsNormGrad { .. }));
        let operands: Vec<_> = node.inputs.iter().map(|x| &self.values[x.index()]).collect();
        let eps = (eps as f32).to_bits();
        self.each(operands[0], |algebra, first| {
            let x = operands[grad].on(0);
            let weight = operands.get(grad + 1).map(|g| &g.on(0).data[..]);
            let cols = x.shape.last().copied().unwrap_or(0);
            let d = (grad == 1).then_some(&first.data[..]);
            let data = norm::normalised(algebra, eps, cols, &x.data, weight, d);
            Tensor { shape: x.shape.clone(), data }
        })
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
            Some(Placement::Partial) => Value::Contributions(
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
            Value::Contributions(list) => {
                Value::Contributions(list.iter().map(|t| f(self.algebra, t)).collect())
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
                Value::Contributions((0..self.dims.ranks).map(of).collect())
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
            let (mut data, mut sums) = (vec![A::ZERO; m * n], Vec::new());
            for (i, row) in data.chunks_mut(n.max(1)).enumerate() {
                if self.algebra.spent() {
                    break;
                }
                let left = |l| (l, a.data[if a_transposed { l * m + i } else { i * k + l }]);
                let left = part.clone().map(left);
                let right = |l, j| b.data[if b_transposed { j * k + l } else { l * n + j }];
                add_row_times(self.algebra, row, &mut sums, left, right);
            }
            let columns = if b_transposed { &b.shape[..1] } else { &b.shape[1..] };
            Tensor { shape: [&[m], columns].concat(), data }
        };
        if is_whole && !cut {
            Value::Whole(of(0))
        } else {
            Value::Contributions((0..dims.ranks).map(of).collect())
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
            let slope = algebra.apply(Function::Slope(Curve::Silu), *gate);
            let d = algebra.mul(*d, slope);
            data.push(algebra.mul(d, *up));
        }
        for (d, gate) in d.iter().zip(gates) {
            let gate = algebra.apply(Function::Curve(Curve::Silu), *gate);
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
            let gate = algebra.apply(Function::Curve(Curve::Silu), row[j]);
            data.push(algebra.mul(gate, row[f + j]));
        }
    }
    Tensor { shape: vec![t.shape[0], f], data }
}
