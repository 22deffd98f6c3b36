//! The declared results, and the final numbering of values and symbols.

use super::checker::{Checker, Id, State, Ty, Value};
use super::dims::Resolved;
use super::dims::Term;
use super::types::Written;
use crate::ast::{Source, Type, Word};
use crate::messages;
use crate::program::{
    Dim, Node, Op, Program, Symbol, SymbolId, SymbolKind, Tensor, TensorType, ValueId,
};
use crate::span::Span;
use std::collections::{BTreeMap, BTreeSet};

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
                let found = value.scales.map(|(_, of)| of);
                if written.scaled != found {
                    let at = ty.scales.as_ref().map_or(ty.dtype.span, |s| s.span);
                    self.sink.push(at, messages::scaled_result(written.scaled, found));
                }
                self.result(ty, &written, &value.ty);
            }
        }
    }

    fn result(&mut self, ty: &Type<'a>, declared: &Written, found: &Ty) {
        // Room that nothing bounds has the name that the signature gives it.
        for (declared, found) in declared.dims.iter().zip(&found.dims) {
            if self.room.iter().any(|room| self.dims.root(*room) == self.dims.root(*found)) {
                self.dims.unify(*declared, *found);
            }
        }
        let whole = self.show(found);
        let shapes = (self.show_dims(&declared.dims), self.show_dims(&found.dims));
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
            let (declared, found) = shapes;
            report(ty.dims_span, "shape", declared, found);
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
            let name = format!("{}{}", param.name.text, param.suffix);
            tensors.push(Tensor { id: ValueId::new(i), name, ty });
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
            None => made_up_name(nodes.iter().flat_map(|node| match node.op {
                op @ (Op::Attention { ring: Some(_), .. }
                | Op::AttentionDq { ring: Some(_), .. }
                | Op::AttentionDk { ring: Some(_), .. }) => vec!["ring", op.name()],
                op => vec![op.name()],
            })),
        };
        let result_names = self.result_names(results);
        let params = self.params.iter().enumerate();
        let of_params = params.filter_map(|(i, p)| {
            p.scales.map(|(f, of)| (value(Id::Param(i)), (value(Id::Param(f)), of)))
        });
        let drafts = self.nodes.iter().enumerate();
        let of_nodes = drafts.filter_map(|(i, n)| {
            n.value.scales.map(|(f, of)| (value(Id::Node(i)), (value(f), of)))
        });
        let factors = of_params.chain(of_nodes).collect();
        let order = self.mesh.order();
        let program = Program {
            name,
            docs: docs.collect(),
            mesh_axes: self.mesh.axes.iter().map(|&axis| axis.to_owned()).collect(),
            symbols: symbols.list,
            results: results.iter().map(|&id| value(id)).collect(),
            result_names,
            tensors,
            nodes,
            factors,
            dropped: {
                let dropped = self.routes.iter().filter(|r| r.1).map(|r| value(r.0));
                dropped.collect::<BTreeSet<_>>().into_iter().collect()
            },
        };
        // Of axes that share a dimension, the outer one comes first.
        Some(if order.is_sorted() { program } else { program.over(&order) })
    }

    /// See [`Program::result_names`].
    fn result_names(&self, results: &[Id]) -> Vec<String> {
        let mut bound: BTreeMap<usize, Word<'a>> = BTreeMap::new();
        // Factors stand behind what they are of.
        let factors_of = |id: Id| match id {
            Id::Param(i) => self.params[i].scales.map(|(i, _)| Id::Param(i)),
            Id::Node(i) => self.nodes[i].value.scales.map(|(id, _)| id),
        };
        let is_factors = |i: usize| i > 0 && factors_of(results[i - 1]) == Some(results[i]);
        let several = (0..results.len()).filter(|i| !is_factors(*i)).count() > 1;
        if several {
            for name in self.names.values() {
                if let Some(Id::Node(i)) = name.id {
                    // Of two names for one value, the first.
                    let word = bound.entry(i).or_insert(name.word);
                    if name.word.span.start < word.span.start {
                        *word = name.word;
                    }
                }
            }
        }
        let mut taken: BTreeSet<String> = self.names.keys().map(|&name| name.to_owned()).collect();
        let (mut names, mut place) = (Vec::<String>::new(), 0);
        for (i, &id) in results.iter().enumerate() {
            // The name of a value that is two results is the first one's.
            let word = match id {
                Id::Node(node) => bound.remove(&node),
                Id::Param(_) => None,
            };
            let mut name = match (names.last().filter(|_| is_factors(i)), word) {
                (Some(of), _) => format!("{of}_scale"),
                (None, Some(word)) => {
                    names.push(word.text.to_owned());
                    place += 1;
                    continue;
                }
                (None, None) if several => format!("out{place}"),
                (None, None) => "out".to_owned(),
            };
            place += usize::from(!is_factors(i));
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            names.push(name);
        }
        names
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
            Resolved::Var { .. } | Resolved::Blocks(_) => dims.show(term),
        };
        let root = dims.root(term);
        if let Some(&id) = self.ids.get(&root) {
            return Dim::Sym(id);
        }
        // A symbol comes before its blocks.
        let of = match self.checker.dims.resolve(term) {
            Resolved::Blocks(of) => Some(self.dim(of)),
            _ => None,
        };
        let id = SymbolId::new(self.list.len());
        self.ids.insert(root, id);
        let dims = &self.checker.dims;
        let kind = match (of, self.checker.runtime.get(name.as_str())) {
            (Some(Dim::Sym(of)), _) => SymbolKind::Blocks(of),
            (_, Some(&kind)) => kind,
            (_, None) if self.checker.room.iter().any(|t| dims.root(*t) == root) => {
                SymbolKind::Room
            }
            (_, None) => SymbolKind::Fixed,
        };
        self.list.push(Symbol { name, kind });
        Dim::Sym(id)
    }
}
