//! `<M: dyn <= 8192>`: symbols that are known at launch only.

use super::checker::Checker;
use crate::ast::{DimExpr, Signature};
use crate::messages;
use crate::program::MAX_DIM;

impl<'a> Checker<'a, '_> {
    pub(super) fn runtime_symbols(&mut self, signature: &Signature<'a>) {
        // A parameter whose type could not be read may have had the symbol.
        let all_read = signature.params.iter().all(|p| p.ty.is_some());
        let types = || signature.params.iter().filter_map(|p| p.ty.as_ref());
        for symbol in &signature.runtime {
            let name = symbol.name;
            if let Some(max) = symbol.max.filter(|max| !(1..=MAX_DIM).contains(&max.value)) {
                self.sink.push(max.span, messages::dim_out_of_range(max.value));
            }
            if self.runtime.insert(name.text, symbol.max.map(|max| max.value)).is_some() {
                self.sink.push(name.span, messages::runtime_twice(name.text));
                continue;
            }
            let is_name = |dim: &DimExpr<'_>| matches!(dim, DimExpr::Sym(w) if w.text == name.text);
            if all_read && !types().any(|ty| ty.dims.iter().any(is_name)) {
                self.sink.push(name.span, messages::runtime_unused(name.text));
            }
        }
    }
}
