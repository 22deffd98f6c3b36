//! `.mk` files: one pipeline, and defaults for its symbols in the comments at the top.
//!
//! ```text
//! // Column-parallel linear layer.
//! // M = 512, K = 256
//! // N = 384
//! pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
//!     gather(x) -> gemm(w)
//! }
//! ```
//!
//! A comment line that starts with `NAME =` is a list of defaults, and must be one in full; any
//! other comment is prose. The header ends at the first line that is neither blank nor a `//`
//! comment; a doc comment ends it, too.

use crate::diag::{Diagnostics, Sink};
use crate::lex::{Kind, lex};
use crate::limits::{MAX_BYTES, MAX_IDENT};
use crate::messages;
use crate::program::{Dim, MAX_DIM, Program};
use crate::span::Span;
use std::{collections::BTreeMap, path::Path};

/// The defaults in the header of `source`: symbol name to extent in elements, `1..=MAX_DIM`.
/// Whether the pipeline has those symbols is for [`Program::bind`](crate::Program::bind) to say.
///
/// # Errors
///
/// A list of defaults that cannot be read, a name given twice, a number out of range; all of
/// them at once.
pub fn defaults(source: &str) -> Result<BTreeMap<String, u64>, Diagnostics> {
    let mut sink = Sink::default();
    let mut values = BTreeMap::new();
    if source.len() > MAX_BYTES {
        sink.push(Span::default(), messages::too_long(source.len()));
        return sink.finish(source, None);
    }
    let mut at = 0;
    for line in source.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        let is_comment =
            text.starts_with("//") && (!text.starts_with("///") || text.starts_with("////"));
        if !is_comment {
            break;
        }
        let body = text.trim_start_matches('/');
        let is_list = body.split_once('=').is_some_and(|(name, _)| is_name(name.trim()));
        if is_list {
            let offset = start + line.find(body).unwrap_or(0);
            for entry in entries(body, offset) {
                read(entry, &mut values, &mut sink);
            }
        }
    }
    sink.finish(source, Some(values))
}

/// The same without those of dimensions of tensors whose shapes are given by name: a shape is worth more than a
/// default.
///
/// # Errors
/// As [`defaults`].
pub fn defaults_beside<'a>(
    source: &str,
    program: &Program,
    shapes: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, u64>, Diagnostics> {
    let mut values = defaults(source)?;
    for dim in shapes.filter_map(|name| program.tensor(name)).flat_map(|t| &t.ty.dims) {
        if let Dim::Sym(symbol) = dim {
            values.remove(&program.symbols()[symbol.index()].name);
        }
    }
    Ok(values)
}

/// Whether a text is a path and no pipeline: those have brackets.
pub fn is_path(text: &str) -> bool {
    let ends = Path::new(text).extension().is_some();
    !text.contains(['(', ' ', '\n']) && (ends || text.contains('/'))
}

/// The pipelines of a text that has several, each with the comments at the top and on its own lines; else the text as
/// it is.
pub fn items(source: &str) -> Vec<String> {
    let mut sink = Sink::default();
    let whole = || vec![source.to_owned()];
    let Some(tokens) = lex(source, &mut sink).filter(|_| sink.is_empty()) else { return whole() };
    let Some(first) = tokens.first() else { return whole() };
    let (head, mut starts, mut depth) = (first.span.start, vec![first.span.start], 0_usize);
    for pair in tokens.windows(2) {
        match pair[0].kind {
            Kind::Punct('{') => depth += 1,
            Kind::Punct('}') => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 && pair[0].kind == Kind::Punct('}') && pair[1].kind != Kind::End {
            starts.push(pair[1].span.start);
        }
    }
    if starts.len() == 1 {
        return whole();
    }
    let ends = starts.iter().skip(1).copied().chain([source.len()]);
    let lines = |text: &str| "\n".repeat(text.matches('\n').count());
    starts
        .iter()
        .zip(ends)
        .map(|(&from, to)| {
            format!("{}{}{}", &source[..head], lines(&source[head..from]), &source[from..to])
        })
        .collect()
}

/// One `NAME = NUMBER`, with its place.
#[derive(Clone, Copy)]
struct Entry<'a> {
    text: &'a str,
    span: Span,
}

/// The parts of `body` between commas, without the blanks around them.
fn entries(body: &str, offset: usize) -> impl Iterator<Item = Entry<'_>> {
    let mut at = offset;
    body.split(',').map(move |part| {
        let text = part.trim();
        let start = at + (part.len() - part.trim_start().len());
        at += part.len() + 1;
        Entry { text, span: Span { start, end: start + text.len() } }
    })
}

fn read(entry: Entry<'_>, values: &mut BTreeMap<String, u64>, sink: &mut Sink) {
    let Entry { text, span } = entry;
    let Some((name, number)) = text.split_once('=') else {
        return sink.push(span, messages::header_syntax());
    };
    let (name, number) = (name.trim(), number.trim());
    if !is_name(name) {
        return sink.push(span, messages::header_syntax());
    }
    let at_name = Span { start: span.start, end: span.start + name.len() };
    let at_number = Span { start: span.end - number.len(), end: span.end };
    let is_digits = number.starts_with(|c: char| c.is_ascii_digit());
    let value = number.replace('_', "").parse::<u64>().ok().filter(|_| is_digits);
    match value {
        None => sink.push(at_number, messages::bad_dim(number)),
        Some(value) if !(1..=MAX_DIM).contains(&value) => {
            sink.push(at_number, messages::dim_out_of_range(value));
        }
        Some(_) if values.contains_key(name) => sink.push(at_name, messages::header_twice(name)),
        Some(value) => {
            values.insert(name.to_owned(), value);
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_IDENT
        && name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}
