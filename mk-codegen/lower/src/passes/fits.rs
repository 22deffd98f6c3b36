//! Which smaller sizes of a pipeline have a plan, where its own are too large.

use super::{LowerError, lower};
use crate::settings::Config;
use mk_syntax::{Bound, Program, SymbolKind};
use std::collections::BTreeMap;

/// How often a size is halved.
const HALVINGS: u32 = 20;

impl LowerError {
    /// [`LowerError::TooLarge`] with a smaller size of the pipeline with which it is lowered: the largest that is
    /// enough, half as large, or a quarter, …. Other errors as they are.
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
    let given = |kind: &SymbolKind| !matches!(kind, SymbolKind::Room | SymbolKind::Blocks(_));
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
