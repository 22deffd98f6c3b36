//! From text to program.

use crate::{ast::Source, check, diag::Sink, parse, program::Program};

/// The program of a text, and its syntax tree.
pub(crate) fn read<'a>(source: &'a str, sink: &mut Sink) -> (Option<Program>, Option<Source<'a>>) {
    let tree = parse::parse(source, sink);
    (tree.as_ref().and_then(|tree| check::check(tree, sink)), tree)
}
