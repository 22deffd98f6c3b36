//! The item that a pipeline becomes.

use crate::messages::{self, error};
use crate::source::{Source, doc_text};
use mk_syntax::{Diagnostics, Program};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::quote;

pub(crate) fn pipeline(input: TokenStream) -> TokenStream {
    let all = input.clone();
    let Item { attributes, docs, signature, text } = Item::read(input);
    let source = Source::write(text);
    let (mistakes, body) = program_of(&source);
    let errors = mistakes.map(|mistakes| compile_errors(&source, &mistakes));
    // A text that is no item is either refused above, or a bare chain.
    let (errors, item) = match signature {
        Some(signature) => {
            (errors, quote!(#attributes #docs #signature() -> ::mk::Program { #body }))
        }
        None => (errors.or_else(|| Some(messages::no_item().on(&all))), TokenStream::new()),
    };
    quote!(#errors #item)
}

/// The mistakes of a text, and an expression for its program.
pub(crate) fn program_of(source: &Source) -> (Option<Diagnostics>, TokenStream) {
    match Program::parse(&source.text) {
        Ok(_) => {
            let text = &source.text;
            (None, quote!(::mk::__private::checked(#text)))
        }
        Err(mistakes) => {
            (Some(mistakes), quote!(::core::unreachable!("this pipeline does not compile")))
        }
    }
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
pub(crate) fn compile_errors(source: &Source, mistakes: &Diagnostics) -> TokenStream {
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
