//! The `pipeline!` macro: `write -> check -> expand`.
//!
//! - `source`: the tokens written as text, and the token behind each byte of it;
//! - check: [`mk_syntax`], the same as for run-time strings;
//! - `expand`: a function that returns the program, or the mistakes on their tokens.
//!
//! Architecture invariant: the macro knows nothing of the language save where an item's name
//! is. It checks the very text that it embeds.

mod expand;
mod source;

use proc_macro::TokenStream;

/// Declares a pipeline, checked when the macro expands.
///
/// ```ignore
/// mk::pipeline! {
///     /// Column-parallel linear layer.
///     pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
///         gather(x) -> gemm(w)
///     }
/// }
/// let program: mk::Program = linear();
/// ```
///
/// The item becomes a function of its name, visibility, docs and attributes, without
/// parameters, that returns the checked `mk::Program`. `docs/dsl.md` describes the language.
///
/// # Errors
///
/// Each mistake is a compile error on its token, with a help line; the function is declared all
/// the same, so that its uses are no further errors.
#[proc_macro]
pub fn pipeline(input: TokenStream) -> TokenStream {
    expand::pipeline(input.into()).into()
}
