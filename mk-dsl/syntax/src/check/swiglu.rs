//! `swiglu`: `[M, 2, F] -> [M, F]`, gate and up side by side in an axis of their own.

use super::chain::Call;
use super::{Checker, Ty, Value};
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
            self.sink.push(at, messages::swiglu_rank(&input.label, &shape));
            return None;
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
        if self.sink.len() != n_before {
            return None;
        }
        let placement = input.ty.placement.iter().map(|p| match p {
            Placement::Shard(2) => Placement::Shard(1),
            p => *p,
        });
        let ty =
            Ty { dtype: input.ty.dtype, dims: vec![rows, columns], placement: placement.collect() };
        Some(self.push(Op::Swiglu, vec![input.id], ty, input.gathered))
    }
}
