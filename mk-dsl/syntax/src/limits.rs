//! Bounds of what is read.

/// The longest source text, in bytes.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// The deepest nesting of brackets; the grammar itself needs four.
pub(crate) const MAX_DEPTH: usize = 32;
/// The longest identifier, in bytes: names end up in kernels and file names.
pub(crate) const MAX_IDENT: usize = 64;
