//! Why a text is no plan.

use thiserror::Error;

/// A text that is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}\n  | {excerpt}")]
pub struct ReadError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// The line.
    pub excerpt: String,
}

/// What reading gives.
pub(crate) type Result<T, E = ReadError> = std::result::Result<T, E>;

impl ReadError {
    pub(crate) fn new(source: &str, at: usize, message: impl Into<String>) -> ReadError {
        let before = &source[..at.min(source.len())];
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let excerpt: String =
            source[start..].lines().next().unwrap_or("").chars().take(200).collect();
        ReadError {
            line: before.matches('\n').count() + 1,
            column: source[start..before.len()].chars().count() + 1,
            message: message.into(),
            excerpt,
        }
    }
}
