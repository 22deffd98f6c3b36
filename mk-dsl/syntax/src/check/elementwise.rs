//! `bias`, `gelu`, `silu`, `relu`, `mul`, `add`, `scale`, `cast`: the placement stays.

use super::checker::{Call, Checker, Shape, Ty, Value, Wanted};
use super::dims::Term;
use crate::ast::Operand;
use crate::messages;
use crate::program::{Curve, DType, Op, Placement};
use crate::span::Span;
use crate::suggest::nearest;

/// The shape and placement of what a value is multiplied by, element by element.
fn beside(x: &Ty) -> (Vec<Term>, Vec<Placement>) {
    let placement = x.placement.iter().map(|p| match p {
        Placement::Partial => Placement::Replicate,
        p => *p,
    });
    (x.dims.clone(), placement.collect())
}

impl<'a> Checker<'a, '_> {
    /// `gelu`, `silu`, `relu`.
    pub(super) fn nonlinear(&mut self, call: Call<'_, 'a>, op: Op) -> Option<Value> {
        call.args.finish(self.sink);
        let input = call.input?;
        if input.ty.placement.contains(&Placement::Partial) {
            let text = messages::nonlinear_on_partial(op.name(), &input.label);
            return self.sink.refuse(call.op.span, text);
        }
        Some(self.unary(input, op))
    }

    /// `scale(0.5)`: linear, so that partial sums may be scaled.
    pub(super) fn scale(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let factor = call.args.number(self.sink);
        call.args.finish(self.sink);
        let (factor, input) = (factor?, call.input?);
        Some(self.unary(input, Op::Scale(factor)))
    }

    /// `cast(f32)`. Partial sums may be cast: each rank rounds its own.
    pub(super) fn cast(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let word = call.args.word("a dtype", self.sink);
        call.args.finish(self.sink);
        let word = word?;
        let Some(dtype) = DType::from_name(word.text) else {
            let near = nearest(word.text, DType::ALL.map(DType::name));
            return self.sink.refuse(word.span, messages::unknown_dtype(word.text, near));
        };
        if dtype.is_integer() {
            return self.sink.refuse(word.span, messages::cast_to_integers());
        }
        let mut input = call.input?;
        input.ty.dtype = dtype;
        Some(self.unary(input, Op::Cast(dtype)))
    }

    fn unary(&mut self, input: Value, op: Op) -> Value {
        self.push(op, vec![input.id], input.ty, input.gathered)
    }

    /// `bias(c)`: a vector along the columns, with their placement; of rows of experts one for each expert, placed as
    /// they are.
    pub(super) fn bias(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        if let Some(x) = call.input.as_ref().filter(|x| x.ragged.is_some()) {
            let Some(experts) = self.experts_of(x.id) else {
                self.sink.push(call.op.span, messages::bias_of_experts(&x.label));
                call.args.operand(self.sink).into_iter().for_each(|vectors| self.touch(vectors));
                return None;
            };
            return self.binary(call, Op::Bias, |x| {
                let dims = [experts].into_iter().chain(x.dims.iter().skip(1).copied());
                (dims.collect(), x.placement.clone())
            });
        }
        self.binary(call, Op::Bias, |x| {
            let last = x.dims.len().checked_sub(1);
            let placement = x.placement.iter().map(|p| match p {
                Placement::Shard(dim) if Some(*dim) == last => Placement::Shard(0),
                _ => Placement::Replicate,
            });
            (x.dims.last().copied().into_iter().collect(), placement.collect())
        })
    }

    /// `mul(y)`: linear in the input, so that partial sums may be multiplied by what every
    /// rank has.
    pub(super) fn mul(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        self.binary(call, Op::Mul, beside)
    }

    /// `gelu_grad(h)` and its like: linear in the gradient, so that partial sums of it may be multiplied by what every
    /// rank has.
    pub(super) fn slope(&mut self, call: Call<'_, 'a>, curve: Curve) -> Option<Value> {
        self.binary(call, Op::Slope(curve), beside)
    }

    /// `add(y)`: partial sums may be added to partial sums.
    pub(super) fn add(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        self.binary(call, Op::Add, |x| (x.dims.clone(), x.placement.clone()))
    }

    /// `operand` gives the shape and placement that the second operand must have.
    fn binary(
        &mut self,
        mut call: Call<'_, 'a>,
        op: Op,
        operand: impl Fn(&Ty) -> (Vec<Term>, Vec<Placement>),
    ) -> Option<Value> {
        let second = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let second = second?;
        let x = self.input_of(call.input, [second])?;
        let (dims, placement) = operand(&x.ty);
        let dtype = if x.ty.dtype == DType::F32 { DType::Bf16 } else { x.ty.dtype };
        let shape = Shape::Like(dims.clone());
        let y = self.value(second, Wanted { dtype, shape, placement: placement.clone() });
        if op == Op::Bias && x.ty.placement.contains(&Placement::Partial) {
            return self.sink.refuse(call.op.span, messages::adds_once_per_rank("bias", &x.label));
        }
        let y = y?;
        self.same(op, &x, &y, (&dims, &placement), call.op.span, second)?;
        Some(self.push(op, vec![x.id, y.id], x.ty, x.gathered))
    }

    /// Checks the second operand against what is wanted of it.
    pub(super) fn same(
        &mut self,
        op: Op,
        x: &Value,
        y: &Value,
        (dims, placement): (&[Term], &[Placement]),
        op_span: Span,
        Operand { word, .. }: Operand<'a>,
    ) -> Option<()> {
        let (n_before, name, at) = (self.sink.len(), op.name(), word.span);
        // The epilogue computes in f32, so an f32 input takes a 16-bit operand as it is.
        if y.ty.dtype.is_storage() {
            self.sink.push(at, messages::storage_only(name, &y.label, y.ty.dtype, false));
        } else if y.ty.dtype != x.ty.dtype && x.ty.dtype != DType::F32 {
            let text = messages::dtype_mismatch(name, x.ty.dtype, &y.label, y.ty.dtype);
            self.sink.push(at, text);
        }
        if y.ty.dims.len() != dims.len() {
            let text = messages::elementwise_rank(name, dims.len(), &y.label, y.ty.dims.len());
            return self.sink.refuse(at, text);
        }
        for (&want, &found) in dims.iter().zip(&y.ty.dims) {
            self.fit([want, found], at, |want, found| {
                messages::elementwise_dim(name, want, &y.label, found)
            });
        }
        for (axis, (&want, &found)) in placement.iter().zip(&y.ty.placement).enumerate() {
            if want == found {
                continue;
            }
            if op == Op::Add && want == Placement::Partial {
                self.sink.push(op_span, messages::adds_once_per_rank(name, &x.label));
                continue;
            }
            let (want, found) = (self.mesh.show(want, axis), self.mesh.show(found, axis));
            self.sink.push(at, messages::elementwise_placement(name, &want, &y.label, &found));
        }
        (self.sink.len() == n_before).then_some(())
    }
}
