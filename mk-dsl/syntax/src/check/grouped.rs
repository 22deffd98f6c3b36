//! `ragged(x, counts)` and `grouped_gemm(w)`: rows of experts, `[R, K]`, each times its expert's matrix of `[E, K, N]`.
//!
//! `ragged` makes no node of its own: it says whose rows are whose, for all that follows in the chain. `dispatch(x, ids)` makes such rows, of
//! tokens and the experts that each names.

use super::chain::Call;
use super::{Checker, Id, Shape, State, Ty, Value, Wanted};
use crate::messages;
use crate::ops::{self, OpKind};
use crate::program::{DType, Op, Placement};

/// Whether an operation takes ragged rows: the product, and what goes element by element.
pub(super) fn takes_ragged(kind: OpKind) -> bool {
    use OpKind::*;
    let elementwise = matches!(kind, Gelu | GeluTanh | Silu | Relu | Mul | Add | Scale | Cast);
    elementwise || matches!(kind, Ragged | GroupedGemm | Swiglu | Slope(_))
}

impl<'a> Checker<'a, '_> {
    /// `x -> ragged(counts)`.
    pub(super) fn ragged(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let operand = operand?;
        let Some(x) = call.input else {
            self.touch(operand);
            return None;
        };
        let wanted =
            Wanted { dtype: DType::I32, shape: Shape::Fresh(1), placement: x.ty.placement.clone() };
        let counts = self.value(operand, wanted)?;
        let n_before = self.sink.len();
        let (op, at) = (call.op.span, operand.word.span);
        if x.ty.dims.len() != 2 {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(op, messages::ragged_rank(&x.label, &shape));
        }
        if x.ty.dtype == DType::F32 || x.ty.dtype == DType::I32 {
            self.sink.push(op, messages::grouped_dtype(&x.label));
        }
        if counts.ty.dims.len() != 1 || counts.ty.dtype != DType::I32 {
            let found = self.show(&counts.ty);
            self.sink.push(at, messages::ragged_counts(&counts.label, &found));
        }
        let fine = |p: &Placement| matches!(p, Placement::Replicate | Placement::Shard(0));
        if !x.ty.placement.iter().all(fine) {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::ragged_placement(&x.label, &found));
        } else if counts.ty.placement != x.ty.placement {
            let show = |v: &Value| self.mesh.show_all(&v.ty.placement);
            let (want, found) = (show(&x), show(&counts));
            self.sink.push(at, messages::beside_ragged("ragged", &want, &counts.label, &found));
        }
        let is_param = matches!(counts.id, Id::Param(_));
        if !is_param {
            self.sink.push(at, messages::ragged_counts_made(&counts.label));
        }
        (self.sink.len() == n_before).then_some(Value { ragged: Some(counts.id), ..x })
    }

    /// `x -> dispatch(ids)`.
    pub(super) fn dispatch(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let operand = operand?;
        let Some(x) = call.input else {
            self.touch(operand);
            return None;
        };
        let [tokens, width] = match x.ty.dims[..] {
            [tokens, width] => [tokens, width],
            _ => {
                self.touch(operand);
                let shape = self.show_dims(&x.ty.dims);
                self.sink.push(call.op.span, messages::dispatch_rank(&x.label, &shape));
                return None;
            }
        };
        let wanted =
            Wanted { dtype: DType::I32, shape: Shape::Fresh(2), placement: x.ty.placement.clone() };
        let ids = self.value(operand, wanted)?;
        let n_before = self.sink.len();
        let (op, at) = (call.op.span, operand.word.span);
        if matches!(x.ty.dtype, DType::F32 | DType::I32) {
            self.sink.push(op, messages::grouped_dtype(&x.label));
        }
        if ids.ty.dims.len() != 2 || ids.ty.dtype != DType::I32 {
            let found = self.show(&ids.ty);
            self.sink.push(at, messages::dispatch_ids(&ids.label, &found));
        } else if !self.dims.unify(tokens, ids.ty.dims[0]) {
            let (want, found) = (self.dims.show(tokens), self.dims.show(ids.ty.dims[0]));
            self.sink.push(at, messages::dispatch_tokens(&want, &ids.label, &found));
        }
        let fine = |p: &Placement| matches!(p, Placement::Replicate | Placement::Shard(0));
        if !x.ty.placement.iter().all(fine) {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(op, messages::dispatch_placement(&x.label, &found));
        } else if ids.ty.placement != x.ty.placement {
            let show = |v: &Value| self.mesh.show_all(&v.ty.placement);
            let (want, found) = (show(&x), show(&ids));
            self.sink.push(at, messages::beside_ragged("dispatch", &want, &ids.label, &found));
        }
        if !matches!(ids.id, Id::Param(_)) {
            self.sink.push(at, messages::dispatch_ids_made(&ids.label));
        }
        if self.sink.len() != n_before {
            return None;
        }
        // Room for rows: nothing else has as many.
        let mut room = "rows".to_owned();
        while self.names.contains_key(room.as_str()) {
            room.push('_');
        }
        let rows = self.dims.var(&room, self.nodes.len());
        self.rooms.push(rows);
        let ty = Ty { dtype: x.ty.dtype, dims: vec![rows, width], placement: x.ty.placement };
        let value = self.push(Op::Dispatch, vec![x.id, ids.id], ty, x.gathered);
        Some(self.keep_ragged(value, ids.id))
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
        let Some(x) = call.input else {
            self.touch(operand);
            return None;
        };
        let Some(counts) = x.ragged else {
            self.touch(operand);
            self.sink.push(op, messages::grouped_of(&x.label));
            return None;
        };
        let next = call.rest.iter().flatten().next().and_then(|s| ops::find(s.name.text));
        let shape = match next.map(|op| op.kind) {
            Some(OpKind::Swiglu) => Shape::Stacked,
            _ => Shape::Fresh(3),
        };
        let placement = x.ty.placement.clone();
        let w = self.value(operand, Wanted { dtype: x.ty.dtype, shape, placement })?;
        let (n_before, at) = (self.sink.len(), operand.word.span);
        let Ok([rows, depth]) = <[_; 2]>::try_from(x.ty.dims.as_slice()) else {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(op, messages::ragged_rank(&x.label, &shape));
            return None;
        };
        let (&[experts, k, ref columns @ ..], 3 | 4) = (w.ty.dims.as_slice(), w.ty.dims.len())
        else {
            let shape = self.show_dims(&w.ty.dims);
            self.sink.push(at, messages::grouped_rank(&w.label, &shape));
            return None;
        };
        for value in [&x, &w] {
            if matches!(value.ty.dtype, DType::F32 | DType::I32) {
                self.sink.push(op, messages::grouped_dtype(&value.label));
            }
        }
        if w.ty.dtype != x.ty.dtype && self.sink.len() == n_before {
            let text = messages::dtype_mismatch("grouped_gemm", x.ty.dtype, &w.label, w.ty.dtype);
            self.sink.push(at, text);
        }
        let n_experts = match counts {
            Id::Param(i) => match &self.params[i].state {
                // Ids name experts, and do not say how many there are.
                State::Known(ty) if ty.dims.len() == 1 => ty.dims.first().copied(),
                _ => None,
            },
            Id::Node(_) => None,
        };
        let pairs = [("experts", n_experts, experts), ("a depth of", Some(depth), k)];
        for (what, want, found) in pairs {
            let Some(want) = want else { continue };
            if !self.dims.unify(want, found) {
                let (want, found) = (self.dims.show(want), self.dims.show(found));
                self.sink.push(at, messages::grouped_dim(what, &want, &w.label, &found));
            }
        }
        if w.ty.placement != x.ty.placement {
            let show = |v: &Value| self.mesh.show_all(&v.ty.placement);
            let (want, found) = (show(&x), show(&w));
            self.sink.push(at, messages::beside_ragged("grouped_gemm", &want, &w.label, &found));
        }
        if self.sink.len() != n_before {
            return None;
        }
        let dims = [rows].into_iter().chain(columns.iter().copied()).collect();
        let ty = Ty { dtype: x.ty.dtype, dims, placement: x.ty.placement };
        Some(self.push(Op::GroupedGemm, vec![x.id, w.id, counts], ty, x.gathered))
    }

    /// Integers say how many rows experts have, or which experts tokens have, and are nothing else.
    pub(super) fn report_integers(&mut self, results: &[Option<Value>]) {
        for (i, param) in self.params.iter().enumerate() {
            let State::Known(ty) = &param.state else { continue };
            if ty.dtype != DType::I32 {
                continue;
            }
            let id = Id::Param(i);
            let elsewhere = |node: &super::NodeDraft| {
                let inputs = node.inputs.iter().enumerate();
                let fine =
                    |at: usize| matches!((node.op, at), (Op::GroupedGemm, 2) | (Op::Dispatch, 1));
                let mut others = inputs.filter(|(at, _)| !fine(*at));
                others.any(|(_, x)| *x == id)
            };
            let returned = results.iter().flatten().any(|value| value.id == id);
            if returned || self.nodes.iter().any(elsewhere) {
                self.sink.push(param.dtype_span, messages::i32_parameter(param.name.text));
            }
        }
    }
}
