//! `ragged(x, counts)` and `grouped_gemm(w)`: rows of experts, `[R, K]`, each times its expert's matrix of `[E, K, N]`.
//!
//! `ragged` makes no node of its own: it says whose rows are whose, for all that follows in the chain.

use super::checker::{Call, Checker, Id, NodeDraft, Shape, State, Ty, Value, Wanted};
use super::dims::Term;
use crate::ast::{ArgValue, Operand};
use crate::messages;
use crate::ops::{self, OpKind};
use crate::program::{DType, Factors, Op, Placement};

/// Whether an operation takes ragged rows: the GEMM, and what goes element by element.
pub(super) fn takes_ragged(kind: OpKind) -> bool {
    use OpKind::*;
    let elementwise = matches!(kind, Curve(_) | Mul | Add | Scale | Cast | Bias | Quantize);
    elementwise
        || matches!(
            kind,
            Ragged
                | GroupedGemm
                | GroupedWgrad
                | Combine
                | CombineGrad
                | Weigh
                | WeighGrad
                | Dropped
                | Swiglu
                | SwigluGrad
                | Slope(_)
        )
}

/// How gradients of matrices are placed along an axis, by how rows and gradients of what these make are.
fn gradient((rows, dy): (&Placement, &Placement)) -> Option<Placement> {
    match (*rows, *dy) {
        (Placement::Replicate, Placement::Replicate) => Some(Placement::Replicate),
        (Placement::Shard(0), Placement::Shard(0)) => Some(Placement::Shard(0)),
        (Placement::Shard(1), Placement::Replicate) => Some(Placement::Shard(1)),
        (Placement::Replicate, Placement::Shard(d @ 1..)) => Some(Placement::Shard(d + 1)),
        _ => None,
    }
}

/// How a product of rows is placed along an axis, by how rows and matrices are: the dimensions of the matrices that are
/// summed over, and those that remain, begin so, and are so many. Ranks share experts, columns, or what is summed over.
fn product(
    (rows, matrices): (&Placement, &Placement),
    depth: [usize; 2],
    columns: [usize; 2],
) -> Option<Placement> {
    let within = |d: usize, [first, n]: [usize; 2]| (first..first + n).contains(&d);
    match (*rows, *matrices) {
        (Placement::Replicate, Placement::Replicate) => Some(Placement::Replicate),
        (Placement::Shard(0), Placement::Shard(0)) => Some(Placement::Shard(0)),
        (Placement::Replicate, Placement::Shard(d)) if within(d, columns) => {
            Some(Placement::Shard(d - columns[0] + 1))
        }
        (Placement::Shard(of @ 1..), Placement::Shard(d)) => {
            (within(d, depth) && d - depth[0] == of - 1).then_some(Placement::Partial)
        }
        _ => None,
    }
}

impl<'a> Checker<'a, '_> {
    /// `x -> ragged(counts)`, and of rows that a kernel before dispatched, `x -> ragged(ids)`, or `x -> ragged(ids,
    /// drop)`.
    pub(super) fn ragged(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        let drop = call.args.flag_at("drop");
        call.args.finish(self.sink);
        let operand = operand?;
        let x = self.input_of(call.input, [operand])?;
        // Ranks that share rows by columns have the same experts.
        let beside = |p: &Placement| match p {
            Placement::Shard(0) => Placement::Shard(0),
            _ => Placement::Replicate,
        };
        let placement: Vec<Placement> = x.ty.placement.iter().map(beside).collect();
        let wanted =
            Wanted { dtype: DType::I32, shape: Shape::Fresh(1), placement: placement.clone() };
        let counts = self.value(operand, wanted)?;
        let n_before = self.sink.len();
        let (op, at) = (call.op.span, operand.word.span);
        if x.ty.dims.len() != 2 {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(op, messages::ragged_rank(&x.label, &shape));
        }
        if x.ty.dtype == DType::F32 || x.ty.dtype.is_integer() {
            self.sink.push(op, messages::grouped_dtype(&x.label));
        }
        // Rows that were dispatched before are whose a route says.
        let is_route = self.route(counts.id).is_some()
            && counts.ty.dtype.is_integer()
            && counts.ty.placement.contains(&Placement::Shard(0));
        if !is_route && (counts.ty.dims.len() != 1 || counts.ty.dtype != DType::I32) {
            let found = self.show(&counts.ty);
            self.sink.push(at, messages::ragged_counts(&counts.label, &found));
        }
        // Of a mesh of several axes, columns over another one.
        let along = x.ty.placement.iter().filter(|p| **p == Placement::Shard(0)).count();
        let fine = |p: &Placement| match p {
            Placement::Replicate | Placement::Shard(0) => true,
            Placement::Shard(1) => along == 1,
            _ => false,
        };
        if along > 1 {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::dispatch_axes(&x.label, &found));
        } else if !x.ty.placement.iter().all(fine) {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::ragged_placement(&x.label, &found));
        } else if counts.ty.placement != placement {
            let show = |placement: &[Placement]| self.mesh.show_all(placement);
            let (want, found) = (show(&placement), show(&counts.ty.placement));
            self.sink.push(at, messages::beside_ragged("ragged", &want, &counts.label, &found));
        }
        let is_param = matches!(counts.id, Id::Param(_));
        if !is_param {
            self.sink.push(at, messages::ragged_counts_made(&counts.label));
        }
        match drop {
            Some(word) if !is_route => {
                self.sink.push(word, messages::drop_of_counts(&counts.label))
            }
            _ if is_route => self.drops(counts.id, (drop.is_some(), at), &counts.label),
            _ => {}
        }
        (self.sink.len() == n_before).then_some(Value { ragged: Some(counts.id), ..x })
    }

    /// How many experts have made rows, by the matrices of their last product; `None` for rows of none.
    pub(super) fn experts_of(&self, rows: Id) -> Option<Term> {
        let mut at = rows;
        loop {
            let Id::Node(i) = at else { return None };
            let node = &self.nodes[i];
            if let Op::GroupedGemm { .. } = node.op {
                return self.known(*node.inputs.get(1)?)?.dims.first().copied();
            }
            at = *node.inputs.first()?;
        }
    }

    /// How many experts a parameter counts the rows of. A route names experts, and does not say how many there are.
    fn counted(&self, counts: Id) -> Option<Term> {
        let given = matches!(counts, Id::Param(_)) && self.route(counts).is_none();
        self.known(counts).filter(|_| given)?.dims.first().copied()
    }

    /// Marks a result as ragged rows, as its input is.
    pub(super) fn keep_ragged(&mut self, mut value: Value, counts: Id) -> Value {
        value.ragged = Some(counts);
        if let Id::Node(i) = value.id {
            self.nodes[i].value.ragged = Some(counts);
        }
        value
    }

    /// `ragged(x, counts) -> grouped_gemm(w)`.
    pub(super) fn grouped_gemm(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let (operand, op) = (operand?, call.op.span);
        let x = self.input_of(call.input, [operand])?;
        let Some(counts) = x.ragged else {
            self.touch(operand);
            return self.sink.refuse(op, messages::grouped_of(&x.label));
        };
        let next = call.rest.iter().flatten().next().and_then(|s| ops::find(s.name.text));
        let (transposed, narrow) = (operand.transposed.is_some(), x.ty.dtype.is_narrow());
        let shape = match next.map(|op| op.kind) {
            // Gates and ups lie before K.
            Some(OpKind::Swiglu) if transposed => Shape::Fresh(4),
            _ if transposed => Shape::Fresh(x.ty.dims.len() + 1),
            Some(OpKind::Swiglu) => Shape::Stacked,
            _ => Shape::Fresh(3),
        };
        let placement = x.ty.placement.clone();
        let w = self.stored(operand.word, Wanted { dtype: x.ty.dtype, shape, placement })?;
        let (n_before, at) = (self.sink.len(), operand.word.span);
        // Of gates and ups, the way back sums over both.
        let fits = |n: usize| n == 2 || n == 3 && transposed;
        let Some((&rows, depth)) = x.ty.dims.split_first().filter(|_| fits(x.ty.dims.len())) else {
            let shape = self.show_dims(&x.ty.dims);
            return self.sink.refuse(op, messages::ragged_rank(&x.label, &shape));
        };
        let (&[experts, k, ref columns @ ..], 3 | 4) = (w.ty.dims.as_slice(), w.ty.dims.len())
        else {
            let shape = self.show_dims(&w.ty.dims);
            return self.sink.refuse(at, messages::grouped_rank(&w.label, &shape));
        };
        for value in [&x, &w] {
            if !value.ty.dtype.multiplies() {
                self.sink.push(op, messages::grouped_dtype(&value.label));
            }
        }
        let both = narrow && w.ty.dtype.is_narrow();
        if narrow && !matches!(x.scales, Some((_, Factors::Steps))) {
            self.sink.push(op, messages::grouped_factors(&x.label, "scaled(1, 128)"));
        }
        if both && !matches!(w.scales, Some((_, Factors::Blocks))) {
            self.sink.push(at, messages::grouped_factors(&w.label, "scaled(128, 128)"));
        }
        if both && !transposed {
            self.sink.push(at, messages::narrow_stack(&w.label, w.ty.dtype));
        }
        if w.ty.dtype != x.ty.dtype && !both && self.sink.len() == n_before {
            let text = messages::dtype_mismatch("grouped_gemm", x.ty.dtype, &w.label, w.ty.dtype);
            self.sink.push(at, text);
        }
        let n_experts = self.counted(counts);
        // Those of the matrices that are summed over, and those that remain.
        let (summed, columns) = match transposed {
            // As many of the last dimensions as rows have.
            true => match [&[k], columns].concat() {
                all if all.len() > depth.len() => {
                    let (columns, summed) = all.split_at(all.len() - depth.len());
                    (summed.to_vec(), columns.to_vec())
                }
                _ => (columns.to_vec(), vec![k]),
            },
            false => (vec![k], columns.to_vec()),
        };
        if summed.len() != depth.len() {
            let shape = self.show_dims(&w.ty.dims);
            return self.sink.refuse(at, messages::grouped_transposed(&x.label, &w.label, &shape));
        }
        let summed = depth.iter().zip(&summed).map(|(want, found)| ("a K of", Some(*want), *found));
        for (what, want, found) in [("experts", n_experts, experts)].into_iter().chain(summed) {
            let Some(want) = want else { continue };
            self.fit([want, found], at, |want, found| {
                messages::grouped_dim(what, want, &w.label, found)
            });
        }
        if let Some((slots, found)) = self.too_many_slots(counts, experts) {
            self.sink.push(at, messages::too_many_slots(slots, &w.label, found));
        }
        // The first dimensions of the matrices that are summed over, and that remain.
        let [of_depth, of_columns] = match transposed {
            true if both => [w.ty.dims.len() - depth.len(), 1],
            true => [2, 1],
            false => [1, 2],
        };
        // Experts that all ranks have are whole.
        let over = x.ty.placement.contains(&Placement::Shard(0));
        let pairs = x.ty.placement.iter().zip(&w.ty.placement);
        let along = |pair: (&Placement, &Placement)| {
            let made = product(pair, [of_depth, depth.len()], [of_columns, columns.len()]);
            made.filter(|_| over || pair.0 == pair.1)
        };
        let made: Option<Vec<Placement>> = pairs.map(along).collect();
        if made.is_none() {
            let own = |p: &Placement| match p {
                Placement::Shard(d @ 1..) => Placement::Shard(of_depth + d - 1),
                p => *p,
            };
            let wanted: Vec<Placement> = x.ty.placement.iter().map(own).collect();
            let (want, found) = (self.mesh.show_all(&wanted), self.mesh.show_all(&w.ty.placement));
            self.sink.push(at, messages::beside_ragged("grouped_gemm", &want, &w.label, &found));
        }
        let placement = made.filter(|_| self.sink.len() == n_before)?;
        let dims = [rows].into_iter().chain(columns).collect();
        let dtype = if narrow { DType::Bf16 } else { x.ty.dtype };
        let ty = Ty { dtype, dims, placement };
        let (left, right) = (self.dequantized(&x), self.dequantized(&w));
        Some(self.push(Op::GroupedGemm { transposed }, vec![left, right, counts], ty, x.gathered))
    }

    /// `ragged(x, counts) -> grouped_wgrad(dy)`, and of a route, `grouped_wgrad(dy, experts = E)`.
    pub(super) fn grouped_wgrad(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        let key = call.args.key("experts");
        call.args.finish(self.sink);
        let (operand, op) = (operand?, call.op.span);
        let x = self.input_of(call.input, [operand])?;
        let Some(counts) = x.ragged else {
            self.touch(operand);
            return self.sink.refuse(op, messages::wgrad_of(&x.label));
        };
        let placement = x.ty.placement.clone();
        let wanted = Wanted { dtype: x.ty.dtype, shape: Shape::Fresh(2), placement };
        let dy = self.value(operand, wanted)?;
        let (n_before, at) = (self.sink.len(), operand.word.span);
        let named = match key.map(|arg| (arg.span, &arg.value)) {
            Some((_, ArgValue::Int(n))) => Some(self.dims.lit(n.value)),
            Some((_, ArgValue::Name(Operand { word, transposed: None }))) => {
                Some(self.dims.sym(word.text))
            }
            Some((span, _)) => self.sink.refuse(span, messages::wgrad_experts()),
            None => None,
        };
        let counted = self.counted(counts);
        if let (Some(want), Some(found)) = (counted, named)
            && !self.dims.unify(want, found)
        {
            let (want, found) = (self.dims.show(want), self.dims.show(found));
            self.sink.push(at, messages::grouped_dim("experts", &want, &dy.label, &found));
        }
        let experts = counted.or(named);
        if experts.is_none() && self.sink.len() == n_before {
            self.sink.push(op, messages::wgrad_experts());
        }
        let &[rows, k] = x.ty.dims.as_slice() else {
            let shape = self.show_dims(&x.ty.dims);
            return self.sink.refuse(op, messages::wgrad_rank(&x.label, &shape));
        };
        let (&[of_dy, ref columns @ ..], 2 | 3) = (dy.ty.dims.as_slice(), dy.ty.dims.len()) else {
            let shape = self.show_dims(&dy.ty.dims);
            return self.sink.refuse(at, messages::wgrad_rank(&dy.label, &shape));
        };
        for value in [&x, &dy] {
            if !value.ty.dtype.multiplies() || value.ty.dtype.is_narrow() {
                self.sink.push(op, messages::grouped_dtype(&value.label));
            }
        }
        if dy.ty.dtype != x.ty.dtype && self.sink.len() == n_before {
            let text =
                messages::dtype_mismatch("grouped_wgrad", x.ty.dtype, &dy.label, dy.ty.dtype);
            self.sink.push(at, text);
        }
        self.fit([rows, of_dy], at, |want, found| messages::wgrad_rows(want, &dy.label, found));
        let pairs = x.ty.placement.iter().zip(&dy.ty.placement);
        let over = x.ty.placement.contains(&Placement::Shard(0));
        let along =
            |pair: (&Placement, &Placement)| gradient(pair).filter(|_| over || pair.0 == pair.1);
        let made: Option<Vec<Placement>> = pairs.map(along).collect();
        if made.is_none() {
            let show = |v: &Value| self.mesh.show_all(&v.ty.placement);
            let (want, found) = (show(&x), show(&dy));
            self.sink.push(at, messages::beside_ragged("grouped_wgrad", &want, &dy.label, &found));
        }
        if dy.ragged.is_some_and(|of| of != counts) {
            self.sink.push(at, messages::wgrad_of(&dy.label));
        }
        let experts = experts.filter(|_| self.sink.len() == n_before)?;
        let dims = [experts, k].into_iter().chain(columns.iter().copied()).collect();
        let ty = Ty { dtype: x.ty.dtype, dims, placement: made? };
        Some(self.push(Op::GroupedWgrad, vec![x.id, dy.id, counts], ty, x.gathered))
    }

    /// Integers say how many rows experts have, or where documents begin, and are nothing else.
    pub(super) fn report_integers(&mut self, results: &[Option<Value>]) {
        for (i, param) in self.params.iter().enumerate() {
            let State::Known(ty) = &param.state else { continue };
            if !ty.dtype.is_integer() {
                continue;
            }
            let id = Id::Param(i);
            let elsewhere = |node: &NodeDraft| {
                let inputs = node.inputs.iter().enumerate();
                let taken = match node.op {
                    Op::GroupedGemm { .. } | Op::GroupedWgrad => Some(2),
                    Op::Dispatch { .. }
                    | Op::DispatchFactors
                    | Op::Dropped
                    | Op::Combine
                    | Op::CombineGrad
                    | Op::Weigh
                    | Op::WeighGrad => Some(1),
                    Op::Attention { scores, .. }
                    | Op::AttentionDq { scores, .. }
                    | Op::AttentionDk { scores, .. } => {
                        scores.packed.then(|| node.inputs.len().saturating_sub(1))
                    }
                    _ => None,
                };
                inputs.into_iter().any(|(at, x)| *x == id && taken != Some(at))
            };
            let returned = results.iter().flatten().any(|value| value.id == id);
            if returned || self.nodes.iter().any(elsewhere) {
                self.sink.push(param.dtype_span, messages::integer_parameter(param.name.text));
            }
        }
    }
}
