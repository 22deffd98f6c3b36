//! Symbolic dimensions and their unification.
//!
//! Symbols and numbers of the source are rigid: `M` equals `M` only. The dimensions of a tensor
//! without annotation are variables, and equal whatever the operations make them.

use crate::program::SCALE_BLOCK;
use std::collections::BTreeMap;

/// A dimension under inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Term(u32);

#[derive(Clone, Debug)]
enum Kind {
    Sym(String),
    Lit(u64),
    /// Dimension `.1` of the tensor `.0`.
    Var(String, usize),
    /// Blocks of 128 elements of a symbol.
    Blocks(Term),
    /// Equal to an earlier term.
    Same(Term),
}

/// What a dimension turned out to be.
pub(super) enum Resolved<'a> {
    Sym(&'a str),
    Lit(u64),
    Var {
        tensor: &'a str,
        dim: usize,
    },
    /// Blocks of a symbol's elements.
    Blocks(Term),
}

/// The union-find forest of all terms.
#[derive(Debug, Default)]
pub(super) struct Dims {
    kinds: Vec<Kind>,
    syms: BTreeMap<String, Term>,
}

impl Dims {
    fn push(&mut self, kind: Kind) -> Term {
        // The source is at most 64 KiB, so there are far fewer terms than 2^32.
        let term = Term(self.kinds.len() as u32);
        self.kinds.push(kind);
        term
    }

    pub fn sym(&mut self, name: &str) -> Term {
        if let Some(&term) = self.syms.get(name) {
            return term;
        }
        let term = self.push(Kind::Sym(name.to_owned()));
        self.syms.insert(name.to_owned(), term);
        term
    }

    pub fn lit(&mut self, value: u64) -> Term {
        self.push(Kind::Lit(value))
    }

    /// Blocks of a dimension that is written.
    pub fn blocks(&mut self, of: Term) -> Term {
        let of = self.root(of);
        if let Kind::Lit(n) = self.kinds[of.0 as usize] {
            return self.lit(n.div_ceil(SCALE_BLOCK));
        }
        let known = |kind: &Kind| matches!(kind, Kind::Blocks(other) if *other == of);
        match self.kinds.iter().position(known) {
            Some(i) => Term(i as u32),
            None => self.push(Kind::Blocks(of)),
        }
    }

    pub fn var(&mut self, tensor: &str, dim: usize) -> Term {
        self.push(Kind::Var(tensor.to_owned(), dim))
    }

    /// The representative of the terms equal to `term`.
    pub fn root(&self, mut term: Term) -> Term {
        while let Kind::Same(parent) = &self.kinds[term.0 as usize] {
            term = *parent;
        }
        term
    }

    /// Makes two dimensions equal; false if they cannot be.
    pub fn unify(&mut self, a: Term, b: Term) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return true;
        }
        match (&self.kinds[a.0 as usize], &self.kinds[b.0 as usize]) {
            (Kind::Lit(x), Kind::Lit(y)) => x == y,
            // The earlier variable names the class.
            (Kind::Var(..), Kind::Var(..)) => {
                self.kinds[a.max(b).0 as usize] = Kind::Same(a.min(b));
                true
            }
            (Kind::Var(..), _) => {
                self.kinds[a.0 as usize] = Kind::Same(b);
                true
            }
            (_, Kind::Var(..)) => {
                self.kinds[b.0 as usize] = Kind::Same(a);
                true
            }
            _ => false,
        }
    }

    pub fn resolve(&self, term: Term) -> Resolved<'_> {
        match &self.kinds[self.root(term).0 as usize] {
            Kind::Sym(name) => Resolved::Sym(name),
            Kind::Lit(value) => Resolved::Lit(*value),
            Kind::Var(tensor, dim) => Resolved::Var { tensor, dim: *dim },
            Kind::Blocks(of) => Resolved::Blocks(*of),
            // `root` ends at a term that is no `Same`.
            Kind::Same(_) => Resolved::Lit(0),
        }
    }

    /// As messages show it.
    pub fn show(&self, term: Term) -> String {
        match self.resolve(term) {
            Resolved::Sym(name) => name.to_owned(),
            Resolved::Lit(value) => value.to_string(),
            Resolved::Var { tensor, dim } => format!("{tensor}_{dim}"),
            Resolved::Blocks(of) => {
                let mut name = format!("{}_{SCALE_BLOCK}", self.show(of));
                while self.syms.contains_key(&name) {
                    name.push('_');
                }
                name
            }
        }
    }
}
