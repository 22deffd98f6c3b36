//! What no plan has more of, before anything is made as large as it; and which smaller sizes have a plan.

use super::{
    draft::Draft,
    error::{LowerError, too_large},
    lower,
};
use crate::{ir::MAX_ENTRIES, settings::Config};
use mk_syntax::{Bound, Program, SymbolKind};
use std::collections::BTreeMap;

/// Entries of tables, which whoever looks at a plan fills on every rank.
///
/// # Errors
/// [`LowerError::TooLarge`], with the table that goes beyond them.
pub(super) fn check(draft: &Draft) -> Result<(), LowerError> {
    let ranks = u64::from(draft.plan.mesh.size());
    let mut entries = 0u64;
    for (id, t) in draft.plan.tables.iter() {
        let sizes = t.shape.iter().map(|n| u64::from(*n));
        entries = entries.saturating_add(sizes.fold(ranks, u64::saturating_mul));
        if entries > MAX_ENTRIES {
            let what = format!(
                "{id} {:?} has, with the tables before it and on all ranks together, {entries} entries, of at most {MAX_ENTRIES}",
                t.name
            );
            return Err(too_large(what));
        }
    }
    Ok(())
}

/// How often a size is halved.
const HALVINGS: u32 = 20;

impl LowerError {
    /// [`LowerError::TooLarge`] with a smaller size of the pipeline with which it is lowered: the largest that is enough, half as large, or a quarter, ….
    /// Other errors as they are.
    #[must_use]
    pub fn with_what_fits(self, program: &Program, bound: &Bound, config: &Config) -> LowerError {
        match self {
            LowerError::TooLarge { what, fits: None } => {
                LowerError::TooLarge { what, fits: what_fits(program, bound, config) }
            }
            error => error,
        }
    }
}

fn what_fits(program: &Program, bound: &Bound, config: &Config) -> Option<String> {
    let given = |kind: &SymbolKind| *kind != SymbolKind::Room;
    let symbols = program.symbols().iter().zip(bound.sizes());
    let sizes: BTreeMap<String, u64> = symbols
        .filter(|(symbol, _)| given(&symbol.kind))
        .map(|(symbol, size)| (symbol.name.clone(), *size))
        .collect();
    let mut largest: Vec<_> = sizes.iter().collect();
    largest.sort_by_key(|(_, size)| std::cmp::Reverse(**size));
    for by in 1..=HALVINGS {
        for (name, size) in largest.iter().filter(|(_, size)| **size >> by > 0) {
            let mut smaller = sizes.clone();
            smaller.insert((*name).clone(), *size >> by);
            let Ok(bound) = program.bind(&smaller, &BTreeMap::new()) else { continue };
            if lower(program, &bound, config).is_ok() {
                return Some(format!("`{name}` = {}", *size >> by));
            }
        }
    }
    None
}
