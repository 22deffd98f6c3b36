//! `gemm(w)`: `[M, K] x [K, N] -> [M, N]`.

use super::chain::Call;
use super::{Checker, Shape, Ty, Value, Wanted};
use crate::messages;
use crate::program::{DType, Op, Placement};

/// The placement of the product over one axis, from those of its operands.
fn product(left: Placement, right: Placement) -> Option<Placement> {
    use Placement::{Partial, Replicate, Shard};
    match (left, right) {
        (Replicate, Replicate) => Some(Replicate),
        // Each rank has some columns.
        (Replicate, Shard(1)) => Some(Shard(1)),
        // Each rank contracts over a part of K.
        (Shard(1), Shard(0)) => Some(Partial),
        // Each rank has some rows.
        (Shard(0), Replicate) => Some(Shard(0)),
        // The product is linear in the right operand.
        (Replicate, Partial) => Some(Partial),
        _ => None,
    }
}

/// What to do about a pair that `product` refuses. `name` is the right operand's.
fn advice(left: Placement, name: &str) -> String {
    match left {
        Placement::Replicate => {
            format!("declare {name} `@ shard(1)`, `@ replicate` or `@ partial`")
        }
        Placement::Shard(0) => format!("`gather` the input first, or declare {name} `@ replicate`"),
        Placement::Shard(_) => format!("declare {name} `@ shard(0)`, or `gather` the input first"),
        Placement::Partial => "reduce it first: `reduce_scatter` or `all_reduce`".into(),
    }
}

impl<'a> Checker<'a, '_> {
    pub(super) fn gemm(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let (operand, op) = (operand?, call.op.span);
        let Some(a) = call.input else {
            self.touch(operand);
            return None;
        };
        let dtype = if a.ty.dtype == DType::F32 { DType::Bf16 } else { a.ty.dtype };
        let placement = self.infer_weight(&a, call.rest);
        let b = self.value(operand, Wanted { dtype, shape: Shape::Fresh(2), placement });

        let n_before = self.sink.len();
        let a_dims = matrix(&a.ty);
        if a_dims.is_none() {
            self.sink.push(op, messages::gemm_rank(&a.label, a.ty.dims.len()));
        }
        if a.ty.dtype == DType::F32 {
            self.sink.push(op, messages::gemm_dtype(&a.label));
        }
        let (b, at) = (b?, operand.word.span);
        if b.ty.dtype == DType::F32 {
            self.sink.push(at, messages::gemm_dtype(&b.label));
        } else if a.ty.dtype != DType::F32 && a.ty.dtype != b.ty.dtype {
            let text = messages::dtype_mismatch("gemm", a.ty.dtype, &b.label, b.ty.dtype);
            self.sink.push(at, text);
        }
        let Some([k, n]) = matrix(&b.ty) else {
            self.sink.push(at, messages::gemm_rank(&b.label, b.ty.dims.len()));
            return None;
        };
        let [m, a_k] = a_dims?;
        if !self.dims.unify(a_k, k) {
            let (left, right) = (self.dims.show(a_k), self.dims.show(k));
            self.sink.push(at, messages::gemm_contraction(&left, &right, &b.label));
        }
        let mut placement = Vec::new();
        for (axis, (&left, &right)) in a.ty.placement.iter().zip(&b.ty.placement).enumerate() {
            match product(left, right) {
                Some(p) => placement.push(p),
                None => {
                    let shown = (self.mesh.show(left, axis), self.mesh.show(right, axis));
                    let help = advice(left, &b.label);
                    self.sink.push(at, messages::gemm_placement(&shown.0, &shown.1, help));
                }
            }
        }
        if self.sink.len() != n_before {
            return None;
        }
        let ty = Ty { dtype: a.ty.dtype, dims: vec![m, n], placement };
        Some(self.push(Op::Gemm, vec![a.id, b.id], ty, a.gathered))
    }
}

fn matrix(ty: &Ty) -> Option<[super::Term; 2]> {
    ty.dims.as_slice().try_into().ok()
}
