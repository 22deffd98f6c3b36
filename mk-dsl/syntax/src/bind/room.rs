//! Room for dispatched rows: as many as no routing exceeds.

use super::{BindErrors, Binder, Bound, Given};
use crate::program::{Dim, Node, Op, Program, RAGGED_BLOCK, Symbol, SymbolId, SymbolKind};

impl Bound {
    /// The same numbers on so many ranks: [`SymbolKind::Room`] depends on them. Each rank has room for all tokens in as
    /// many of its experts as a token may name, and for a last block of each expert that is not full.
    ///
    /// # Errors
    /// As [`Program::bind`], for room that is beyond [`MAX_DIM`](crate::MAX_DIM).
    pub fn on(&self, program: &Program, ranks: u32) -> Result<Bound, BindErrors> {
        if self.room.is_empty() || self.ranks == u64::from(ranks) {
            return Ok(self.clone());
        }
        let kept = self.sizes.iter().map(|&size| Some((size, Given::Elsewhere)));
        let mut given: Vec<_> = kept.collect();
        given.resize(program.symbols().len(), None);
        self.room.iter().for_each(|s| given[s.index()] = None);
        let binder = Binder::new(program, given, self.literals.clone());
        binder.finish(Some(&self.max_sizes), u64::from(ranks))
    }
}

impl Program {
    /// Whether an extent is room that nothing bounds.
    pub(crate) fn is_room(&self, dim: Dim) -> bool {
        let Dim::Sym(symbol) = dim else { return false };
        self.symbols().get(symbol.index()).is_some_and(|s| s.kind == SymbolKind::Room)
    }
}

impl Binder<'_> {
    /// Gives room its numbers, where it has none and all that it follows from have: whose they are. `kept` has upper
    /// bounds: room is for as many tokens as any launch has.
    pub(super) fn room(&mut self, kept: Option<&[u64]>, ranks: u64) -> Vec<SymbolId> {
        let program = self.program;
        let mut found = Vec::new();
        for node in program.nodes().iter().filter(|n| matches!(n.op, Op::Dispatch { .. })) {
            let Some(&Dim::Sym(symbol)) = node.ty.dims.first() else { continue };
            if !program.is_room(Dim::Sym(symbol)) || self.given[symbol.index()].is_some() {
                continue;
            }
            if let Some(rows) = self.rows(node, kept, ranks.max(1)) {
                self.set(symbol, rows, Given::Routing);
                found.push(symbol);
            }
        }
        found
    }

    fn rows(&self, dispatch: &Node, kept: Option<&[u64]>, ranks: u64) -> Option<u64> {
        let program = self.program;
        let number = |dim: &Dim| match *dim {
            Dim::Lit(n) => Some(self.literals.get(&n).copied().unwrap_or(n)),
            Dim::Sym(symbol) => {
                let i = symbol.index();
                let is_runtime = |s: &Symbol| matches!(s.kind, SymbolKind::Runtime { .. });
                let most = kept.and_then(|max| max.get(i).copied()).or(self.declared_max(i));
                let most = most.filter(|_| program.symbols().get(i).is_some_and(is_runtime));
                let given = self.given.get(i).and_then(Option::as_ref).map(|given| given.0);
                // Of a rank's own number that is not given, the bound that is declared.
                most.or(given).or_else(|| self.declared_max(i))
            }
        };
        let ids = *dispatch.inputs.get(1)?;
        let [tokens, slots] = &program.ty(ids)?.dims[..] else { return None };
        let (tokens, slots) = (number(tokens)?, number(slots)?);
        let experts = match program.experts_of(ids) {
            Some(experts) => number(&experts)?,
            // As many as it takes.
            None => slots.saturating_mul(ranks),
        };
        let own = experts.div_ceil(ranks);
        let rows = tokens.saturating_mul(slots.min(own));
        // An expert with a row may have a block that is not full.
        let padded = rows.saturating_add((RAGGED_BLOCK - 1).saturating_mul(own.min(rows)));
        Some((padded / RAGGED_BLOCK * RAGGED_BLOCK).saturating_mul(ranks))
    }
}
