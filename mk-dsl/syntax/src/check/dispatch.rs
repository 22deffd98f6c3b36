//! `dispatch(x, ids)`, with a `capacity` or without, `combine(weights)` and `combine_grad(dy)`: tokens go to the ranks
//! of their experts, as ragged rows, and come back as weighted sums. `weigh(weights)` multiplies rows by weights where
//! they are, and `weigh_grad(y)` goes back to these.

use super::checker::{Call, Checker, Id, Shape, State, Ty, Value, Wanted};
use super::dims::{Resolved, Term};
use crate::ast::{ArgValue, Operand, Word};
use crate::messages;
use crate::program::{DType, Factors, Op, Placement, RAGGED_BLOCK};
use crate::span::Span;

/// How whole tokens are placed beside rows of them, of which ranks may have contributions.
fn of_tokens(rows: &[Placement]) -> Vec<Placement> {
    let of = |p: &Placement| match p {
        Placement::Shard(0) => Placement::Shard(0),
        _ => Placement::Replicate,
    };
    rows.iter().map(of).collect()
}

/// Rows, an operand, and the ids by which the rows were routed.
type Routed<'a> = (Value, Operand<'a>, (Id, [Term; 2]));

impl<'a> Checker<'a, '_> {
    /// `x -> dispatch(ids)`, `x -> dispatch(ids, capacity = R)`, `x -> dispatch(ids, capacity = R, drop)`, each also
    /// with weights behind the ids.
    pub(super) fn dispatch(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        let capacity = call.args.key("capacity");
        let drop = call.args.flag_at("drop");
        let factors = call.args.next_name().and_then(|_| call.args.optional_operand());
        call.args.finish(self.sink);
        let op = call.op.span;
        let drops = drop.is_some();
        if let (Some(word), None) = (drop, &capacity) {
            self.sink.push(word, messages::drop_without_capacity());
        }
        let rows = match capacity.map(|arg| (arg.span, &arg.value)) {
            Some((span, ArgValue::Int(n))) => {
                // Of so many ranks as there will be: whole blocks on each are whole blocks of all.
                if n.value == 0 || n.value % RAGGED_BLOCK != 0 {
                    self.sink.push(span, messages::capacity_in_blocks(n.value));
                }
                Some(self.dims.lit(n.value))
            }
            Some((_, ArgValue::Name(Operand { word, transposed: None }))) => {
                Some(self.dims.sym(word.text))
            }
            Some((span, _)) => self.sink.refuse(span, messages::dispatch_capacity()),
            None => {
                let rows = self.dims.var("room", self.room.len());
                self.room.push(rows);
                Some(rows)
            }
        };
        let operand = operand?;
        let x = self.input_of(call.input, [operand].into_iter().chain(factors))?;
        let placement = x.ty.placement.clone();
        let wanted = Wanted { dtype: DType::I32, shape: Shape::Fresh(2), placement };
        let ids = self.value(operand, wanted)?;
        let tokens_along = x.ty.placement.iter().filter(|p| **p == Placement::Shard(0)).count();
        let whole = |p: &Placement| matches!(p, Placement::Shard(0) | Placement::Replicate);
        let (n_before, at) = (self.sink.len(), operand.word.span);
        let [tokens, columns] = x.ty.dims[..] else {
            let shape = self.show_dims(&x.ty.dims);
            return self.sink.refuse(op, messages::dispatch_rank(&x.label, &shape));
        };
        if x.ty.dtype == DType::F32 || x.ty.dtype.is_integer() {
            self.sink.push(op, messages::grouped_dtype(&x.label));
        }
        if tokens_along > 1 {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::dispatch_axes(&x.label, &found));
        } else if tokens_along < 1 || !x.ty.placement.iter().all(whole) {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::dispatch_placement(&x.label, &found));
        } else {
            self.placed_as(&x, &ids, at, |want, found| {
                messages::beside_tokens("dispatch", want, &ids.label, found)
            });
        }
        match ids.ty.dims[..] {
            [of_ids, _] if ids.ty.dtype.is_integer() => {
                self.fit([tokens, of_ids], at, |want, found| {
                    messages::route_tokens(want, &ids.label, found)
                });
            }
            _ => {
                let found = self.show(&ids.ty);
                self.sink.push(at, messages::dispatch_ids(&ids.label, &found));
            }
        }
        if !matches!(ids.id, Id::Param(_)) {
            self.sink.push(at, messages::ragged_counts_made(&ids.label));
        }
        if !matches!(x.scales, None | Some((_, Factors::Steps))) {
            self.sink.push(op, messages::dispatch_factors(&x.label));
        }
        if let (Some(factors), true) = (factors, x.ty.dtype.is_narrow()) {
            self.sink.push(factors.word.span, messages::dispatch_weights(&x.label, x.ty.dtype));
        }
        let mut inputs = vec![x.id, ids.id];
        if let (Some(factors), &[tokens, slots]) = (factors, ids.ty.dims.as_slice()) {
            let placement = x.ty.placement.clone();
            inputs.extend(self.weights("dispatch", factors, [tokens, slots], placement));
        }
        self.drops(ids.id, (drops, at), &ids.label);
        let rows = rows.filter(|_| self.sink.len() == n_before)?;
        let ty = Ty { dtype: x.ty.dtype, dims: vec![rows, columns], placement: x.ty.placement };
        let value = self.push(Op::Dispatch { drops }, inputs, ty.clone(), x.gathered.clone());
        let scales = x.scales.map(|(factors, of)| {
            let ty = self.scales_ty(&ty, of);
            (self.push(Op::DispatchFactors, vec![factors, ids.id], ty, x.gathered).id, of)
        });
        let value = self.keep_scales(value, scales);
        Some(self.keep_ragged(value, ids.id))
    }

    /// `rows -> dropped`.
    pub(super) fn dropped(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        call.args.finish(self.sink);
        let rows = call.input?;
        let made = match rows.id {
            Id::Node(i) => Some((self.nodes[i].op, self.nodes[i].inputs.get(1).copied())),
            Id::Param(_) => None,
        };
        let Some((Op::Dispatch { drops: true }, Some(ids))) = made else {
            return self.sink.refuse(call.op.span, messages::dropped_of(&rows.label));
        };
        let counted = |p: &Placement| match p {
            Placement::Shard(0) => Placement::Partial,
            p => *p,
        };
        let placement = rows.ty.placement.iter().map(counted).collect();
        let ty = Ty { dtype: DType::I32, dims: vec![self.dims.lit(1)], placement };
        Some(self.push(Op::Dropped, vec![rows.id, ids], ty, rows.gathered))
    }

    /// Refuses an operation that made nodes, from a number on, of what [`Op::Dropped`] counted.
    pub(super) fn report_counts(&mut self, op: Word<'a>, from: usize) {
        let made = self.nodes.iter().skip(from).flat_map(|n| &n.inputs);
        let counts =
            |id: &Id| matches!(id, Id::Node(i) if self.nodes[*i].value.ty.dtype.is_integer());
        if made.into_iter().any(counts) {
            self.sink.push(op.span, messages::dropped_read(op.text));
        }
    }

    /// Notes whether rows by these ids are dropped, which is one thing in a pipeline.
    pub(super) fn drops(&mut self, ids: Id, (drops, at): (bool, Span), label: &str) {
        if self.routes.iter().any(|(of, before)| *of == ids && *before != drops) {
            self.sink.push(at, messages::drop_of_some(label));
        }
        self.routes.push((ids, drops));
    }

    /// Rows that `dispatch` routed, the operand of an operation on them, and their ids with the extents of tokens and
    /// slots; `None` after a report.
    fn routed(&mut self, name: &str, mut call: Call<'_, 'a>) -> Option<Routed<'a>> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let operand = operand?;
        let y = self.input_of(call.input, [operand])?;
        let Some(route) = y.ragged.and_then(|id| Some((id, self.route(id)?))) else {
            self.touch(operand);
            let text = match name.starts_with("weigh") {
                true => messages::weigh_of(name, &y.label),
                false => messages::combine_of(name, &y.label),
            };
            return self.sink.refuse(call.op.span, text);
        };
        Some((y, operand, route))
    }

    /// `y -> combine(weights)`.
    pub(super) fn combine(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op.span;
        let (y, operand, (ids, [tokens, slots])) = self.routed("combine", call)?;
        let n_before = self.sink.len();
        let placement = of_tokens(&y.ty.placement);
        let weights = self.weights("combine", operand, [tokens, slots], placement);
        let columns = self.combined_columns(&y, op)?;
        let weights = weights.filter(|_| self.sink.len() == n_before)?;
        let ty = Ty { dtype: y.ty.dtype, dims: vec![tokens, columns], placement: y.ty.placement };
        Some(self.push(Op::Combine, vec![y.id, ids, weights], ty, y.gathered))
    }

    /// `y -> combine_grad(dy)`.
    pub(super) fn combine_grad(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op.span;
        let (y, operand, (ids, [tokens, slots])) = self.routed("combine_grad", call)?;
        let n_before = self.sink.len();
        let columns = self.combined_columns(&y, op)?;
        let dims = vec![tokens, columns];
        let wanted = Ty { dtype: y.ty.dtype, dims, placement: of_tokens(&y.ty.placement) };
        let dy = self.value(operand, wanted.wanted())?;
        if !self.has_type(&dy, &wanted) {
            let [want, found] = [&wanted, &dy.ty].map(|ty| self.show(ty));
            let text = messages::combine_grad_dy(&want, &dy.label, &found);
            self.sink.push(operand.word.span, text);
        }
        self.sink.fine_since(n_before)?;
        let ty = Ty { dtype: DType::F32, dims: vec![tokens, slots], placement: y.ty.placement };
        Some(self.push(Op::CombineGrad, vec![y.id, ids, dy.id], ty, y.gathered))
    }

    /// `rows -> weigh(weights)`.
    pub(super) fn weigh(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op.span;
        let (y, operand, (ids, [tokens, slots])) = self.routed("weigh", call)?;
        let n_before = self.sink.len();
        if y.ty.dims.len() != 2 {
            let shape = self.show_dims(&y.ty.dims);
            self.sink.push(op, messages::dispatch_rank(&y.label, &shape));
        }
        if !y.ty.dtype.multiplies() || y.ty.dtype.is_narrow() {
            self.sink.push(op, messages::grouped_dtype(&y.label));
        }
        let placement = of_tokens(&y.ty.placement);
        let weights = self.weights("weigh", operand, [tokens, slots], placement);
        let weights = weights.filter(|_| self.sink.len() == n_before)?;
        Some(self.push(Op::Weigh, vec![y.id, ids, weights], y.ty, y.gathered))
    }

    /// `d -> weigh_grad(y)`.
    pub(super) fn weigh_grad(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op.span;
        let (d, operand, (ids, [tokens, slots])) = self.routed("weigh_grad", call)?;
        let n_before = self.sink.len();
        self.combined_columns(&d, op)?;
        let y = self.value(operand, d.ty.wanted())?;
        if !self.has_type(&y, &d.ty) || y.ragged.is_some_and(|of| of != ids) {
            let [want, found] = [&d.ty, &y.ty].map(|ty| self.show(ty));
            let text = messages::weigh_grad_rows(&want, &y.label, &found);
            self.sink.push(operand.word.span, text);
        }
        self.sink.fine_since(n_before)?;
        let ty = Ty { dtype: DType::F32, dims: vec![tokens, slots], placement: d.ty.placement };
        Some(self.push(Op::WeighGrad, vec![d.id, ids, y.id], ty, d.gathered))
    }

    /// Columns of rows that go back to their tokens; `None` after a report.
    fn combined_columns(&mut self, y: &Value, op: Span) -> Option<Term> {
        let [_, columns] = y.ty.dims[..] else {
            let shape = self.show_dims(&y.ty.dims);
            return self.sink.refuse(op, messages::dispatch_rank(&y.label, &shape));
        };
        if !y.ty.dtype.multiplies() || y.ty.dtype.is_narrow() {
            self.sink.push(op, messages::grouped_dtype(&y.label));
        }
        if y.ty.placement.contains(&Placement::Shard(1)) {
            let found = self.mesh.show_all(&y.ty.placement);
            self.sink.push(op, messages::combine_columns(&y.label, &found));
        }
        Some(columns)
    }

    /// A weight for each slot of these tokens, placed as they are; `None` after a report.
    fn weights(
        &mut self,
        op: &str,
        operand: Operand<'a>,
        slots: [Term; 2],
        placement: Vec<Placement>,
    ) -> Option<Id> {
        let wanted =
            Wanted { dtype: DType::F32, shape: Shape::Fresh(2), placement: placement.clone() };
        let weights = self.value(operand, wanted)?;
        let (n_before, at) = (self.sink.len(), operand.word.span);
        match weights.ty.dims[..] {
            [t, k] if weights.ty.dtype == DType::F32 => {
                for (want, found) in slots.into_iter().zip([t, k]) {
                    self.fit([want, found], at, |want, found| {
                        messages::route_tokens(want, &weights.label, found)
                    });
                }
            }
            _ => {
                let found = self.show(&weights.ty);
                self.sink.push(at, messages::weights_of_slots(op, &weights.label, &found));
            }
        }
        if weights.ty.placement != placement && self.sink.len() == n_before {
            let show = |placement: &[Placement]| self.mesh.show_all(placement);
            let (want, found) = (show(&placement), show(&weights.ty.placement));
            self.sink.push(at, messages::beside_tokens(op, &want, &weights.label, &found));
        }
        if !matches!(weights.id, Id::Param(_)) {
            self.sink.push(at, messages::ragged_counts_made(&weights.label));
        }
        (self.sink.len() == n_before).then_some(weights.id)
    }

    /// How many experts each token names, and how many there are, if numbers say both, and that it names one twice.
    pub(super) fn too_many_slots(&self, ids: Id, experts: Term) -> Option<(u64, u64)> {
        let number = |term| match self.dims.resolve(term) {
            Resolved::Lit(n) => Some(n),
            _ => None,
        };
        let [_, slots] = self.route(ids)?;
        Some((number(slots)?, number(experts)?)).filter(|(slots, experts)| slots > experts)
    }

    /// Tokens and slots of the experts that say whose rows are whose; `None` for counts.
    pub(super) fn route(&self, id: Id) -> Option<[Term; 2]> {
        let Id::Param(i) = id else { return None };
        let State::Known(ty) = &self.params[i].state else { return None };
        <[_; 2]>::try_from(ty.dims.as_slice()).ok()
    }
}
