//! `view(B, S, H, D)` of rows, and `view(M, K)` of heads: the same elements, of which no two ranks exchange any.

use super::checker::{Call, Checker, Ty, Value};
use super::dims::{Resolved, Term};
use crate::ast::{Arg, ArgValue, Operand};
use crate::messages;
use crate::program::{MAX_DIM, Op, viewed};

impl<'a> Checker<'a, '_> {
    /// `x -> view(..)`, each dimension a symbol or a number.
    pub(super) fn view(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let (n_before, at) = (self.sink.len(), call.op.span);
        let mut dims = Vec::new();
        while let Some(arg) = call.args.positional() {
            dims.extend(self.viewed_dim(arg));
        }
        call.args.finish(self.sink);
        let x = call.input?;
        self.sink.fine_since(n_before)?;
        let batch = match (&x.ty.dims[..], &dims[..]) {
            ([_, _], [batch, _, _, _]) | ([batch, _, _, _], [_, _]) => *batch,
            (from, _) => {
                let shape = self.show_dims(from);
                return self.sink.refuse(at, messages::view_rank(&x.label, &shape, dims.len()));
            }
        };
        let runtime = x.ty.dims.iter().chain(&dims).find_map(|dim| match self.dims.resolve(*dim) {
            Resolved::Sym(name) if self.runtime.contains_key(name) => Some(name.to_owned()),
            _ => None,
        });
        if let Some(name) = runtime {
            return self.sink.refuse(at, messages::view_runtime(&name));
        }
        // Ranks that share one sequence share its rows.
        let alone = matches!(self.dims.resolve(batch), Resolved::Lit(1));
        let mut placement = Vec::new();
        for (axis, from) in x.ty.placement.iter().enumerate() {
            match viewed(*from, dims.len() == 4, alone) {
                Some(to) => placement.push(to),
                None => {
                    let found = self.mesh.show(*from, axis);
                    self.sink.push(at, messages::view_placement(&x.label, &found));
                }
            }
        }
        self.sink.fine_since(n_before)?;
        let ty = Ty { dtype: x.ty.dtype, dims, placement };
        Some(self.push(Op::View, vec![x.id], ty, x.gathered))
    }

    fn viewed_dim(&mut self, arg: &Arg<'a>) -> Option<Term> {
        match arg.value {
            ArgValue::Int(n) if (1..=MAX_DIM).contains(&n.value) => Some(self.dims.lit(n.value)),
            ArgValue::Int(n) => self.sink.refuse(arg.span, messages::dim_out_of_range(n.value)),
            ArgValue::Name(Operand { word, transposed: None }) => Some(self.dims.sym(word.text)),
            _ => self.sink.refuse(arg.span, messages::view_dim()),
        }
    }
}
