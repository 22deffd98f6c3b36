//! The declared results, and the final numbering of values and symbols.

use super::dims::Resolved;
use super::types::Written;
use super::{Checker, Id, State, Term, Ty, Value};
use crate::ast::{Source, Type};
use crate::messages;
use crate::program::{
    Dim, Node, Program, Symbol, SymbolId, SymbolKind, Tensor, TensorType, ValueId,
};
use crate::span::Span;
use std::collections::BTreeMap;

/// The longest name made up for a bare chain, in bytes.
const MAX_NAME: usize = 48;

impl<'a> Checker<'a, '_> {
    /// Checks what the signature declares against what the body gives.
    pub(super) fn results(&mut self, source: &Source<'a>, found: &[Option<Value>]) {
        let Some(results) = source.signature.as_ref().and_then(|s| s.results.as_ref()) else {
            return;
        };
        if found.is_empty() {
            return;
        }
        if results.types.len() != found.len() {
            let text = messages::result_count(results.types.len(), found.len());
            self.sink.push(results.span, text);
        }
        let mut found = found.iter();
        for ty in &results.types {
            let value = found.next().and_then(Option::as_ref);
            let Some(ty) = ty else { continue };
            let written = self.written(ty);
            if let (Some(written), Some(value)) = (written, value) {
                self.result(ty, &written, &value.ty);
            }
        }
    }

    fn result(&mut self, ty: &Type<'a>, declared: &Written, found: &Ty) {
        let whole = self.show(found);
        let mut report = |span: Span, what: &str, declared: String, found: String| {
            self.sink.push(span, messages::result_type(what, &declared, &found, &whole));
        };
        if declared.dtype != found.dtype {
            report(ty.dtype.span, "dtype", declared.dtype.to_string(), found.dtype.to_string());
        }
        let dims = (&declared.dims, &found.dims);
        let same_dim = |(a, b): (&Term, &Term)| match (self.dims.resolve(*a), self.dims.resolve(*b))
        {
            (Resolved::Lit(a), Resolved::Lit(b)) => a == b,
            _ => self.dims.root(*a) == self.dims.root(*b),
        };
        if dims.0.len() != dims.1.len() || !dims.0.iter().zip(dims.1).all(same_dim) {
            let show = |dims: &[Term]| {
                let dims: Vec<String> = dims.iter().map(|&d| self.dims.show(d)).collect();
                format!("[{}]", dims.join(", "))
            };
            report(ty.dims_span, "shape", show(dims.0), show(dims.1));
        }
        if let (Some(placement), [first, .., last] | [first @ last]) =
            (&declared.placement, ty.placements.as_slice())
            && *placement != found.placement
        {
            let show = |p| self.mesh.show_all(p);
            report(first.span.to(last.span), "placement", show(placement), show(&found.placement));
        }
    }

    /// The program; `None` if something has been reported.
    pub(super) fn finish(self, source: &Source<'a>, results: &[Id]) -> Option<Program> {
        if !self.sink.is_empty() {
            return None;
        }
        let n_params = self.params.len();
        let value = |id: Id| match id {
            Id::Param(i) => ValueId::new(i),
            Id::Node(i) => ValueId::new(n_params + i),
        };
        let mut symbols = Symbols { checker: &self, list: Vec::new(), ids: BTreeMap::new() };
        let mut tensors = Vec::new();
        // Symbols are numbered as the parameters show them.
        for (i, param) in self.params.iter().enumerate() {
            let State::Known(ty) = &param.state else {
                return None;
            };
            let ty = symbols.ty(ty);
            tensors.push(Tensor { id: ValueId::new(i), name: param.name.text.to_owned(), ty });
        }
        let mut nodes = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            nodes.push(Node {
                result: value(Id::Node(i)),
                op: node.op,
                inputs: node.inputs.iter().map(|&id| value(id)).collect(),
                ty: symbols.ty(&node.value.ty),
            });
        }
        let docs = source.docs.iter().map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned());
        let name = match &source.signature {
            Some(signature) => signature.name.text.to_owned(),
            None => made_up_name(nodes.iter().map(|node| node.op.name())),
        };
        Some(Program {
            name,
            docs: docs.collect(),
            mesh_axes: self.mesh.axes.iter().map(|&axis| axis.to_owned()).collect(),
            symbols: symbols.list,
            results: results.iter().map(|&id| value(id)).collect(),
            tensors,
            nodes,
        })
    }
}

/// The operations joined by `_`, as many as fit.
fn made_up_name<'o>(ops: impl Iterator<Item = &'o str>) -> String {
    let mut name = String::new();
    for op in ops {
        if name.len() + 1 + op.len() > MAX_NAME {
            break;
        }
        if !name.is_empty() {
            name.push('_');
        }
        name.push_str(op);
    }
    if name.is_empty() { "identity".into() } else { name }
}

/// Numbers the symbols in order of first appearance.
struct Symbols<'c, 'a, 's> {
    checker: &'c Checker<'a, 's>,
    list: Vec<Symbol>,
    ids: BTreeMap<Term, SymbolId>,
}

impl Symbols<'_, '_, '_> {
    fn ty(&mut self, ty: &Ty) -> TensorType {
        TensorType {
            dtype: ty.dtype,
            dims: ty.dims.iter().map(|&dim| self.dim(dim)).collect(),
            placement: ty.placement.clone(),
        }
    }

    fn dim(&mut self, term: Term) -> Dim {
        let dims = &self.checker.dims;
        let name = match dims.resolve(term) {
            Resolved::Lit(value) => return Dim::Lit(value),
            Resolved::Sym(name) => name.to_owned(),
            Resolved::Var { .. } => dims.show(term),
        };
        let root = dims.root(term);
        if let Some(&id) = self.ids.get(&root) {
            return Dim::Sym(id);
        }
        let id = SymbolId::new(self.list.len());
        self.ids.insert(root, id);
        self.list.push(Symbol { name, kind: SymbolKind::Fixed });
        Dim::Sym(id)
    }
}
