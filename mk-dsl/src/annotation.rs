//! `#[mk::pipelined(..)]` on a struct: its fields and the attribute's arguments, put together as the text of a
//! pipeline.
//!
//! ```text
//! #[mk::pipelined(<M: dyn> BODY)] struct Name {
//!     #[tensor(T)] x: ..,                             fn Name<M: dyn>(x: T) -> R { BODY }
//!     #[result(R)] y: ..,
//! }
//! ```
//!
//! A tensor `x` of eight bits that is `scaled(..)` has its factors in `#[factors] x_scale`.

use crate::expand::{compile_errors, program_of};
use crate::messages;
use crate::source::Source;
use proc_macro2::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Field, Fields, ItemStruct, Meta};

pub(crate) fn pipelined(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut item: ItemStruct = match syn::parse2(item.clone()) {
        Ok(item) => item,
        Err(_) => {
            let error = messages::no_struct().on(&item);
            return quote!(#error #item);
        }
    };
    let mut errors = TokenStream::new();
    let fields = read_fields(&mut item, &mut errors);
    let (mistakes, program) = if errors.is_empty() {
        let source = Source::write(text(&arguments, &item, &fields));
        let (parsed, program) = program_of(&source);
        (parsed.map(|mistakes| compile_errors(&source, &mistakes)), program)
    } else {
        // What the fields are meant to be is not known: every further message would be a guess.
        (None, quote!(::core::unreachable!("this pipeline does not compile")))
    };
    let impls = impls(&item, &fields, &program);
    quote!(#errors #mistakes #item #impls)
}

/// A field with its part in the pipeline.
struct Tensor {
    name: Ident,
    /// In the pipeline's language.
    ty: TokenStream,
    is_result: bool,
    /// The field of its factors.
    factors: Option<Ident>,
}

/// A field before it is known whose factors it has.
enum Part {
    Tensor(Tensor),
    Factors(Ident),
}

impl Tensor {
    /// Whether its type is written with factors.
    fn is_scaled(&self) -> bool {
        let mut tokens = self.ty.clone().into_iter();
        tokens.any(|t| matches!(t, TokenTree::Ident(word) if word == "scaled"))
    }
}

/// Gives each scaled tensor the field of its factors.
fn with_factors(parts: Vec<Part>, errors: &mut TokenStream) -> Vec<Tensor> {
    let (mut tensors, mut all) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Tensor(tensor) => tensors.push(tensor),
            Part::Factors(name) => all.push(name),
        }
    }
    for tensor in tensors.iter_mut().filter(|t| t.is_scaled()) {
        let wanted = format!("{}_scale", tensor.name);
        let at = all.iter().position(|name| *name == wanted);
        tensor.factors = at.map(|at| all.remove(at));
        if tensor.factors.is_none() {
            errors.extend(messages::no_factors(&tensor.name.to_string()).on(&tensor.name));
        }
    }
    for name in all {
        errors.extend(messages::factors_of_nothing(&name.to_string()).on(&name));
    }
    tensors
}

/// Takes the attributes that are ours from the fields.
fn read_fields(item: &mut ItemStruct, errors: &mut TokenStream) -> Vec<Tensor> {
    let Fields::Named(fields) = &mut item.fields else {
        errors.extend(messages::no_named_fields().on(&item.ident));
        return Vec::new();
    };
    let parts: Vec<_> = fields.named.iter_mut().filter_map(|f| read_field(f, errors)).collect();
    let tensors = with_factors(parts, errors);
    if errors.is_empty() && !tensors.iter().any(|t| t.is_result) {
        errors.extend(messages::no_result().on(&item.ident));
    }
    tensors
}

fn read_field(field: &mut Field, errors: &mut TokenStream) -> Option<Part> {
    let is_ours =
        |a: &Attribute| ["tensor", "result", "factors"].iter().any(|word| a.path().is_ident(word));
    let ours: Vec<Attribute> = field.attrs.extract_if(.., |a| is_ours(a)).collect();
    let name = field.ident.clone()?;
    let attribute = match ours.as_slice() {
        [attribute] => attribute,
        [] => {
            errors.extend(messages::no_type(&name.to_string()).on(&name));
            return None;
        }
        [_, second, ..] => {
            errors.extend(messages::two_types(&name.to_string()).on(second));
            return None;
        }
    };
    let is_result = attribute.path().is_ident("result");
    if attribute.path().is_ident("factors") {
        if !matches!(attribute.meta, Meta::Path(_)) {
            errors.extend(messages::type_of_factors().on(attribute));
        }
        return Some(Part::Factors(name));
    }
    match &attribute.meta {
        Meta::List(list) if !list.tokens.is_empty() => {
            let ty = list.tokens.clone();
            Some(Part::Tensor(Tensor { name, ty, is_result, factors: None }))
        }
        _ => {
            let word = if is_result { "result" } else { "tensor" };
            errors.extend(messages::empty_type(word).on(attribute));
            None
        }
    }
}

/// The text of the pipeline, in tokens of the user's: mistakes are on those.
fn text(arguments: &TokenStream, item: &ItemStruct, tensors: &[Tensor]) -> TokenStream {
    let (runtime, body) = split_runtime(arguments);
    let docs = item.attrs.iter().filter(|a| a.path().is_ident("doc"));
    let name = &item.ident;
    let parameters = tensors.iter().filter(|t| !t.is_result).map(|Tensor { name, ty, .. }| {
        let colon = Punct::new(':', Spacing::Alone);
        quote!(#name #colon #ty,)
    });
    let results: Vec<_> = tensors.iter().filter(|t| t.is_result).map(|t| &t.ty).collect();
    let results = match results.as_slice() {
        [one] => quote!(#one),
        several => {
            let mut list = Group::new(Delimiter::Parenthesis, quote!(#(#several),*));
            // A result too many is the last one.
            list.set_span(several.last().map_or_else(Span::call_site, |ty| ty.span()));
            list.into_token_stream()
        }
    };
    // Where a word is missing at the end of the body, the attribute is to blame.
    let mut braces = Group::new(Delimiter::Brace, body);
    braces.set_span(Span::call_site());
    quote!(#(#docs)* fn #name #runtime (#(#parameters)*) -> #results #braces)
}

/// `<M: dyn <= 8192>` at the start of the attribute, and the rest.
fn split_runtime(arguments: &TokenStream) -> (TokenStream, TokenStream) {
    let is = |t: &TokenTree, c| matches!(t, TokenTree::Punct(p) if p.as_char() == c);
    let tokens: Vec<TokenTree> = arguments.clone().into_iter().collect();
    let end = match tokens.first() {
        Some(first) if is(first, '<') => tokens.iter().position(|t| is(t, '>')),
        _ => None,
    };
    let (runtime, body) = tokens.split_at(end.map_or(0, |end| end + 1));
    (runtime.iter().cloned().collect(), body.iter().cloned().collect())
}

fn impls(item: &ItemStruct, tensors: &[Tensor], program: &TokenStream) -> TokenStream {
    let ItemStruct { vis, ident, .. } = item;
    let (generics, arguments, bounds) = item.generics.split_for_impl();
    // A kernel takes its parameters first, then its results.
    let (results, parameters): (Vec<_>, Vec<_>) = tensors.iter().partition(|t| t.is_result);
    // Factors stand behind what they are of.
    let all = parameters.iter().chain(&results).flat_map(|t| [Some(&t.name), t.factors.as_ref()]);
    let refs = all.flatten().map(|name| {
        let field = item.fields.iter().find(|f| f.ident.as_ref() == Some(name));
        // A type that is no tensor is an error on that type.
        let span = field.map_or(name.span(), |f| f.ty.to_token_stream().span());
        quote_spanned!(span=> ::mk::AsTensor::as_tensor(&self.#name))
    });
    quote! {
        impl #generics #ident #arguments #bounds {
            /// The pipeline that this struct holds one rank's tensors of.
            #vis fn pipeline() -> &'static ::mk::Program {
                static PROGRAM: ::std::sync::LazyLock<::mk::Program> =
                    ::std::sync::LazyLock::new(|| #program);
                &PROGRAM
            }

            /// The arguments of this rank for `mk::runtime::Instance::launch`: parameters, then results, each in the
            /// order of the fields, with its factors behind it.
            #vis fn arguments(&self) -> ::mk::runtime::RankTensors {
                ::mk::runtime::RankTensors::from(::std::vec![#(#refs),*])
            }
        }
    }
}
