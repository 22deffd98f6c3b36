//! The pipeline language of mk: parser and type checker.
//!
//! ```text
//! text ── lex ──> tokens ── parse ──> syntax tree ── check ──> Program ── bind ──> Bound
//! ```
//!
//! The macro `mk::pipeline!` and run-time strings take the same path: the macro writes its
//! tokens as text, checks that text here, and embeds it. `docs/dsl.md` describes the language.
//!
//! Architecture invariants:
//! - no input makes this crate panic, and no input keeps it busy: sizes are checked first, and
//!   nothing is recursive;
//! - every mistake is a [`Diagnostic`] with a place, a message and a help line, and all of them
//!   are reported at once;
//! - the crate depends on nothing of mk, nor on a Rust parser.

mod alias;
mod ast;
mod axis;
mod bind;
mod check;
mod diag;
mod excerpt;
pub mod file;
pub mod grad;
mod lex;
mod limits;
mod messages;
mod ops;
mod parse;
mod print;
mod program;
mod read;
mod repair;
mod span;
mod suggest;

pub use axis::TwoAxes;
pub use bind::{BindError, BindErrors, Bound, Given};
pub use diag::{Diagnostic, Diagnostics};
pub use excerpt::Excerpt;
pub use program::{
    AxisId, Curve, DType, Def, Dim, Factors, MAX_DIM, Node, Op, Placement, Program, RAGGED_BLOCK,
    SCALE_BLOCK, Scores, Symbol, SymbolId, SymbolKind, Tensor, TensorType, ValueId,
};
pub use span::Span;

impl Program {
    /// Reads and checks a pipeline: a bare chain such as `gather(a) -> gemm(b)`, or the text of
    /// a `pub fn`.
    ///
    /// # Errors
    ///
    /// Every mistake in `source`, each with its line and column.
    pub fn parse(source: &str) -> Result<Program, Diagnostics> {
        let mut sink = diag::Sink::default();
        let (program, tree) = read::read(source, &mut sink);
        if let (None, Some(tree)) = (&program, &tree) {
            repair::repair(source, tree, &mut sink);
        }
        sink.finish(source, program)
    }
}

/// The program of a text that `mk::pipeline!` has checked already.
#[doc(hidden)]
pub fn checked(source: &str) -> Program {
    match Program::parse(source) {
        Ok(program) => program,
        Err(mistakes) => unreachable!("a pipeline checked at compile time is wrong:\n{mistakes}"),
    }
}
