//! What a pipeline computes: the checked program, operation by operation, on scaled tensors.
//!
//! Nothing of the passes is used: a mistake of theirs cannot be in both.

use super::{
    FieldError, Result,
    algebra::{Algebra, Block, Function, add_row_times},
    budget::EXPONENTIAL,
    cells::Cells,
    dims::{Dims, Tensor, Value, gradient_operands},
    gradients::of_sink,
    launch::MAX_ELEMENTS,
    leaf::seen,
    norm, quant,
    ragged::Rows,
    rope, softmax,
};
use mk_plan::Mask;
use mk_syntax::{Curve, DType, Def, Factors, Node, Op, Placement, SCALE_BLOCK, Scores, ValueId};

/// Multiplications and elements that a program takes on scaled tensors, about.
fn size(dims: &Dims<'_>, cells: &Cells) -> (u64, u64) {
    let extents = |value: ValueId| -> Vec<u64> {
        dims.lines[value.index()].iter().map(|l| cells.extent(*l) as u64).collect()
    };
    let volume = |list: &[u64]| list.iter().fold(1u64, |n, x| n.saturating_mul(*x));
    let (mut work, mut elements) = (0u64, 0u64);
    for value in (0..dims.program.n_values()).map(ValueId::new) {
        let contributions = dims.over(value).count() as u64;
        let made = volume(&extents(value));
        elements = elements.saturating_add(made.saturating_mul(contributions));
        let Some(Def::Node(node)) = dims.program.def(value) else { continue };
        let of = |i: usize| extents(node.inputs[i]);
        let each = match node.op {
            Op::Gemm { a_transposed, .. } => {
                let inner = usize::from(!a_transposed);
                // Of K, where ranks share it, each multiplies its part.
                let shares = dims.placements(node.inputs[0]).iter().enumerate();
                let shares = shares.filter(|(_, p)| p.cut() == Some(inner));
                let shares: u64 = shares.map(|(axis, _)| dims.along(axis).1 as u64).product();
                of(0)[inner].saturating_mul(contributions) / shares.max(1)
            }
            // Where ranks share K, each multiplies its part.
            Op::GroupedGemm { .. } => of(0).iter().skip(1).product::<u64>() / contributions,
            // Each row meets one matrix.
            Op::GroupedWgrad => of(0)[0],
            // Each query with each key: scores, weights, sums; and their derivatives.
            Op::Attention { .. }
            | Op::Lse
            | Op::AttentionDq { .. }
            | Op::AttentionDk { .. }
            | Op::AttentionDv => {
                let Some((q_id, k_id, scores)) = attended(dims, node) else { continue };
                let (q, keys) = (extents(q_id), extents(k_id)[1]);
                let places = dims.places_of(q_id, k_id);
                let [ahead, behind] = places.scaled(cells);
                let seen = |mask, i: u64| {
                    let keys = (behind, keys as usize);
                    seen(mask, (cells, places.line), ahead + i as usize, keys).len() as u64
                };
                // Of a window fewer.
                let of_head = match Mask::of(scores.causal, scores.window) {
                    mask @ Mask::Window(_) => (0..q[1]).map(|i| seen(mask, i)).sum(),
                    _ => q[1].saturating_mul(keys),
                };
                let pairs = volume(&[q[0], q[2], of_head]);
                let columns = q[3];
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

/// Queries and keys of an attention, or of what goes with one, and what becomes of their scores.
fn attended(dims: &Dims<'_>, node: &Node) -> Option<(ValueId, ValueId, Scores)> {
    match node.op {
        Op::Attention { scores, .. } => Some((node.inputs[0], node.inputs[1], scores)),
        Op::AttentionDq { scores, .. } | Op::AttentionDk { scores, .. } => {
            let [q, _, _, k, _] = gradient_operands(node.op);
            Some((node.inputs[q], node.inputs[k], scores))
        }
        Op::Lse | Op::AttentionDv => match dims.program.def(*node.inputs.first()?)? {
            Def::Node(first) if !matches!(first.op, Op::Lse | Op::AttentionDv) => {
                attended(dims, first)
            }
            _ => None,
        },
        _ => None,
    }
}

/// All values of a program on one of the groups along its axes, where that takes no more than so many multiplications.
pub(super) fn evaluate<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    group: usize,
    most: u64,
) -> Result<Vec<Value<A::Elem>>> {
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
            _ => {
                let over = dims.over(value);
                let partial =
                    over.count() > 1 || dims.placements(value).contains(&Placement::Partial);
                let of =
                    |place| input(algebra, dims, cells, value, (group, partial.then_some(place)));
                Value::made(over, of)
            }
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
        let operands: Vec<_> = node.inputs.iter().map(|x| values[x.index()].on(0)).collect();
        let rows = Rows { algebra: self.algebra, dims: self.dims, cells: self.cells, node };
        if let Some(made) = rows.made(&operands) {
            return Value::whole(made);
        }
        match (node.op, y) {
            // No plan has a `view`: `evaluate` refuses it.
            (Op::Gather { .. } | Op::AllToAll { .. } | Op::View | Op::Cast(DType::F32), _) => {
                self.each(x, |_, t| t.clone())
            }
            (Op::Attention { .. }, _) => Value::whole(self.attention(node)[0].clone()),
            (Op::Lse, _) => match self.dims.program.def(node.inputs[0]) {
                Some(Def::Node(attention)) => Value::whole(self.attention(attention)[1].clone()),
                _ => self.each(x, |_, t| t.clone()),
            },
            (Op::AttentionStats, _) => Value::whole(self.statistics(node)),
            (Op::AttentionDsinks, Some(sinks)) => self.of_sinks(node, x, sinks),
            (Op::AttentionDq { .. } | Op::AttentionDk { .. }, _) => self.gradients(node, 0),
            (Op::AttentionDv, _) => match self.dims.program.def(node.inputs[0]) {
                Some(Def::Node(gradients)) => self.gradients(gradients, 1),
                _ => self.each(x, |_, t| t.clone()),
            },
            (Op::Gemm { .. }, Some(y)) => self.gemm(node, x, y),
            (Op::GroupedGemm { .. }, Some(w)) => self.grouped(node, x, w),
            (Op::CombineGrad | Op::WeighGrad, _) => {
                let (dims, cells) = (self.dims, self.cells);
                self.both(x, &values[node.inputs[2].index()], |algebra, y, dy| {
                    Rows { algebra, dims, cells, node }.products([y, dy])
                })
            }
            (Op::Combine, _) => {
                let (dims, cells) = (self.dims, self.cells);
                self.both(x, &values[node.inputs[2].index()], |algebra, y, weights| {
                    Rows { algebra, dims, cells, node }.combined([y, weights])
                })
            }
            (Op::ReduceScatter { axis, .. } | Op::AllReduce { axis }, _) => {
                self.sum(x, self.dims.along(axis.index()))
            }
            (Op::Dequantize(factors), Some(scales)) => {
                let (dims, cells) = (self.dims, self.cells);
                let stack = dims.lines[node.inputs[0].index()].len().saturating_sub(2);
                let of = |d: usize| dims.line(node.inputs[0], stack + d);
                let to = |d: usize| dims.line(node.inputs[1], stack + d);
                self.both(x, scales, |algebra, x, scales| {
                    let [height, width] = [x.shape[stack].max(1), x.shape[stack + 1].max(1)];
                    let wide = scales.shape.get(stack + 1).copied().unwrap_or(1);
                    let each = scales.shape[stack..].iter().product::<usize>();
                    let mut data = Vec::with_capacity(x.data.len());
                    for (i, e) in x.data.iter().enumerate() {
                        let (row, column) = (i / width % height, i % width);
                        // Of a stack, the matrix's own.
                        let first = i / width / height * each;
                        let block = |d: usize, at: usize| {
                            (cells.original(of(d), at) / SCALE_BLOCK as i64) as i32
                        };
                        let at = match factors {
                            Factors::Rows => row,
                            Factors::Steps => cells.at(to(0), block(1, column)) * wide + row,
                            Factors::Blocks => {
                                let rows = cells.at(to(0), block(0, row));
                                rows * wide + cells.at(to(1), block(1, column))
                            }
                        };
                        data.push(algebra.mul(*e, scales.data[first + at]));
                    }
                    Tensor { shape: x.shape.clone(), data }
                })
            }
            (Op::Quantize(_), _) => self.quantised(node, x).0,
            (Op::Factor(_), _) => match self.dims.program.def(node.inputs[0]) {
                Some(Def::Node(made)) => {
                    let x = &values[made.inputs[0].index()];
                    self.quantised(made, x).1
                }
                _ => self.each(x, |_, t| t.clone()),
            },
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
            (Op::Rope { back }, _) => self.rope(node, back),
            (Op::Swiglu, _) => self.each(x, |a, t| swiglu(a, t)),
            (Op::SwigluGrad, Some(h)) => self.both(x, h, swiglu_grad),
            // Most rows of experts are made above; the checker gives the others two operands.
            (
                Op::GroupedGemm { .. }
                | Op::GroupedWgrad
                | Op::Dispatch { .. }
                | Op::DispatchFactors
                | Op::AttentionDsinks
                // Integers: `integers` has them.
                | Op::Dropped
                | Op::Weigh
                | Op::Gemm { .. }
                | Op::Dequantize(_)
                | Op::Bias
                | Op::Add
                | Op::Mul
                | Op::Slope(_)
                | Op::SwigluGrad,
                _,
            ) => self.each(x, |_, t| t.clone()),
        }
    }

    /// What `quantize` makes: rows, and the factors `[blocks, rows]` of their blocks.
    fn quantised(&mut self, node: &Node, x: &Value<A::Elem>) -> (Value<A::Elem>, Value<A::Elem>) {
        let (line, cells) = (self.dims.line(node.inputs[0], 1), self.cells);
        let x = x.on(0);
        let (rows, columns) = (x.shape[0], x.shape[1].max(1));
        let of: Vec<usize> = (0..x.shape[1])
            .map(|at| (cells.original(line, at) / SCALE_BLOCK as i64) as usize)
            .collect();
        let blocks = of.last().map_or(0, |b| b + 1);
        let place = |i: usize| of[i % columns] * rows + i / columns;
        let made = quant::quantised(self.algebra, node.ty.dtype, &x.data, blocks * rows, place);
        let values = Tensor { shape: x.shape.clone(), data: made.values };
        let factors = Tensor { shape: vec![blocks, rows], data: made.factors };
        (Value::whole(values), Value::whole(factors))
    }

    fn attention(&mut self, node: &Node) -> [Tensor<A::Elem>; 2] {
        let values = self.values;
        let operands = [0, 1, 2].map(|i| values[node.inputs[i].index()].on(0));
        let sinks = node.sinks().map(|id| values[id.index()].on(0));
        softmax::attention(self.algebra, self.dims, self.cells, node, operands, sinks)
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

    /// Turned heads; of rows that are not whole heads, which no plan has, what is turned.
    fn rope(&mut self, node: &Node, back: bool) -> Value<A::Elem> {
        let [x, t] = [0, 1].map(|i| &self.values[node.inputs[i].index()]);
        self.each(x, |algebra, x| {
            let t = t.on(0);
            let columns = [x, t].map(|t| t.shape.last().copied().unwrap_or(0));
            let data = rope::turned(algebra, back, columns, &x.data, &t.data);
            Tensor { shape: x.shape.clone(), data: data.unwrap_or_else(|| x.data.clone()) }
        })
    }

    fn statistics(&mut self, node: &Node) -> Tensor<A::Elem> {
        let values = self.values;
        let operands = [0, 1, 2].map(|i| values[node.inputs[i].index()].on(0));
        softmax::statistics(self.algebra, operands)
    }

    /// Gradients of sinks: what the queries of each rank give, where these are parts of all.
    fn of_sinks(
        &mut self,
        node: &Node,
        stats: &Value<A::Elem>,
        sinks: &Value<A::Elem>,
    ) -> Value<A::Elem> {
        let (dims, cells, of) = (self.dims, self.cells, node.inputs[0]);
        let (stats, sinks) = (stats.on(0), sinks.on(0));
        let wide = stats.shape[3];
        let is_partial = node.ty.placement.contains(&Placement::Partial);
        Value::made(dims.over(node.result), |place| {
            let [batch, rows] = [0, 2].map(|d| {
                let line = dims.line(of, d);
                let stretches = match is_partial {
                    true => dims.stretches(of, place, d),
                    false => vec![(0, dims.extent(of, d) as i32)],
                };
                let scaled = |(at, len): &(i32, i32)| cells.at(line, *at)..cells.at(line, at + len);
                stretches.iter().flat_map(scaled).collect::<Vec<_>>()
            });
            let head = |(h, sink): (usize, &A::Elem)| {
                let at =
                    |b: &usize, i: &usize| ((b * stats.shape[1] + h) * stats.shape[2] + i) * wide;
                let all = batch.iter().flat_map(|b| rows.iter().map(move |i| at(b, i)));
                let all = all.map(|at| &stats.data[at..at + wide]);
                let sum = of_sink(self.algebra, *sink, all);
                self.algebra.settled(sum)
            };
            let data: Vec<_> = sinks.data.iter().enumerate().map(head).collect();
            Tensor { shape: vec![1, data.len()], data }
        })
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
        match node.ty.placement.contains(&Placement::Partial) {
            true => {
                Value::made(dims.over(node.result), |place| of(Some(place)).unwrap_or_else(empty))
            }
            false => Value::whole(of(None).unwrap_or_else(empty)),
        }
    }

    fn each(
        &mut self,
        x: &Value<A::Elem>,
        mut f: impl FnMut(&mut A, &Tensor<A::Elem>) -> Tensor<A::Elem>,
    ) -> Value<A::Elem> {
        Value::made(x.over.clone(), |place| f(self.algebra, x.on(place)))
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
        Value::made(x.over.and(&y.over), |place| f(self.algebra, x.on(place), y.on(place)))
    }

    /// The sum over the ranks along an axis, where they have contributions.
    fn sum(&mut self, x: &Value<A::Elem>, axis: (usize, usize)) -> Value<A::Elem> {
        let over = x.over.without(axis);
        let (stride, n) = if over == x.over { (0, 1) } else { axis };
        Value::made(over, |place| {
            let mut total = x.on(place).clone();
            for i in 1..n {
                for (sum, e) in total.data.iter_mut().zip(&x.on(place + i * stride).data) {
                    *sum = self.algebra.add(*sum, *e);
                }
            }
            total
        })
    }

    /// Rows by the matrices of their experts; where K is sharded, each rank's part of it.
    fn grouped(&mut self, node: &Node, x: &Value<A::Elem>, w: &Value<A::Elem>) -> Value<A::Elem> {
        let (dims, cells) = (self.dims, self.cells);
        let shape = &x.on(0).shape;
        let all = 0..shape.iter().skip(1).product();
        // Of gates and ups, which are beside each other, columns are shared, and K is of two dimensions.
        let last = shape.len() - 1;
        let cut = dims.placements(node.inputs[0]).iter().any(|p| p.cut() == Some(last));
        Value::made(dims.over(node.result), |place| {
            let part = match cut && last == 1 {
                true => {
                    let (base, len) = dims.part(node.inputs[0], place)[last];
                    let line = dims.line(node.inputs[0], last);
                    cells.at(line, base)..cells.at(line, base + len)
                }
                false => all.clone(),
            };
            let of = [x.on(place), w.on(place)];
            Rows { algebra: self.algebra, dims, cells, node }.product(of, part)
        })
    }

    /// A product; where K is sharded, each rank's part of it.
    fn gemm(&mut self, node: &Node, x: &Value<A::Elem>, y: &Value<A::Elem>) -> Value<A::Elem> {
        let Op::Gemm { a_transposed, b_transposed } = node.op else {
            return self.each(x, |_, t| t.clone());
        };
        let inner = usize::from(!a_transposed);
        let k = x.on(0).shape[inner];
        let (dims, cells) = (self.dims, self.cells);
        let cut = dims.placements(node.inputs[0]).iter().any(|p| p.cut() == Some(inner));
        Value::made(dims.over(node.result), |place| {
            let part = if cut {
                let (base, len) = dims.part(node.inputs[0], place)[inner];
                let line = dims.line(node.inputs[0], inner);
                cells.at(line, base)..cells.at(line, base + len)
            } else {
                0..k
            };
            let (a, b) = (x.on(place), y.on(place));
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
        })
    }
}

/// `[m, f]` and `[m, 2, f]` `-> [m, 2, f]`.
pub(super) fn swiglu_grad<A: Algebra>(
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
pub(super) fn swiglu<A: Algebra>(algebra: &mut A, t: &Tensor<A::Elem>) -> Tensor<A::Elem> {
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
