//! The dense reference: a pipeline evaluated in f64 on global tensors, for some rows of a result or for all.
//!
//! Most operations of the language make a row of their result from the same row of their first operand and from the
//! whole of the second, so a few rows of a large result are cheap; a GEMM with a transposed operand A needs all of
//! both. A value that is `partial` is kept as its contributions, one for each rank. Nothing is rounded but inputs and
//! casts of them; what rounding costs a right result is kept beside each element ([`Near`]).

mod routed;
mod routes;

use super::{
    HarnessError, Inputs, Layout, Result,
    attention::Attention,
    gradients::{Gradients, Operands, of_sinks, statistics},
    near::Near,
    norm::normalised,
    quant::quantised,
    rope::turned,
    routing,
    value::{Matrix, Value},
};
use mk_abi::DType;
use mk_syntax::{Def, Factors, Node, Op, Placement, SCALE_BLOCK, Scores, Tensor, ValueId};
use routes::Routes;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// Which rows of a value are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    All,
    Chosen,
    /// Those that the chosen tokens have at their experts, by this tensor of them.
    Routed(ValueId),
    /// None: each reader computes the part that it needs.
    Parts,
}

/// What a rank should hold of a result, or of some rows of it.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its elements, in rows of what the rank holds of one.
    pub matrix: Matrix,
    /// Their type.
    pub dtype: DType,
}

/// The reference for one launch.
#[derive(Clone, Debug)]
pub struct Dense<'a> {
    inputs: Inputs<'a>,
    launch: u64,
    /// The most multiply-adds of an attention.
    work: u64,
    /// What follows from the routings of the launch.
    routes: Routes,
}

impl<'a> Dense<'a> {
    /// The reference for a launch with these inputs.
    pub fn new(inputs: Inputs<'a>, launch: u64) -> Dense<'a> {
        Dense { inputs, launch, work: u64::MAX, routes: Routes::default() }
    }

    /// The same, with about so many multiply-adds at most for each attention: of some queries of each head, at least
    /// one. Results of the others are not judged.
    pub fn within(self, work: u64) -> Dense<'a> {
        Dense { work, ..self }
    }

    /// What each rank should hold of a result, row-major.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn local(&self, result: ValueId) -> Result<Vec<Vec<f64>>> {
        Ok(self.expected(result)?.into_iter().map(|e| e.matrix.data).collect())
    }

    /// What each rank should hold of a result, and how far a right one may be from it.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn expected(&self, result: ValueId) -> Result<Vec<Expected>> {
        let rows: Vec<usize> = (0..self.extent(result, 0)).collect();
        Ok(self.expected_rows(result, &rows)?.into_iter().map(|(_, expected)| expected).collect())
    }

    /// The same of those of some global rows that each rank holds, and which these are. `rows` ascend.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn expected_rows(
        &self,
        result: ValueId,
        rows: &[usize],
    ) -> Result<Vec<(Vec<usize>, Expected)>> {
        let value = self.rows(result, rows)?;
        let (width, dtype) = (self.width(result), self.dtype(result));
        let of_rank = |rank| {
            let layout = self.layout(result, rank)?;
            let columns = layout.columns();
            let held = rows.iter().enumerate().filter(|(_, row)| layout.rows().contains(row));
            let (places, held): (Vec<usize>, Vec<usize>) = held.map(|(i, row)| (i, *row)).unzip();
            let places = places.iter().flat_map(|i| columns.iter().map(move |c| i * width + c));
            let matrix = value.on(rank).map(|m| m.pick(columns.len(), places));
            let matrix =
                matrix.ok_or_else(|| HarnessError::mismatch("a rank without a contribution"))?;
            Ok((held, Expected { matrix, dtype }))
        };
        (0..self.inputs.case().ranks).map(of_rank).collect()
    }

    /// The global rows `rows` of a value.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn rows(&self, value: ValueId, rows: &[usize]) -> Result<Value> {
        let program = self.inputs.case().program;
        let every = rows.iter().copied().eq(0..self.extent(value, 0));
        let first = if every { Set::All } else { Set::Chosen };
        // Who needs what, from the result back: nodes are in topological order.
        let mut wanted = BTreeSet::from([(value.index(), first)]);
        for node in program.nodes().iter().rev() {
            let index = node.result.index();
            let own = wanted.range((index, Set::All)..).take_while(|key| key.0 == index);
            let sets: Vec<Set> = own.map(|key| key.1).collect();
            for set in sets {
                wanted.extend(self.needs(node, set));
            }
        }
        let mut values = BTreeMap::new();
        for (index, set) in wanted {
            let id = ValueId::new(index);
            let made = match program.def(id) {
                Some(Def::Param(tensor)) => self.input(tensor, set, rows)?,
                Some(Def::Node(node)) => self.node(node, set, rows, &values)?,
                None => return Err(HarnessError::mismatch("a value of another program")),
            };
            let kept = id != value && self.is_stored(id);
            values.insert((index, set), if kept { made.stored(self.dtype(id)) } else { made });
        }
        values
            .remove(&(value.index(), first))
            .ok_or_else(|| HarnessError::mismatch("a value of another program"))
    }

    /// The type of a value.
    fn dtype(&self, value: ValueId) -> DType {
        self.inputs.case().program.ty(value).map_or(DType::F32, |t| t.dtype)
    }

    /// The type of the elements that tensor cores read of an operand.
    fn multiplied(&self, value: ValueId) -> DType {
        match self.inputs.case().program.def(value) {
            Some(Def::Node(node)) if is_operand(node) => self.dtype(node.inputs[0]),
            _ => self.dtype(value),
        }
    }

    /// Whether memory may hold a value before it is read: it is a result, or a collective's, or is read by something
    /// else than the elementwise operation that follows its GEMM; what a cast rounds in registers counts, too.
    /// Reductions over ranks store their contributions themselves.
    fn is_stored(&self, value: ValueId) -> bool {
        let program = self.inputs.case().program;
        let Some(Def::Node(node)) = program.def(value) else { return false };
        // In registers alone, and exact but for the factor.
        if is_operand(node) {
            return false;
        }
        let collective = |op: &Op| {
            use Op::{AllReduce, AllToAll, Gather, ReduceScatter};
            matches!(op, Gather { .. } | ReduceScatter { .. } | AllReduce { .. } | AllToAll { .. })
        };
        let rounds = matches!(node.op, Op::Cast(to) if to != DType::F32);
        let read = |node: &Node| {
            let fused = node.op.is_elementwise() || matches!(node.op, Op::Swiglu);
            let from = usize::from(fused && !rounds);
            let sums = matches!(node.op, Op::ReduceScatter { .. } | Op::AllReduce { .. });
            !sums && node.inputs.iter().skip(from).any(|i| *i == value)
        };
        collective(&node.op)
            || program.results().contains(&value)
            || program.nodes().iter().any(read)
    }

    /// Whether ranks have contributions to what a node makes.
    fn is_partial(&self, node: &Node) -> bool {
        node.ty.placement.contains(&Placement::Partial)
    }

    fn extent(&self, value: ValueId, dim: usize) -> usize {
        let shape = self.inputs.case().bound.shape(value);
        shape.and_then(|s| s.get(dim)).map_or(0, |n| *n as usize)
    }

    /// Elements of a row.
    fn width(&self, value: ValueId) -> usize {
        let shape = self.inputs.case().bound.shape(value).unwrap_or(&[]);
        shape.iter().skip(1).map(|n| *n as usize).product()
    }

    fn layout(&self, value: ValueId, rank: usize) -> Result<Layout> {
        let case = self.inputs.case();
        let ty = case.program.ty(value);
        let placement = ty.map_or(&[][..], |t| &t.placement);
        self.inputs.sizes().layout(case.bound.shape(value).unwrap_or(&[]), placement, rank)
    }

    /// A parameter, put together from what the ranks hold.
    fn input(&self, tensor: &Tensor, set: Set, chosen: &[usize]) -> Result<Value> {
        let ranks = self.inputs.case().ranks;
        let rows = &*self.rows_of(tensor.id, set, chosen);
        let cols = self.width(tensor.id);
        let mut parts = Vec::new();
        let partial = tensor.ty.placement.contains(&Placement::Partial);
        let givers = if partial { ranks } else { 1 };
        for giver in 0..givers {
            let mut part = Matrix::exact(cols, vec![0.0; rows.len() * cols]);
            let (of, sizes) = (&tensor.ty.placement, self.inputs.sizes());
            // Shards of one contribution: those at the same places along the axes that it is partial on.
            let same = |place: usize| {
                let mut along = of.iter().enumerate().filter(|(_, p)| **p == Placement::Partial);
                along.all(|(axis, _)| {
                    let (stride, n) = sizes.axis(axis);
                    place / stride % n == giver / stride % n
                })
            };
            for rank in (0..ranks).filter(|rank| same(*rank)) {
                let layout = self.inputs.layout(tensor, rank)?;
                let columns = layout.columns();
                let element = self.inputs.elements(self.launch, tensor, rank);
                for (row, to) in rows.iter().zip(part.data.chunks_mut(cols.max(1))) {
                    if layout.rows().contains(row) {
                        let from = (row - layout.rows().start) * columns.len();
                        columns.iter().zip(from..).for_each(|(c, i)| to[*c] = element(i));
                    }
                }
            }
            parts.push(part);
        }
        Ok(match partial {
            true => Value::Contributions(parts),
            false => Value::Whole(parts.pop().unwrap_or_default()),
        })
    }

    fn node(
        &self,
        node: &Node,
        set: Set,
        chosen: &[usize],
        values: &BTreeMap<(usize, Set), Value>,
    ) -> Result<Value> {
        let operands: Option<Vec<&Value>> =
            self.needs(node, set).map(|key| values.get(&key)).collect();
        let operands = operands.unwrap_or_default();
        let width = self.width(node.result);
        let rows = &*self.rows_of(node.result, set, chosen);
        Ok(match (node.op, operands.as_slice()) {
            (Op::Gather { .. } | Op::AllToAll { .. }, [x]) => (*x).clone(),
            (Op::ReduceScatter { axis, .. } | Op::AllReduce { axis }, [x]) => {
                let contribution = node.inputs.first().copied().unwrap_or(node.result);
                let along = self.inputs.sizes().axis(axis.index());
                x.sum(self.dtype(contribution), along, self.is_partial(node))
            }
            (Op::Gemm { a_transposed, b_transposed }, [a, b]) => {
                // Of `[K, G, N]` all columns are along K.
                let depth = node.inputs.get(1).map_or(0, |b| self.width(*b));
                let depth: Vec<usize> = (0..depth).collect();
                let a = if a_transposed { &a.transposed(rows) } else { *a };
                let b = if b_transposed { &b.transposed(&depth) } else { *b };
                self.gemm(node, a, b, b_transposed)?
            }
            (Op::GroupedGemm { .. }, [x, w, _]) => self.grouped(node, rows, [x, w])?,
            (Op::GroupedWgrad, [x, dy, _]) => self.wgrad(node, rows, [x, dy])?,
            (Op::Dispatch { .. }, [x, _, weights @ ..]) => {
                self.dispatched(node, rows, (x, weights.first().copied()))?
            }
            (Op::Dropped, _) => self.dropped(node)?,
            (Op::DispatchFactors, [x, _]) => self.factors_dispatched(node, rows, x)?,
            (Op::CombineGrad, [y, _, dy]) => self.products(node, rows, [y, dy])?,
            (Op::Weigh, [x, _, weights]) => self.weighed(node, rows, [x, weights])?,
            (Op::WeighGrad, [d, _, y]) => self.products(node, rows, [d, y])?,
            (Op::Combine, [y, _, weights]) => {
                let set = self.needs(node, set).next().map_or(Set::All, |(_, set)| set);
                let held = self.rows_of(node.inputs[0], set, chosen);
                self.combined(node, rows, (y, &held), weights)?
            }
            (Op::Bias, [x, c])
                if routing::counts_of(self.inputs.case().program, node.result).is_some() =>
            {
                self.biased(node, rows, [x, c])?
            }
            (Op::Bias, [x, c]) => {
                let Value::Whole(c) = c else {
                    return Err(HarnessError::unsupported("a bias of contributions"));
                };
                // The last dimension; of a vector that is dimension 0, of which rows are chosen.
                let at = |i: usize| match set {
                    Set::Chosen if width == 1 => chosen[i] % c.len(),
                    _ => i % c.len(),
                };
                x.map(|i, x| x.add(c.at(at(i))))
            }
            (Op::Dequantize(_), [x, rows]) if self.quantised_by(node).is_some() => {
                // The factors of these rows alone.
                let [_, factors] = quantised(self.dtype(node.inputs[0]), on(rows, 0)?);
                let scales = Value::Whole(factors).stored(DType::F32);
                let (scales, held) = (on(&scales, 0)?, rows_held(x, width));
                x.map(|i, x| {
                    let (row, column) = (i / width.max(1), i % width.max(1));
                    x.mul(scales.at(column / SCALE_BLOCK as usize * held + row))
                })
            }
            (Op::Dequantize(factors), [x, scales]) => {
                let scales = on(scales, 0)?;
                let wide = self.extent(node.inputs[1], 1);
                x.map(|i, x| {
                    let (row, column) = (rows[i / width.max(1)] as u64, (i % width.max(1)) as u64);
                    let at = match factors.of(row, column) {
                        (at, None) => at as usize,
                        (at, Some(column)) => at as usize * wide + column as usize,
                    };
                    x.mul(scales.at(at))
                })
            }
            (Op::Quantize(_), [x]) => {
                let [values, _] = quantised(node.ty.dtype, on(x, 0)?);
                Value::Whole(values)
            }
            (Op::Factor(_), [x]) => {
                let to = self.dtype(node.inputs[0]);
                let [_, factors] = quantised(to, on(x, 0)?);
                let places = rows.iter().flat_map(|row| row * width..(row + 1) * width);
                Value::Whole(factors.pick(width, places))
            }
            (Op::Attention { .. }, [q, k, v, rest @ ..]) => {
                self.attention(node, [q, k, v], rest.first().copied())?.0
            }
            (Op::Lse, [q, k, v, rest @ ..]) => {
                self.attention(self.attended(node), [q, k, v], rest.first().copied())?.1
            }
            (Op::AttentionStats, [o, d_o, lse]) => {
                let o_id = node.inputs[0];
                let sizes = [1, 2, 3].map(|d| self.extent(o_id, d));
                Value::Whole(statistics(sizes, [on(o, 0)?, on(d_o, 0)?, on(lse, 0)?]))
            }
            (Op::AttentionDsinks, [stats, sinks]) => {
                let of = node.inputs[0];
                let sizes = [1, 2].map(|d| self.extent(of, d));
                let (stats, sinks) = (on(stats, 0)?, on(sinks, 0)?);
                if !self.is_partial(node) {
                    return Ok(Value::Whole(of_sinks(sizes, [stats, sinks], |_, _| true)));
                }
                let of_rank = |rank| {
                    let layout = self.layout(of, rank)?;
                    let own = |b: usize, i: usize| {
                        layout.range(0).contains(&b) && layout.places(2).any(|at| at == i)
                    };
                    Ok(of_sinks(sizes, [stats, sinks], own))
                };
                let contributions = (0..self.inputs.case().ranks).map(of_rank);
                Value::Contributions(contributions.collect::<Result<_>>()?)
            }
            (Op::AttentionDq { .. }, [q, d_o, stats, k, v, ..]) => {
                self.gradients(node, [q, d_o, stats, k, v], 0)?
            }
            (Op::AttentionDk { .. }, [k, v, q, d_o, stats, ..]) => {
                self.gradients(node, [q, d_o, stats, k, v], 1)?
            }
            (Op::AttentionDv, [k, v, q, d_o, stats, ..]) => {
                self.gradients(self.attended(node), [q, d_o, stats, k, v], 2)?
            }
            (Op::Slope(curve), [d, x]) => d.zip(x, |d, x| d.slope(curve, x)),
            (Op::SwigluGrad, [d, x]) => d.swiglu_grad(x),
            (Op::Swiglu, [x]) => x.swiglu(),
            (Op::RmsNorm { eps }, [x, g @ ..]) => self::norm(eps, x, g, None)?,
            (Op::RmsNormGrad { eps }, [d, x, g @ ..]) => self::norm(eps, x, g, Some(d))?,
            (Op::Rope { back }, [x, t]) => Value::Whole(turned(back, on(x, 0)?, on(t, 0)?)?),
            (Op::Curve(curve), [x]) => x.map(|_, x| x.curve(curve)),
            (Op::Mul, [x, y]) => x.zip(y, Near::mul),
            (Op::Add, [x, y]) => x.zip(y, Near::add),
            (Op::Scale(factor), [x]) => x.map(|_, x| x.scale(factor)),
            (Op::Cast(to), [x]) => x.map(|_, x| x.cast(to)),
            _ => return Err(HarnessError::unsupported(format!("`{}`", node.op.name()))),
        })
    }

    /// Gradients of queries, of keys or of values; of keys that all ranks have, what each rank's queries give.
    fn gradients(
        &self,
        node: &Node,
        [q, d_o, stats, k, v]: [&Value; 5],
        which: usize,
    ) -> Result<Value> {
        let (scores, [q_id, k_id, v_id]) = match node.op {
            Op::AttentionDq { scores, .. } => (scores, [0, 3, 4].map(|i| node.inputs[i])),
            Op::AttentionDk { scores, .. } => (scores, [2, 0, 1].map(|i| node.inputs[i])),
            _ => return Err(HarnessError::mismatch("gradients of no attention")),
        };
        let (asked, documents) =
            (self.asked(q_id, 6).min(self.asked(k_id, 6)), self.documents(node));
        let of = self.attention_of([q_id, k_id, v_id], scores, asked, documents.as_deref());
        let whole = || std::iter::once(0..of.sequence[0]).collect();
        let [q, d_o, stats] = [on(q, 0)?, on(d_o, 0)?, on(stats, 0)?];
        let operands = Operands { q, d_o, stats, k: on(k, 0)?, v: on(v, 0)? };
        let made = |queries| {
            let [dq, dk, dv] = Gradients { of, queries }.run(&operands);
            [dq, dk, dv].into_iter().nth(which).unwrap_or_default()
        };
        if !self.is_partial(node) {
            return Ok(Value::Whole(made(whole())));
        }
        let of_rank = |rank| Ok(made(self.layout(q_id, rank)?.parts(1).to_vec()));
        let contributions = (0..self.inputs.case().ranks).map(of_rank);
        Ok(Value::Contributions(contributions.collect::<Result<_>>()?))
    }

    /// The attention of `q` to `k` and `v`, of so many queries of each head.
    fn attention_of<'d>(
        &self,
        [q, k, v]: [ValueId; 3],
        scores: Scores,
        queries: usize,
        documents: Option<&'d [i32]>,
    ) -> Attention<'d> {
        let depth = self.extent(q, 3);
        Attention {
            sequence: [q, k].map(|id| self.extent(id, 1)),
            heads: [q, k].map(|id| self.extent(id, 2)),
            depth: [depth, self.extent(v, 3)],
            scores,
            scale: scores.scale.unwrap_or(1.0 / (depth as f64).sqrt()),
            dtype: self.dtype(q),
            queries,
            documents,
        }
    }

    /// Where documents begin, of packed sequences.
    fn documents(&self, node: &Node) -> Option<Vec<i32>> {
        let tensor = self.inputs.case().program.tensors().get(node.documents()?.index())?;
        self.inputs.documents(self.launch, tensor)
    }

    /// How many queries of each head may be evaluated, if each takes so many products of a row with all rows of the
    /// other side.
    fn asked(&self, q: ValueId, products: u64) -> usize {
        let all: u64 = (0..4).map(|d| self.extent(q, d) as u64).product();
        usize::try_from(self.work / (products * all).max(1)).unwrap_or(usize::MAX).max(1)
    }

    /// The attention whose logarithms a node takes, or the gradients of keys that it has the values' beside; any other
    /// node is itself.
    fn attended<'n>(&self, node: &'n Node) -> &'n Node
    where
        'a: 'n,
    {
        let program = self.inputs.case().program;
        match (node.op, node.inputs.first().and_then(|o| program.def(*o))) {
            (Op::Lse | Op::AttentionDv | Op::Factor(_), Some(Def::Node(made))) => made,
            _ => node,
        }
    }

    /// Which rows of which values a node is made of.
    fn needs<'n>(&self, node: &'n Node, set: Set) -> impl Iterator<Item = (usize, Set)> + 'n
    where
        'a: 'n,
    {
        let program = self.inputs.case().program;
        // All blocks are of rows that a set of their factors' rows does not name.
        let set = if matches!(node.op, Op::Factor(_)) { Set::All } else { set };
        let given = move |id| matches!(program.def(id), Some(Def::Param(_)));
        // Of the caller's stacks, with their factors or without, each matrix is read when it is met.
        let stack = move |id: ValueId| match program.def(id) {
            Some(Def::Node(n)) if matches!(n.op, Op::Dequantize(Factors::Blocks)) => {
                n.inputs.iter().all(|id| given(*id))
            }
            _ => given(id),
        };
        let before = self.quantised_by(node).map(|made| made.inputs[0]);
        needs(self.attended(node), set, stack).enumerate().map(move |(i, key)| match before {
            Some(x) if i == 1 => (x.index(), set),
            _ => key,
        })
    }

    /// The `quantize` of what is dequantised, whose factors these are.
    fn quantised_by(&self, node: &Node) -> Option<&'a Node> {
        let program = self.inputs.case().program;
        let (Op::Dequantize(_), &[_, factors]) = (node.op, &node.inputs[..]) else { return None };
        let Some(Def::Node(Node { op: Op::Factor(_), inputs, .. })) = program.def(factors) else {
            return None;
        };
        match program.def(inputs[0]) {
            Some(Def::Node(made)) => Some(made),
            _ => None,
        }
    }

    /// The global rows of a value in a set.
    fn rows_of<'r>(&self, value: ValueId, set: Set, chosen: &'r [usize]) -> Cow<'r, [usize]> {
        match set {
            Set::All => (0..self.extent(value, 0)).collect(),
            Set::Chosen => chosen.into(),
            Set::Routed(ids) => self.routed(ids, self.extent(value, 0), chosen).into(),
            Set::Parts => Cow::default(),
        }
    }

    /// Result and logarithms of an attention, for the batches that the operands have.
    fn attention(
        &self,
        node: &Node,
        [q, k, v]: [&Value; 3],
        sinks: Option<&Value>,
    ) -> Result<(Value, Value)> {
        let (Op::Attention { scores, .. }, [q_id, k_id, v_id, ..]) = (node.op, &node.inputs[..])
        else {
            return Err(HarnessError::mismatch("logarithms of no attention"));
        };
        let documents = self.documents(node);
        let asked = self.asked(*q_id, 2);
        let attention =
            self.attention_of([*q_id, *k_id, *v_id], scores, asked, documents.as_deref());
        let sinks = sinks.filter(|_| scores.sinks).map(|s| on(s, 0)).transpose()?;
        let [o, lse] = attention.run([on(q, 0)?, on(k, 0)?, on(v, 0)?], sinks);
        Ok((Value::Whole(o), Value::Whole(lse)))
    }

    /// Rank `r`'s contribution to a GEMM with a sharded K is the GEMM over its part of K.
    fn gemm(&self, node: &Node, a: &Value, b: &Value, b_transposed: bool) -> Result<Value> {
        let right = node.inputs.get(1).copied().unwrap_or(node.result);
        let k = if b_transposed { self.width(right) } else { self.extent(right, 0) };
        let (n, narrow) = (self.width(node.result), self.multiplied(right).is_narrow());
        let rows = |a: &Matrix| a.len().checked_div(k).unwrap_or(0);
        if !self.is_partial(node) {
            let (a, b) = (on(a, 0)?, on(b, 0)?);
            return Ok(Value::Whole(a.product(b, rows(a), k, narrow)));
        }
        let contributions = (0..self.inputs.case().ranks).map(|rank| {
            let layout = self.layout(right, rank)?;
            let depth: Vec<usize> = match b_transposed {
                true => layout.columns().to_vec(),
                false => layout.rows().collect(),
            };
            let (a, b) = (on(a, rank)?, on(b, rank)?);
            let m = rows(a);
            if depth.iter().copied().eq(0..k) {
                return Ok(a.product(b, m, k, narrow));
            }
            let columns = (0..m).flat_map(|row| depth.iter().map(move |i| row * k + i));
            let part = a.pick(depth.len(), columns);
            let rows = depth.iter().flat_map(|i| i * n..(i + 1) * n);
            Ok(part.product(&b.pick(n, rows), m, depth.len(), narrow))
        });
        Ok(Value::Contributions(contributions.collect::<Result<_>>()?))
    }
}

/// Normalised rows of `x`, times the first of `g`; or the gradients of rows from `d`.
fn norm(eps: f64, x: &Value, g: &[&Value], d: Option<&&Value>) -> Result<Value> {
    let weight = g.first().map(|g| on(g, 0)).transpose()?;
    let d = d.map(|d| on(d, 0)).transpose()?;
    Ok(Value::Whole(normalised(eps, on(x, 0)?, weight, d)))
}

/// How many rows of so many elements a value has here.
fn rows_held(x: &Value, width: usize) -> usize {
    on(x, 0).map_or(0, |x| x.len() / width.max(1))
}

/// Whether it is what tensor cores read, with its factors.
fn is_operand(node: &Node) -> bool {
    matches!(node.op, Op::Dequantize(_)) && node.ty.dtype == DType::F32
}

/// What a rank holds of an operand.
fn on(value: &Value, rank: usize) -> Result<&Matrix> {
    value.on(rank).ok_or_else(|| HarnessError::mismatch("a product without an operand"))
}

/// Which rows of its operands a node needs for some rows of its result; `is_given` of what is a parameter.
fn needs<'n>(
    node: &'n Node,
    set: Set,
    is_given: impl Fn(ValueId) -> bool + 'n,
) -> impl Iterator<Item = (usize, Set)> + 'n {
    node.inputs.iter().enumerate().map(move |(i, input)| {
        let set = match (node.op, i) {
            (Op::Gemm { a_transposed, .. }, i) if i == 1 || a_transposed => Set::All,
            (Op::GroupedGemm { .. }, 1) if is_given(*input) => Set::Parts,
            (Op::GroupedWgrad, _) => Set::All,
            (Op::Dropped, _) => Set::Parts,
            (Op::Combine, 0) if set == Set::Chosen => Set::Routed(node.inputs[1]),
            (Op::Combine, 0) => Set::All,
            (Op::GroupedGemm { .. } | Op::Bias | Op::Dequantize(_) | Op::Combine, 1)
            | (Op::GroupedGemm { .. }, 2) => Set::All,
            (Op::RmsNorm { .. }, 1) | (Op::RmsNormGrad { .. }, 2) => Set::All,
            (Op::Weigh, 1 | 2) => Set::All,
            (Op::Dispatch { .. } | Op::DispatchFactors | Op::CombineGrad | Op::WeighGrad, _)
            | (Op::AttentionDsinks, _) => Set::All,
            _ => set,
        };
        (input.index(), set)
    })
}

#[cfg(test)]
mod tests;
