//! The item that a pipeline becomes.

use crate::source::{Source, doc_text};
use mk_syntax::{Diagnostics, Program};
use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::quote;

pub(crate) fn pipeline(input: TokenStream) -> TokenStream {
    let Item { attributes, docs, signature, text } = Item::read(input);
    let source = Source::write(text);
    let (errors, body) = match Program::parse(&source.text) {
        Ok(_) => {
            let text = &source.text;
            (None, quote!(::mk::__private::checked(#text)))
        }
        Err(mistakes) => {
            let errors = compile_errors(&source, &mistakes);
            (Some(errors), quote!(::core::unreachable!("this pipeline does not compile")))
        }
    };
    // A text that is no item is either refused above, or a bare chain.
    let (errors, item) = match signature {
        Some(signature) => {
            (errors, quote!(#attributes #docs #signature() -> ::mk::Program { #body }))
        }
        None => (errors.or_else(|| Some(no_item(&source))), TokenStream::new()),
    };
    quote!(#errors #item)
}

/// What the macro itself looks at.
struct Item {
    /// Attributes that are for the compiler, such as `#[cfg(..)]`.
    attributes: TokenStream,
    docs: TokenStream,
    /// Visibility, `fn` and the name; `None` if there is no such thing.
    signature: Option<TokenStream>,
    /// All but the attributes.
    text: TokenStream,
}

impl Item {
    fn read(input: TokenStream) -> Self {
        let (mut attributes, mut docs, mut text) =
            (TokenStream::new(), TokenStream::new(), Vec::new());
        let mut tokens = input.into_iter().peekable();
        while let Some(hash) =
            tokens.next_if(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == '#'))
        {
            let is_attribute = |t: &TokenTree| matches!(t, TokenTree::Group(g) if g.delimiter() == Delimiter::Bracket);
            match tokens.next_if(is_attribute) {
                Some(group) if doc_text(&group).is_some() => {
                    docs.extend([hash.clone(), group.clone()]);
                    text.extend([hash, group]);
                }
                Some(group) => attributes.extend([hash, group]),
                None => text.push(hash),
            }
        }
        let rest: Vec<TokenTree> = tokens.collect();
        let signature = signature(&rest);
        text.extend(rest);
        Item { attributes, docs, signature, text: text.into_iter().collect() }
    }
}

/// `pub(crate) fn name`, from the start of `tokens`.
fn signature(tokens: &[TokenTree]) -> Option<TokenStream> {
    let is_word = |t: Option<&TokenTree>, word| matches!(t, Some(TokenTree::Ident(i)) if i == word);
    let is_group = |t: Option<&TokenTree>| matches!(t, Some(TokenTree::Group(_)));
    let mut n_tokens = 0;
    if is_word(tokens.first(), "pub") {
        n_tokens = if is_group(tokens.get(1)) { 2 } else { 1 };
    } else if is_group(tokens.first()) {
        // A `$vis` of `macro_rules!`.
        n_tokens = 1;
    }
    let has_name = matches!(tokens.get(n_tokens + 1), Some(TokenTree::Ident(_)));
    (is_word(tokens.get(n_tokens), "fn") && has_name)
        .then(|| tokens[..n_tokens + 2].iter().cloned().collect())
}

/// One `compile_error!` for each mistake, on its tokens.
fn compile_errors(source: &Source, mistakes: &Diagnostics) -> TokenStream {
    let mut errors = TokenStream::new();
    for mistake in mistakes {
        let tokens = source.tokens(mistake.span.start..mistake.span.end);
        errors.extend(error(tokens, &mistake.message, &mistake.help));
    }
    if mistakes.n_omitted() > 0 {
        let message = format!("there are {} more errors", mistakes.n_omitted());
        errors.extend(error(source.tokens(0..0), &message, "correct the first ones"));
    }
    errors
}

fn no_item(source: &Source) -> TokenStream {
    let help = "write `pub fn name(x: bf16[M, K] @ shard(0)) { gather(x) }`";
    error(source.tokens(0..source.text.len()), "a bare chain has no name to be called by", help)
}

fn error((first, last): (Span, Span), message: &str, help: &str) -> TokenStream {
    // `syn` makes an error span from the first token of a stream to its last.
    let ends = [Ident::new("first", first), Ident::new("last", last)];
    let tokens: TokenStream = ends.into_iter().map(TokenTree::Ident).collect();
    syn::Error::new_spanned(tokens, format!("{message}\nhelp: {help}")).into_compile_error()
}
