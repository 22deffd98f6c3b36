//! Any text as a pipeline: parsed, bound to small sizes, lowered and verified. What lowers must verify.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_codegen::passes::{Config, LowerError, compile};
use mk_syntax::{Program, file};
use std::collections::BTreeMap;

fuzz_target!(|text: &str| {
    let _ = file::defaults(text);
    let program = match Program::parse(text) {
        Ok(program) => program,
        Err(mistakes) => {
            for m in &mistakes {
                assert!(text.get(m.span.start..m.span.end).is_some(), "{m:?}");
            }
            return;
        }
    };
    let symbols = program.symbols().iter().map(|s| (s.name.clone(), 96)).collect();
    let Ok(bound) = program.bind(&symbols, &BTreeMap::new()) else { return };
    let config = Config { ranks: 2, ..Config::default() };
    if let Err(e @ (LowerError::Structure(_) | LowerError::Verify(_))) =
        compile(&program, &bound, &config)
    {
        panic!("{e}");
    }
});
