//! `rmsnorm` and `rmsnorm_grad`: each row, along the last dimension, which no two ranks share.

use super::checker::{Call, Checker, Id, Shape, Value, Wanted};
use crate::ast::Operand;
use crate::messages;
use crate::program::{DType, Op, Placement};

/// Where `eps` is not given.
const EPS: f64 = 1e-6;

impl<'a> Checker<'a, '_> {
    /// `rmsnorm(g)`, or `rmsnorm` without a weight.
    pub(super) fn rmsnorm(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let eps = self.eps(&mut call)?;
        let weight = self.weight(&mut call)?;
        call.args.finish(self.sink);
        let x = self.input_of(call.input, weight)?;
        let n_before = self.sink.len();
        self.rows(call.op.text, call.op.span, &x);
        let op = Op::RmsNorm { eps };
        let g = match weight {
            Some(g) => Some(self.weight_of(op, &x, g, call.op.span)?),
            None => None,
        };
        self.sink.fine_since(n_before)?;
        let inputs = [x.id].into_iter().chain(g).collect();
        Some(self.push(op, inputs, x.ty, x.gathered))
    }

    /// `rmsnorm_grad(x, g)` of the gradient of what `rmsnorm(x, g)` gives.
    pub(super) fn rmsnorm_grad(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let eps = self.eps(&mut call)?;
        let second = call.args.operand(self.sink)?;
        let weight = self.weight(&mut call)?;
        call.args.finish(self.sink);
        let d = self.input_of(call.input, [second].into_iter().chain(weight))?;
        let (n_before, at) = (self.sink.len(), call.op.span);
        self.rows(call.op.text, at, &d);
        let op = Op::RmsNormGrad { eps };
        let x = self.value(second, d.ty.wanted())?;
        self.same(op, &d, &x, (&d.ty.dims, &d.ty.placement), at, second)?;
        let g = match weight {
            Some(g) => Some(self.weight_of(op, &d, g, at)?),
            None => None,
        };
        self.sink.fine_since(n_before)?;
        let inputs = [d.id, x.id].into_iter().chain(g).collect();
        Some(self.push(op, inputs, d.ty, d.gathered))
    }

    fn eps(&mut self, call: &mut Call<'_, 'a>) -> Option<f64> {
        let eps = call.args.key_number("eps", self.sink)?.unwrap_or(EPS);
        if !(eps > 0.0 && (eps as f32).is_finite() && eps as f32 > 0.0) {
            return self.sink.refuse(call.op.span, messages::rmsnorm_eps(call.op.text));
        }
        Some(eps)
    }

    /// The weight, if there is one; the outer `None` is a mistake.
    fn weight(&mut self, call: &mut Call<'_, 'a>) -> Option<Option<Operand<'a>>> {
        match call.args.next_name() {
            Some(_) => call.args.operand(self.sink).map(Some),
            None => Some(None),
        }
    }

    /// A vector along the rows, which every rank has.
    fn weight_of(
        &mut self,
        op: Op,
        x: &Value,
        g: Operand<'a>,
        at: crate::span::Span,
    ) -> Option<Id> {
        let dims: Vec<_> = x.ty.dims.last().copied().into_iter().collect();
        let placement = vec![Placement::Replicate; x.ty.placement.len()];
        let dtype = if x.ty.dtype == DType::F32 { DType::Bf16 } else { x.ty.dtype };
        let shape = Shape::Like(dims.clone());
        let y = self.value(g, Wanted { dtype, shape, placement: placement.clone() })?;
        self.same(op, x, &y, (&dims, &placement), at, g)?;
        Some(y.id)
    }

    fn rows(&mut self, op: &str, at: crate::span::Span, x: &Value) {
        let last = x.ty.dims.len().saturating_sub(1);
        if last == 0 {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(at, messages::rmsnorm_rank(op, &x.label, &shape));
        }
        if x.ty.placement.contains(&Placement::Partial) {
            self.sink.push(at, messages::nonlinear_on_partial(op, &x.label));
        } else if x.ty.placement.iter().any(|p| p.cut() == Some(last)) {
            let found = self.mesh.show_all(&x.ty.placement);
            self.sink.push(at, messages::rmsnorm_rows(op, &x.label, &found));
        }
    }
}
