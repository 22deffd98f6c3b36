//! `rope` and `rope_grad`: the heads of each row, turned by the angles of the row.

use super::checker::{Call, Checker, Shape, Ty, Value, Wanted};
use crate::messages;
use crate::program::{DType, Op, Placement};

impl<'a> Checker<'a, '_> {
    /// `rope(t)`, or `rope_grad(t)`, which turns back.
    pub(super) fn rope(&mut self, mut call: Call<'_, 'a>, back: bool) -> Option<Value> {
        let table = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let table = table?;
        let x = self.input_of(call.input, [table])?;
        let (n_before, at, op) = (self.sink.len(), call.op.span, Op::Rope { back });
        // Rows of the table lie where the rows are; no rank has a part of an angle.
        let placement = x.ty.placement.iter().map(|p| match p.cut() {
            Some(0) => *p,
            _ => Placement::Replicate,
        });
        let placement: Vec<_> = placement.collect();
        let wanted =
            Wanted { dtype: DType::F32, shape: Shape::Fresh(2), placement: placement.clone() };
        let t = self.value(table, wanted);
        if x.ty.dims.len() != 2 {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(at, messages::rope_rank(op.name(), &x.label, &shape));
        }
        if x.ty.placement.contains(&Placement::Partial) {
            self.sink.push(at, messages::rope_partial(op.name(), &x.label));
        }
        let t = t?;
        if t.ty.dtype != DType::F32 {
            let text = messages::rope_table(op.name(), &t.label, t.ty.dtype);
            self.sink.push(table.word.span, text);
        }
        let (Some(rows), Some(angles)) = (x.ty.dims.first(), t.ty.dims.last()) else { return None };
        // As element by element, whatever the dtype is.
        let wide = Ty { dtype: DType::F32, ..x.ty.clone() };
        let wide = Value { ty: wide, ..x.clone() };
        self.same(op, &wide, &t, (&[*rows, *angles], &placement), at, table)?;
        self.sink.fine_since(n_before)?;
        Some(self.push(op, vec![x.id, t.id], x.ty, x.gathered))
    }
}
