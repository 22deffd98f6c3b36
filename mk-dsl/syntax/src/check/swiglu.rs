//! `swiglu`: `[M, 2, F] -> [M, F]`, gate and up side by side in an axis of their own; `swiglu_grad` goes the way back.

use super::checker::{Call, Checker, Ty, Value};
use crate::messages;
use crate::program::{Op, Placement};

impl<'a> Checker<'a, '_> {
    pub(super) fn swiglu(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        call.args.finish(self.sink);
        let (input, at) = (call.input?, call.op.span);
        let n_before = self.sink.len();
        if input.ty.placement.contains(&Placement::Partial) {
            self.sink.push(at, messages::nonlinear_on_partial("swiglu", &input.label));
        }
        let Ok([rows, pair, columns]) = <[_; 3]>::try_from(input.ty.dims.as_slice()) else {
            let shape = self.show_dims(&input.ty.dims);
            return self.sink.refuse(at, messages::swiglu_rank(&input.label, &shape));
        };
        let two = self.dims.lit(2);
        if !self.dims.unify(two, pair) {
            let found = self.dims.show(pair);
            self.sink.push(at, messages::swiglu_axis(&input.label, &found));
        }
        if input.ty.placement.contains(&Placement::Shard(1)) {
            let found = self.mesh.show_all(&input.ty.placement);
            self.sink.push(at, messages::swiglu_sharded(&input.label, &found));
        }
        self.sink.fine_since(n_before)?;
        let placement = input.ty.placement.iter().map(|p| match p {
            Placement::Shard(2) => Placement::Shard(1),
            p => *p,
        });
        let ty =
            Ty { dtype: input.ty.dtype, dims: vec![rows, columns], placement: placement.collect() };
        Some(self.push(Op::Swiglu, vec![input.id], ty, input.gathered))
    }

    /// `swiglu_grad(h)`: of the gradient `[M, F]` of `swiglu`'s result and of its input `[M, 2, F]`, the gradient of
    /// that input.
    pub(super) fn swiglu_grad(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let second = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let (second, at) = (second?, call.op.span);
        let d = self.input_of(call.input, [second])?;
        let n_before = self.sink.len();
        if d.ty.placement.contains(&Placement::Partial) {
            self.sink.push(at, messages::nonlinear_on_partial("swiglu_grad", &d.label));
        }
        let Ok([rows, columns]) = <[_; 2]>::try_from(d.ty.dims.as_slice()) else {
            let shape = self.show_dims(&d.ty.dims);
            return self.sink.refuse(at, messages::swiglu_grad_rank(&d.label, &shape));
        };
        let placement: Vec<Placement> =
            d.ty.placement
                .iter()
                .map(|p| match p {
                    Placement::Shard(1) => Placement::Shard(2),
                    p => *p,
                })
                .collect();
        let dims = vec![rows, self.dims.lit(2), columns];
        let ty = Ty { dtype: d.ty.dtype, dims, placement };
        let h = self.value(second, ty.wanted())?;
        self.same(Op::SwigluGrad, &d, &h, (&ty.dims, &ty.placement), at, second)?;
        self.sink.fine_since(n_before)?;
        Some(self.push(Op::SwigluGrad, vec![d.id, h.id], ty, d.gathered))
    }
}
