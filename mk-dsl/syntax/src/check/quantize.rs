//! `quantize` and `dequantize`: values of eight bits with factors, made of 16 bits and made into them.

use super::checker::{Call, Checker, Ty, Value};
use crate::messages;
use crate::program::{DType, Factors, Op, Placement, SCALE_BLOCK};
use crate::suggest::nearest;

impl<'a> Checker<'a, '_> {
    /// `quantize(e4m3, 1, 128)`: a value with factors, which are a value of their own.
    pub(super) fn quantize(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let word = call.args.word("a dtype", self.sink);
        let block = [call.args.number(self.sink), call.args.number(self.sink)];
        call.args.finish(self.sink);
        let (n_before, at) = (self.sink.len(), call.op.span);
        let word = word?;
        let dtype = DType::from_name(word.text);
        match dtype {
            None => {
                let near = nearest(word.text, DType::ALL.map(DType::name));
                self.sink.push(word.span, messages::unknown_dtype(word.text, near));
            }
            Some(dtype) if !dtype.is_narrow() => {
                self.sink.push(word.span, messages::quantize_to(dtype));
            }
            _ => {}
        }
        if let [Some(rows), Some(columns)] = block
            && [rows, columns] != [1.0, SCALE_BLOCK as f64]
        {
            self.sink.push(at, messages::quantize_blocks());
        }
        let x = call.input?;
        if x.ty.dims.len() != 2 {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(at, messages::quantize_rank(&x.label, &shape));
        }
        if !x.ty.dtype.multiplies() {
            self.sink.push(at, messages::quantize_of(&x.label, x.ty.dtype));
        }
        if x.ty.placement.contains(&Placement::Partial) {
            self.sink.push(at, messages::quantize_partial(&x.label));
        }
        if x.ty.placement.iter().any(|p| matches!(p, Placement::Zigzag(_))) {
            self.sink.push(at, messages::zigzag_elsewhere("quantize", &x.label));
        }
        let [Some(_), Some(_)] = block else { return None };
        let (dtype, of) = (dtype?, Factors::Steps);
        self.sink.fine_since(n_before)?;
        let ty = Ty { dtype, ..x.ty };
        let factors = self.scales_ty(&ty, of);
        let q = self.push(Op::Quantize(of), vec![x.id], ty, x.gathered.clone());
        let factors = self.push(Op::Factor(of), vec![q.id], factors, x.gathered);
        Some(self.keep_scales(q, Some((factors.id, of))))
    }

    /// `dequantize`: values times their factors, rounded to bf16.
    pub(super) fn dequantize(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        call.args.finish(self.sink);
        let x = call.input?;
        match x.scales {
            Some((factors, of @ Factors::Steps)) => {
                let ty = Ty { dtype: DType::Bf16, ..x.ty };
                Some(self.push(Op::Dequantize(of), vec![x.id, factors], ty, x.gathered))
            }
            of => self.sink.refuse(call.op.span, messages::dequantize_of(&x.label, of.is_some())),
        }
    }
}
