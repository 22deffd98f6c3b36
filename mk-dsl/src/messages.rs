//! What the macros say of their own; mistakes of the language are in `mk-syntax`.
//!
//! House rules as there: the message says what is wrong, the help what to write.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;

/// A message that wants a place.
pub(crate) struct Text {
    message: String,
    help: &'static str,
}

fn text(message: impl Into<String>, help: &'static str) -> Text {
    Text { message: message.into(), help }
}

impl Text {
    /// A `compile_error!` on these tokens.
    pub fn on(&self, tokens: &impl ToTokens) -> TokenStream {
        let mut tokens = tokens.to_token_stream().into_iter();
        let first = tokens.next().map_or_else(Span::call_site, |t| t.span());
        let last = tokens.last().map_or(first, |t| t.span());
        error((first, last), &self.message, self.help)
    }
}

/// A `compile_error!` from the first token to the last.
pub(crate) fn error((first, last): (Span, Span), message: &str, help: &str) -> TokenStream {
    // `syn` makes an error span from the first token of a stream to its last.
    let ends = [Ident::new("first", first), Ident::new("last", last)];
    let tokens: TokenStream = ends.into_iter().map(TokenTree::Ident).collect();
    syn::Error::new_spanned(tokens, format!("{message}\nhelp: {help}")).into_compile_error()
}

pub(crate) fn no_item() -> Text {
    text(
        "a bare chain has no name to be called by",
        "write `pub fn name(x: bf16[M, K] @ shard(0)) { gather(x) }`",
    )
}

pub(crate) fn no_struct() -> Text {
    text(
        "`#[mk::pipelined(..)]` is for a struct of tensors",
        "write `pub struct Name { #[tensor(bf16[M, K])] x: DeviceTensor, .. }`",
    )
}

pub(crate) fn no_named_fields() -> Text {
    text(
        "the fields of a pipelined struct are the tensors that its pipeline names",
        "name them: `pub struct Name { #[tensor(bf16[M, K])] x: DeviceTensor, .. }`",
    )
}

pub(crate) fn no_result() -> Text {
    text(
        "the struct has no field for the result of its pipeline",
        "add for instance `#[result(bf16[M, N] @ shard(0))] out: DeviceTensor`",
    )
}

pub(crate) fn no_type(field: &str) -> Text {
    text(
        format!("the field `{field}` has no part in the pipeline"),
        "say what tensor it is, `#[tensor(bf16[M, K] @ shard(0))]`, or `#[result(..)]`",
    )
}

pub(crate) fn two_types(field: &str) -> Text {
    text(
        format!("the field `{field}` has two parts in the pipeline"),
        "keep one of `#[tensor(..)]` and `#[result(..)]`: results share no memory with parameters",
    )
}

pub(crate) fn no_factors(field: &str) -> Text {
    text(
        format!("the tensor `{field}` is scaled, and no field `{field}_scale` has its factors"),
        "add one behind it, `#[factors] x_scale: DeviceTensor`, called as the tensor with `_scale`",
    )
}

pub(crate) fn factors_of_nothing(field: &str) -> Text {
    text(
        format!("`{field}` has the factors of no tensor of the struct"),
        "call it as a tensor of eight bits that is `scaled(..)`, with `_scale` behind: `x_scale` of `x`",
    )
}

pub(crate) fn type_of_factors() -> Text {
    text("the type of factors follows from that of their tensor", "write `#[factors]` alone")
}

pub(crate) fn empty_type(word: &str) -> Text {
    text(
        format!("`#[{word}]` has no type"),
        "write the dtype, shape and placement: `(bf16[M, K] @ shard(0))`",
    )
}
