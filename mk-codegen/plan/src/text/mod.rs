//! Words of the text format, and what is read of them.

mod cursor;
mod error;
mod expr;
mod lexer;

pub(super) use cursor::{Cursor, Scope};
pub use error::ReadError;
pub(crate) use error::Result;
pub(super) use expr::MEANT;
pub(super) use lexer::lex;
