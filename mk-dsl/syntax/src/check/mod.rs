//! Syntax tree to [`Program`]: names, dtypes, symbolic shapes, placements.
//!
//! One walk over the body in source order. A value with a mistake in it is absent (`None`), and
//! whatever depends on it is then resolved, for the mistakes in its own names and arguments,
//! but not typed; so every message is a cause and none is a consequence.
//!
//! A tensor without annotation is *open* until its first use, which gives it the type that the
//! operation there wants.

mod args;
mod attention;
mod attention_grad;
mod chain;
mod checker;
mod collective;
mod dims;
mod dispatch;
mod elementwise;
mod finish;
mod gemm;
mod grouped;
mod infer;
mod mesh;
mod quantize;
mod rmsnorm;
mod rope;
mod runtime;
mod swiglu;
mod types;
mod view;

use crate::ast::Source;
use crate::diag::Sink;
use crate::program::Program;
use checker::Checker;
use dims::Dims;
use mesh::Mesh;
use std::collections::BTreeMap;

/// Checks `source`. `None` if something has been reported.
pub(crate) fn check(source: &Source<'_>, sink: &mut Sink) -> Option<Program> {
    let mesh = Mesh::of(source, sink)?;
    let mut checker = Checker {
        sink,
        mesh,
        dims: Dims::default(),
        is_bare: source.signature.is_none(),
        runtime: BTreeMap::new(),
        bound_later: source.body.lets.iter().map(|binding| binding.name.text).collect(),
        names: BTreeMap::new(),
        statistics: attention_grad::statistics(source),
        params: Vec::new(),
        nodes: Vec::new(),
        room: Vec::new(),
        routes: Vec::new(),
    };
    if let Some(signature) = &source.signature {
        checker.signature(signature);
    }
    for binding in &source.body.lets {
        let value = checker.chain(&binding.chain);
        checker.define(binding.name, value.map(|v| v.id));
    }
    let results: Vec<_> = source.body.results.iter().map(|c| checker.chain(c)).collect();
    checker.results(source, &results);
    // What has a mistake may be where a name is meant to be used.
    if checker.sink.is_empty() {
        checker.report_unused();
        checker.report_f32(&results);
        checker.report_integers(&results);
    }
    let with_factors = |v: checker::Value| [Some(v.id), v.scales.map(|(id, _)| id)];
    let results: Vec<_> =
        results.into_iter().map(|v| v.map(with_factors)).collect::<Option<_>>()?;
    let results: Vec<_> = results.into_iter().flatten().flatten().collect();
    checker.finish(source, &results)
}
