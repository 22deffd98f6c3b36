//! Numbers that follow from a `view`: of rows `M = B * S`, of columns `K = H * D`.

use super::{BindError, Binder, Given};
use crate::program::{Def, Dim, Op};

/// A dimension, and the two of which it is the product.
type Relation = [Dim; 3];

impl Binder<'_> {
    /// Gives symbols that only a `view` has their numbers, and checks all of them.
    pub(super) fn views(&mut self) {
        let mut relations = self.relations();
        let mut at = 0;
        while at < relations.len() {
            at = if self.follow(relations[at]) { 0 } else { at + 1 };
        }
        relations.retain(|relation| !self.holds(*relation));
        for [whole, first, second] in relations {
            let error = BindError::View {
                whole: self.shown(whole),
                factors: [first, second].map(|dim| self.shown(dim)),
            };
            if !self.errors.contains(&error) {
                self.errors.push(error);
            }
        }
    }

    /// Whether numbers that are known make the product; of one that is not known, some number would.
    fn holds(&self, relation: Relation) -> bool {
        match relation.map(|dim| self.known(dim)) {
            [Some(size), Some(one), Some(other)] => one.checked_mul(other) == Some(size),
            [Some(size), Some(by), None] | [Some(size), None, Some(by)] => {
                exactly(size, by).is_some()
            }
            _ => true,
        }
    }

    fn relations(&self) -> Vec<Relation> {
        let mut list = Vec::new();
        for node in self.program.nodes().iter().filter(|n| n.op == Op::View) {
            let from = node.inputs.first().and_then(|id| self.program.def(*id));
            let from = match from {
                Some(Def::Param(tensor)) => &tensor.ty.dims,
                Some(Def::Node(node)) => &node.ty.dims,
                None => continue,
            };
            if let ([m, k], [b, s, h, d]) | ([b, s, h, d], [m, k]) =
                (from.as_slice(), node.ty.dims.as_slice())
            {
                list.extend([[*m, *b, *s], [*k, *h, *d]]);
            }
        }
        list
    }

    /// Whether one number of a relation follows from the others, and is new.
    fn follow(&mut self, [whole, first, second]: Relation) -> bool {
        let (dim, size) = match [whole, first, second].map(|dim| self.known(dim)) {
            [None, Some(one), Some(other)] => (whole, one.checked_mul(other)),
            [Some(size), None, Some(by)] => (first, exactly(size, by)),
            [Some(size), Some(by), None] => (second, exactly(size, by)),
            _ => return false,
        };
        let (Dim::Sym(symbol), Some(size)) = (dim, size) else { return false };
        self.set(symbol, size, Given::View);
        true
    }

    fn known(&self, dim: Dim) -> Option<u64> {
        match dim {
            Dim::Lit(n) => Some(self.literals.get(&n).copied().unwrap_or(n)),
            Dim::Sym(symbol) => {
                let declared = self.declared_max(symbol.index());
                self.given[symbol.index()].as_ref().map(|(size, _)| *size).or(declared)
            }
        }
    }

    fn shown(&self, dim: Dim) -> String {
        match (dim, self.known(dim)) {
            (Dim::Lit(n), known) => known.unwrap_or(n).to_string(),
            (Dim::Sym(symbol), known) => {
                let name = &self.program.symbols()[symbol.index()].name;
                known.map_or_else(|| format!("a whole `{name}`"), |n| format!("`{name}` = {n}"))
            }
        }
    }
}

fn exactly(size: u64, by: u64) -> Option<u64> {
    (by > 0 && size.is_multiple_of(by)).then(|| size / by)
}
