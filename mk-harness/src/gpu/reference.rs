//! The fp32 reference: every rank evaluates the pipeline on what it holds, by the plain kernels of
//! [`mk_runtime::reference`]; collectives are copies and sums. Intermediate values are f32.

use super::setting::Setting;
use crate::{HarnessError, Layout, Result, routing};
use mk_abi::DType;
use mk_runtime::{
    DeviceTensor, MapOp, Operand,
    reference::{Attend, Places},
};
use mk_syntax::{AxisId, Def, Factors, Node, Op, Program, SCALE_BLOCK, Scores, ValueId};

/// A value on one rank.
enum Local<'s> {
    /// What the caller gave.
    Input(&'s DeviceTensor),
    Made(DeviceTensor),
}

impl Local<'_> {
    fn tensor(&self) -> &DeviceTensor {
        match self {
            Local::Input(t) => t,
            Local::Made(t) => t,
        }
    }
}

type Values<'s> = Vec<Vec<Local<'s>>>;

/// What each rank should hold of each result, by result and rank.
pub(super) fn evaluate(s: &Setting<'_>) -> Result<Vec<Vec<DeviceTensor>>> {
    let program = s.case.program;
    // The last node that reads a value; results are kept.
    let mut last = vec![0; program.n_values()];
    for node in program.nodes() {
        let reads = made_with(program, node).into_iter().chain([node]).flat_map(|n| &n.inputs);
        reads.for_each(|i| last[i.index()] = node.result.index());
    }
    program.results().iter().for_each(|r| last[r.index()] = usize::MAX);
    let mut values: Values<'_> = Vec::new();
    for index in 0..program.n_values() {
        let id = ValueId::new(index);
        let of_rank = |rank| match program.def(id) {
            Some(Def::Param(p)) => s.held(rank, p).map(Local::Input).ok_or_else(|| {
                HarnessError::mismatch(format!("the kernel does not take `{}`", p.name))
            }),
            Some(Def::Node(node)) => {
                Evaluator { s, values: &values, rank }.node(node).map(Local::Made)
            }
            None => Err(HarnessError::mismatch("a value of another program")),
        };
        let made = (0..s.grid.world).map(of_rank).collect::<Result<Vec<_>, _>>()?;
        values.push(made);
        for (i, value) in values.iter_mut().enumerate() {
            if last[i] <= index && index >= program.tensors().len() {
                value.clear();
            }
        }
    }
    let result = |id: &ValueId| {
        let locals = values.get(id.index()).map_or(&[][..], Vec::as_slice);
        locals.iter().enumerate().map(|(rank, t)| widened(s, rank, t.tensor())).collect()
    };
    program.results().iter().map(result).collect()
}

/// The attention whose logarithms a node takes, the gradients of keys that it has the values' beside, or the quantised
/// rows whose factors it is: of their operands it is computed.
fn made_with<'p>(program: &'p Program, node: &Node) -> Option<&'p Node> {
    match (node.op, node.inputs.first().and_then(|o| program.def(*o))) {
        (Op::Lse | Op::AttentionDv | Op::Factor(_), Some(Def::Node(made))) => Some(made),
        _ => None,
    }
}

fn widened(s: &Setting<'_>, rank: usize, t: &DeviceTensor) -> Result<DeviceTensor> {
    let out = DeviceTensor::new(s.world, rank as u32, DType::F32, t.shape())?;
    if out.elements() > 0 {
        s.reference.map(MapOp::Cast, &out, t, None)?;
    }
    Ok(out)
}

pub(super) struct Evaluator<'e, 's> {
    pub(super) s: &'e Setting<'s>,
    values: &'e Values<'e>,
    pub(super) rank: usize,
}

impl Evaluator<'_, '_> {
    pub(super) fn layout(&self, id: ValueId, rank: usize) -> Result<Layout> {
        let case = self.s.case;
        let placements = case.program.ty(id).map_or(&[][..], |t| &t.placement);
        let shape = case.bound.shape(id).unwrap_or(&[]);
        self.s.grid.sizes.layout(shape, placements, self.s.grid.of(rank).1)
    }

    pub(super) fn on(&self, id: ValueId, rank: usize) -> Result<&DeviceTensor> {
        let local = self.values.get(id.index()).and_then(|v| v.get(rank));
        local.map(Local::tensor).ok_or_else(|| HarnessError::mismatch("a value before its use"))
    }

    pub(super) fn make(&self, dtype: DType, shape: &[u64]) -> Result<DeviceTensor> {
        Ok(DeviceTensor::new(self.s.world, self.rank as u32, dtype, shape)?)
    }

    fn node(&self, node: &Node) -> Result<DeviceTensor> {
        let shape = self.layout(node.result, self.rank)?.shape();
        let operand = |i: usize| {
            let id = node.inputs.get(i).copied().unwrap_or(node.result);
            self.on(id, self.rank)
        };
        let map = match node.op {
            Op::Gather { dim, axis } => return self.gather(node, (dim, axis.index()), &shape),
            Op::AllToAll { axis, split, concat } => {
                return self.exchange(node, axis.index(), split.max(concat), &shape);
            }
            Op::ReduceScatter { dim: 0, axis } | Op::AllReduce { axis } => {
                return self.sum(node, axis.index(), &shape);
            }
            Op::ReduceScatter { .. } => {
                return Err(HarnessError::unsupported("a scatter of columns on a GPU"));
            }
            Op::Gemm { a_transposed, b_transposed } => {
                let view =
                    |t, is_transposed| if is_transposed { Operand::t(t) } else { Operand::new(t) };
                // `[K, G, N]` is a matrix of `G * N` columns.
                let weight = operand(1)?;
                let (depth, width) = weight.shape().split_first().unwrap_or((&1, &[]));
                let flat = self.reshaped(weight, &[*depth, width.iter().product()])?;
                let (a, b) = (view(operand(0)?, a_transposed), view(&flat, b_transposed));
                let (rows, columns) = shape.split_first().unwrap_or((&1, &[]));
                let c = self.make(DType::F32, &[*rows, columns.iter().product()])?;
                if c.elements() > 0 {
                    self.s.reference.gemm(&c, a, b, false)?;
                }
                return self.reshaped(&c, &shape);
            }
            Op::GroupedGemm { .. }
            | Op::GroupedWgrad
            | Op::Dispatch { .. }
            | Op::DispatchFactors
            | Op::Dropped
            | Op::Combine
            | Op::CombineGrad
            | Op::Weigh
            | Op::WeighGrad => return self.of_experts(node, &shape),
            Op::View => return Err(HarnessError::unsupported("a `view` inside a kernel")),
            Op::Curve(curve) => MapOp::Curve(curve),
            Op::Slope(curve) => MapOp::Slope(curve),
            Op::SwigluGrad => MapOp::SwigluGrad,
            Op::Rope { back } => MapOp::Rope { back },
            Op::RmsNorm { eps } => return self.norm(node, eps, None),
            Op::RmsNormGrad { eps } => return self.norm(node, eps, Some(operand(0)?)),
            Op::Attention { .. } => return Ok(self.attention(node)?.0),
            Op::Lse => {
                return match made_with(self.s.case.program, node) {
                    Some(attention) => Ok(self.attention(attention)?.1),
                    None => Err(HarnessError::mismatch("logarithms of no attention")),
                };
            }
            Op::AttentionStats => {
                let stats = self.make(DType::F32, &shape)?;
                if stats.elements() > 0 {
                    let operands = [operand(0)?, operand(1)?, operand(2)?];
                    self.s.reference.attend_stats(&stats, operands)?;
                }
                return Ok(stats);
            }
            Op::AttentionDsinks => {
                return Err(HarnessError::unsupported("gradients of sinks on the GPU"));
            }
            Op::AttentionDq { .. } => return Ok(self.gradients(node)?.0),
            Op::AttentionDk { .. } => return Ok(self.gradients(node)?.0),
            Op::AttentionDv => {
                return match made_with(self.s.case.program, node).map(|n| self.gradients(n)) {
                    Some(Ok((_, Some(dv)))) => Ok(dv),
                    Some(Err(e)) => Err(e),
                    _ => Err(HarnessError::mismatch("gradients of no attention")),
                };
            }
            Op::Swiglu => MapOp::Swiglu,
            Op::Bias => match routing::counts_of(self.s.case.program, node.result) {
                Some(_) => return self.of_experts(node, &shape),
                None => MapOp::Bias,
            },
            Op::Factor(_) => {
                return match self.s.case.program.def(node.inputs[0]) {
                    Some(Def::Node(made)) => self.factors(made),
                    _ => Err(HarnessError::mismatch("factors of no quantised rows")),
                };
            }
            Op::Quantize(_) => {
                let out = self.make(node.ty.dtype, &shape)?;
                if out.elements() > 0 {
                    let factors = self.factors(node)?;
                    self.s.reference.map(MapOp::OverSteps, &out, operand(0)?, Some(&factors))?;
                }
                return Ok(out);
            }
            Op::Dequantize(Factors::Blocks) if shape.len() > 2 => {
                return self.stack(operand(0)?, operand(1)?);
            }
            Op::Dequantize(Factors::Rows) => MapOp::ScaleRows,
            Op::Dequantize(Factors::Steps) => MapOp::ScaleSteps,
            Op::Dequantize(Factors::Blocks) => MapOp::ScaleBlocks,
            Op::Mul => MapOp::Mul,
            Op::Add => MapOp::Add,
            Op::Scale(factor) => MapOp::Scale(factor as f32),
            Op::Cast(_) => MapOp::Cast,
        };
        let to = if let Op::Cast(to) = node.op { to } else { DType::F32 };
        let out = self.make(to, &shape)?;
        if out.elements() > 0 {
            let second = if node.inputs.len() > 1 { Some(operand(1)?) } else { None };
            self.s.reference.map(map, &out, operand(0)?, second)?;
        }
        Ok(out)
    }

    /// A stack of matrices times the factors of the blocks of each.
    fn stack(&self, x: &DeviceTensor, f: &DeviceTensor) -> Result<DeviceTensor> {
        let out = self.make(DType::F32, x.shape())?;
        let matrix = |t: &DeviceTensor| {
            let (stack, matrix) = t.shape().split_at(t.shape().len().saturating_sub(2));
            (stack.iter().product::<u64>(), matrix.to_vec())
        };
        let part = |t: &DeviceTensor, i: u64| {
            let (_, shape) = matrix(t);
            let one = self.make(t.dtype(), &shape)?;
            let bytes = one.buffer().size_bytes();
            one.buffer().copy_range(0, t.buffer(), i * bytes, bytes)?;
            Ok::<_, HarnessError>(one)
        };
        for i in 0..matrix(x).0 {
            let made = self.make(DType::F32, &matrix(x).1)?;
            self.s.reference.map(MapOp::ScaleBlocks, &made, &part(x, i)?, Some(&part(f, i)?))?;
            let bytes = made.buffer().size_bytes();
            out.buffer().copy_range(i * bytes, made.buffer(), 0, bytes)?;
        }
        Ok(out)
    }

    /// The factors of what `quantize` makes.
    fn factors(&self, made: &Node) -> Result<DeviceTensor> {
        let x = self.on(made.inputs[0], self.rank)?;
        let &[m, k] = x.shape() else {
            return Err(HarnessError::unsupported("quantised rows of no matrix"));
        };
        let out = self.make(DType::F32, &[k.div_ceil(SCALE_BLOCK), m])?;
        if out.elements() > 0 {
            let largest = made.ty.dtype.format().float.map_or(1.0, |f| f.largest());
            self.s.reference.map(MapOp::Factors(largest), &out, x, None)?;
        }
        Ok(out)
    }

    /// The same elements in another shape.
    fn reshaped(&self, t: &DeviceTensor, shape: &[u64]) -> Result<DeviceTensor> {
        let to = self.make(t.dtype(), shape)?;
        to.buffer().copy_range(0, t.buffer(), 0, t.buffer().size_bytes())?;
        Ok(to)
    }

    /// All shards, one after the other.
    fn gather(
        &self,
        node: &Node,
        (dim, axis): (usize, usize),
        shape: &[u64],
    ) -> Result<DeviceTensor> {
        if dim != 0 {
            return Err(HarnessError::unsupported("a gather of columns on a GPU"));
        }
        let input = node.inputs.first().copied().unwrap_or(node.result);
        let all = self.make(self.on(input, self.rank)?.dtype(), shape)?;
        let mut at = 0;
        for rank in self.s.grid.along(axis, self.rank) {
            let part = self.on(input, rank)?.buffer();
            all.buffer().copy_range(at, part, 0, part.size_bytes())?;
            at += part.size_bytes();
        }
        Ok(all)
    }

    /// Of each rank along an axis what this one shall have; dimensions behind `last` are whole on both.
    fn exchange(
        &self,
        node: &Node,
        axis: usize,
        last: usize,
        shape: &[u64],
    ) -> Result<DeviceTensor> {
        let input = node.inputs.first().copied().unwrap_or(node.result);
        let out = self.make(self.on(input, self.rank)?.dtype(), shape)?;
        let own = self.layout(node.result, self.rank)?;
        let inner = shape.iter().skip(last + 1).product::<u64>() * out.dtype().size_bytes();
        for rank in self.s.grid.along(axis, self.rank) {
            let (part, theirs) = (self.on(input, rank)?, self.layout(input, rank)?);
            let both = |d: usize| {
                let [a, b] = [own.range(d), theirs.range(d)];
                a.start.max(b.start)..a.end.min(b.end)
            };
            let both: Vec<_> = (0..=last).map(both).collect();
            let rows: usize = both[..last].iter().map(ExactSizeIterator::len).product();
            for row in 0..rows {
                let (mut at, mut from, mut i, mut pitch) = (0, 0, row, [1, 1]);
                for d in (0..=last).rev() {
                    let n = if d == last { 1 } else { both[d].len() };
                    let index = both[d].start + i % n;
                    at += (index - own.range(d).start) * pitch[0];
                    from += (index - theirs.range(d).start) * pitch[1];
                    (i, pitch) =
                        (i / n, [pitch[0] * own.range(d).len(), pitch[1] * theirs.range(d).len()]);
                }
                let bytes = both[last].len() as u64 * inner;
                let [at, from] = [at, from].map(|elements| elements as u64 * inner);
                out.buffer().copy_range(at, part.buffer(), from, bytes)?;
            }
        }
        Ok(out)
    }

    /// Normalised rows, or the gradients of rows from those of the result: sums of rows are products with ones.
    fn norm(&self, node: &Node, eps: f64, d: Option<&DeviceTensor>) -> Result<DeviceTensor> {
        let first = usize::from(d.is_some());
        let x = self.on(node.inputs[first], self.rank)?;
        let &[m, n] = x.shape() else {
            return Err(HarnessError::unsupported("normalised rows of no matrix"));
        };
        if m == 0 {
            return self.make(DType::F32, &[m, n]);
        }
        let (reference, rank) = (&self.s.reference, self.rank as u32);
        let ones = |shape: [u64; 2]| {
            let all = vec![1.0; (shape[0] * shape[1]) as usize];
            DeviceTensor::from_f32(self.s.world, rank, DType::F32, &shape, &all)
        };
        let map = |op: MapOp, a: &DeviceTensor, b: Option<&DeviceTensor>| {
            let out = self.make(DType::F32, a.shape())?;
            reference.map(op, &out, a, b)?;
            Ok::<_, HarnessError>(out)
        };
        let product = |a: &DeviceTensor, b: &DeviceTensor| {
            let out = self.make(DType::F32, &[a.shape()[0], b.shape()[1]])?;
            reference.gemm(&out, Operand::new(a), Operand::new(b), false)?;
            Ok::<_, HarnessError>(out)
        };
        let (down, across) = (ones([n, 1])?, ones([1, n])?);
        let mean = |t: &DeviceTensor| map(MapOp::Scale(1.0 / n as f32), &product(t, &down)?, None);
        let from = d.unwrap_or(x);
        let weighed = match node.inputs.get(first + 1) {
            Some(g) => {
                let g = self.reshaped(self.on(*g, self.rank)?, &[1, n])?;
                map(MapOp::Mul, from, Some(&product(&ones([m, 1])?, &g)?))?
            }
            None => map(MapOp::Cast, from, None)?,
        };
        let root = mean(&map(MapOp::Mul, x, Some(x))?)?;
        let root = map(MapOp::ReciprocalRoot(eps as f32), &root, None)?;
        let scaled = map(MapOp::Mul, &weighed, Some(&product(&root, &across)?))?;
        if d.is_none() {
            return Ok(scaled);
        }
        let along = mean(&map(MapOp::Mul, &weighed, Some(x))?)?;
        let cube = map(MapOp::Mul, &map(MapOp::Mul, &root, Some(&root))?, Some(&root))?;
        let back = map(MapOp::Scale(-1.0), &map(MapOp::Mul, &cube, Some(&along))?, None)?;
        let less = map(MapOp::Mul, &product(&back, &across)?, Some(x))?;
        map(MapOp::Add, &scaled, Some(&less))
    }

    /// Result and logarithms of an attention.
    fn attention(&self, node: &Node) -> Result<(DeviceTensor, DeviceTensor)> {
        let (Op::Attention { scores, ring }, &[q_id, k_id, v_id, ..]) = (node.op, &node.inputs[..])
        else {
            return Err(HarnessError::mismatch("logarithms of no attention"));
        };
        let q = self.on(q_id, self.rank)?;
        let &[batch, queries, heads, depth] = q.shape() else {
            return Err(HarnessError::mismatch("queries of other dimensions"));
        };
        let wide = self.on(v_id, self.rank)?.shape().last().copied().unwrap_or(depth);
        let o = self.make(DType::F32, &[batch, queries, heads, wide])?;
        let lse = self.make(DType::F32, &[batch, heads, queries])?;
        if o.elements() == 0 {
            return Ok((o, lse));
        }
        let of_queries = self.places(q_id, self.ahead(q_id, k_id))?;
        let how = self.how(node, scores, depth, [of_queries; 2])?;
        let attend = |k: &DeviceTensor, v: &DeviceTensor| {
            self.s.reference.attend([&o, &lse], [q, k, v], how)
        };
        match ring.map(AxisId::index) {
            Some(axis) => {
                attend(&self.sequence(k_id, 1, axis)?, &self.sequence(v_id, 1, axis)?)?;
            }
            None => attend(self.on(k_id, self.rank)?, self.on(v_id, self.rank)?)?,
        }
        Ok((o, lse))
    }

    /// Gradients of queries; or those of keys, and of values beside them.
    fn gradients(&self, node: &Node) -> Result<(DeviceTensor, Option<DeviceTensor>)> {
        let none = || HarnessError::mismatch("gradients of no attention");
        let (scores, ring, of_queries) = match node.op {
            Op::AttentionDq { scores, ring } => (scores, ring, true),
            Op::AttentionDk { scores, ring } => (scores, ring, false),
            _ => return Err(none()),
        };
        let &[a, b, c, d, e, ..] = &node.inputs[..] else { return Err(none()) };
        // q, d_o, stats, k, v; and which of them every rank passes on.
        let (ids, passed) = match of_queries {
            true => ([a, b, c, d, e], 3..5),
            false => ([c, d, e, a, b], 0..3),
        };
        let mut gathered: [Option<DeviceTensor>; 5] = Default::default();
        if let Some(axis) = ring.map(AxisId::index) {
            for i in passed {
                // Statistics are `[B, H, S, 4]`.
                gathered[i] = Some(self.sequence(ids[i], if i == 2 { 2 } else { 1 }, axis)?);
            }
        }
        let mut operands = Vec::new();
        for (id, whole) in ids.iter().zip(&gathered) {
            operands.push(match whole {
                Some(whole) => whole,
                None => self.on(*id, self.rank)?,
            });
        }
        let operands = <[&DeviceTensor; 5]>::try_from(operands).map_err(|_| none())?;
        let depth = operands[0].shape().last().copied().unwrap_or(1);
        let places = |i: usize| -> Result<Places> {
            let ahead = if i == 0 { self.ahead(ids[0], ids[3]) } else { 0 };
            if let Some(whole) = &gathered[i] {
                return Ok(Places { first: 0, count: whole.shape()[1], second: 0 });
            }
            self.places(ids[i], ahead)
        };
        let how = self.how(node, scores, depth, [places(0)?, places(3)?])?;
        let [q, _, _, k, v] = operands;
        let like = if of_queries { q.shape() } else { k.shape() };
        let x = self.make(DType::F32, like)?;
        if of_queries {
            if x.elements() > 0 {
                self.s.reference.attend_dq(&x, operands, how)?;
            }
            return Ok((x, None));
        }
        let y = self.make(DType::F32, v.shape())?;
        if x.elements() > 0 {
            self.s.reference.attend_dkv([&x, &y], operands, how)?;
        }
        Ok((x, Some(y)))
    }

    /// Where the rank's rows are in the sequence, so many places further.
    fn places(&self, id: ValueId, ahead: i64) -> Result<Places> {
        let [first, second] = self.layout(id, self.rank)?.parts(1);
        let [count, second] = [first.len() as i64, second.start as i64 + ahead];
        Ok(Places { first: first.start as i64 + ahead, count: count as u64, second })
    }

    /// What attention of heads of so many elements is computed with, at these places of queries and keys.
    fn how(
        &self,
        node: &Node,
        scores: Scores,
        depth: u64,
        [queries, keys]: [Places; 2],
    ) -> Result<Attend<'_>> {
        let given = |id: Option<ValueId>| id.map(|id| self.on(id, self.rank)).transpose();
        Ok(Attend {
            causal: scores.causal,
            window: scores.window,
            cap: scores.softcap.map(|cap| cap as f32),
            scale: scores.scale.map_or(1.0 / (depth as f32).sqrt(), |s| s as f32),
            queries,
            keys,
            documents: given(node.documents())?,
            sinks: given(node.sinks())?,
        })
    }

    /// By how many places queries are ahead of keys: the last of both have one place.
    fn ahead(&self, q: ValueId, k: ValueId) -> i64 {
        let length =
            |id| self.s.case.bound.shape(id).and_then(|s| s.get(1)).map_or(0, |n| *n as i64);
        length(k) - length(q)
    }

    /// All parts of a sequence, which is dimension `dim`, that ranks along an axis have, where they belong.
    fn sequence(&self, id: ValueId, dim: usize, axis: usize) -> Result<DeviceTensor> {
        let whole = self.s.case.bound.shape(id).and_then(|shape| shape.get(dim)).copied();
        let whole = whole.unwrap_or(1);
        let mut shape = self.layout(id, self.rank)?.shape();
        shape.iter_mut().skip(dim).take(1).for_each(|n| *n = whole);
        let all = self.make(self.on(id, self.rank)?.dtype(), &shape)?;
        let row: u64 = shape.iter().skip(dim + 1).product::<u64>() * all.dtype().size_bytes();
        let outer: u64 = shape.iter().take(dim).product();
        for rank in self.s.grid.along(axis, self.rank) {
            let held = self.on(id, rank)?.buffer();
            let parts = self.layout(id, rank)?.parts(dim);
            let local: u64 = parts.iter().map(|p| p.len() as u64).sum();
            for b in 0..outer {
                let mut from = b * local * row;
                for part in parts.iter().filter(|p| !p.is_empty()) {
                    let (to, bytes) =
                        ((b * whole + part.start as u64) * row, part.len() as u64 * row);
                    all.buffer().copy_range(to, held, from, bytes)?;
                    from += bytes;
                }
            }
        }
        Ok(all)
    }

    /// The sum over the ranks along an axis, of the rows that this rank gets, in order of ranks.
    fn sum(&self, node: &Node, axis: usize, shape: &[u64]) -> Result<DeviceTensor> {
        let input = node.inputs.first().copied().unwrap_or(node.result);
        let sum = self.make(DType::F32, shape)?;
        if sum.elements() == 0 {
            return Ok(sum);
        }
        // Of rows that ranks along another axis share already, all.
        let input_rows = self.layout(input, self.rank)?.rows().start;
        let first_row = (self.layout(node.result, self.rank)?.rows().start - input_rows) as u64;
        let width: u64 = shape.iter().skip(1).product();
        for (i, rank) in self.s.grid.along(axis, self.rank).into_iter().enumerate() {
            let whole = self.on(input, rank)?;
            let part = self.make(whole.dtype(), shape)?;
            let bytes = part.buffer().size_bytes();
            let from = first_row * width * whole.dtype().size_bytes();
            part.buffer().copy_range(0, whole.buffer(), from, bytes)?;
            match i {
                0 => self.s.reference.map(MapOp::Cast, &sum, &part, None)?,
                _ => self.s.reference.map(MapOp::Add, &sum, &sum, Some(&part))?,
            }
        }
        Ok(sum)
    }
}
