//! `<M: dyn <= 8192>`, `<T: own>`: symbols that are known at launch only.

use super::checker::Checker;
use crate::ast::{DimExpr, RuntimeSymbol, Signature};
use crate::messages;
use crate::program::{MAX_DIM, SymbolKind};

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
            if self.runtime.insert(name.text, kind(symbol)).is_some() {
                self.sink.push(name.span, messages::runtime_twice(name.text));
                continue;
            }
            let is_name = |dim: &DimExpr<'_>| matches!(dim, DimExpr::Sym(w) if w.text == name.text);
            let inner = types().flat_map(|ty| ty.dims.iter().skip(1)).find(|dim| is_name(dim));
            if let (true, Some(DimExpr::Sym(at))) = (symbol.own, inner) {
                self.sink.push(at.span, messages::own_rows(name.text));
            }
            if all_read && !types().any(|ty| ty.dims.iter().any(is_name)) {
                self.sink.push(name.span, messages::runtime_unused(name.text));
            }
        }
    }
}

fn kind(symbol: &RuntimeSymbol<'_>) -> SymbolKind {
    let max = symbol.max.as_ref().map(|max| max.value);
    if symbol.own { SymbolKind::Own { max } } else { SymbolKind::Runtime { max } }
}
