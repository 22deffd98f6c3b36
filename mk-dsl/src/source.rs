//! Tokens to source text, with the way back.

use proc_macro2::{Delimiter, Group, LineColumn, Spacing, Span, TokenStream, TokenTree};
use std::ops::Range;

/// An item as text.
pub(crate) struct Source {
    pub text: String,
    /// Where each token is in `text`, ascending.
    pieces: Vec<(Range<usize>, Span)>,
}

/// Blanks at the start of a line, at most: text from a macro may come from any column.
const MAX_INDENT: usize = 40;

impl Source {
    /// Writes `tokens`, in the layout that they have where the compiler knows it. Doc
    /// attributes become doc comments again.
    pub fn write(tokens: TokenStream) -> Self {
        let mut writer = Writer::default();
        // A stack in place of recursion: the input decides how deep brackets nest.
        let mut open = vec![(tokens.into_iter().peekable(), None)];
        while let Some((tokens, _)) = open.last_mut() {
            match tokens.next() {
                Some(TokenTree::Punct(hash)) if hash.as_char() == '#' => {
                    match tokens.peek().and_then(doc_text) {
                        Some(text) => {
                            tokens.next();
                            writer.doc(&text, hash.span());
                        }
                        None => writer.token("#", hash.span(), false),
                    }
                }
                Some(TokenTree::Group(group)) => {
                    let (before, after) = delimiters(&group);
                    writer.token(before, group.span_open(), false);
                    open.push((
                        group.stream().into_iter().peekable(),
                        Some((after, group.span_close())),
                    ));
                }
                Some(TokenTree::Punct(punct)) => {
                    let is_joint = punct.spacing() == Spacing::Joint;
                    writer.token(&punct.as_char().to_string(), punct.span(), is_joint);
                }
                Some(TokenTree::Ident(ident)) => {
                    writer.token(&ident.to_string(), ident.span(), false);
                }
                Some(TokenTree::Literal(literal)) => {
                    writer.token(&literal.to_string(), literal.span(), false);
                }
                None => {
                    if let Some((_, Some((after, span)))) = open.pop() {
                        writer.token(after, span, false);
                    }
                }
            }
        }
        writer.source
    }

    /// The first and the last token in `bytes`; for none (the end of the text), the one before.
    pub fn tokens(&self, bytes: Range<usize>) -> (Span, Span) {
        let inside =
            |(piece, _): &&(Range<usize>, Span)| piece.start < bytes.end && bytes.start < piece.end;
        let before = |(piece, _): &&(Range<usize>, Span)| piece.start <= bytes.start;
        let first = self.pieces.iter().find(inside).or(self.pieces.iter().rfind(before));
        let last = self.pieces.iter().rfind(inside).or(first);
        match (first, last) {
            (Some((_, first)), Some((_, last))) => (*first, *last),
            _ => (Span::call_site(), Span::call_site()),
        }
    }
}

/// The text of a doc attribute, from what follows its `#`.
pub(crate) fn doc_text(tree: &TokenTree) -> Option<String> {
    let TokenTree::Group(group) = tree else { return None };
    let [TokenTree::Ident(doc), TokenTree::Punct(eq), TokenTree::Literal(text)] =
        &group.stream().into_iter().collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let is_doc = group.delimiter() == Delimiter::Bracket && doc == "doc" && eq.as_char() == '=';
    match syn::Lit::new(text.clone()) {
        syn::Lit::Str(text) if is_doc => Some(text.value()),
        _ => None,
    }
}

fn delimiters(group: &Group) -> (&'static str, &'static str) {
    match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::Brace => ("{", "}"),
        // Around a fragment of `macro_rules!`.
        Delimiter::None => ("", ""),
    }
}

struct Writer {
    source: Source,
    /// Where the last token ends in the user's file.
    end: Option<LineColumn>,
    /// The column of the first token.
    base: Option<usize>,
    /// The last token is to be followed by no blank.
    is_joint: bool,
}

impl Default for Writer {
    fn default() -> Self {
        let source = Source { text: String::new(), pieces: Vec::new() };
        Writer { source, end: None, base: None, is_joint: false }
    }
}

impl Writer {
    fn token(&mut self, token: &str, span: Span, is_joint: bool) {
        if token.is_empty() {
            return;
        }
        self.gap(token, span.start());
        let start = self.source.text.len();
        self.source.text.push_str(token);
        self.source.pieces.push((start..self.source.text.len(), span));
        self.end = Some(span.end());
        self.is_joint = is_joint;
    }

    fn gap(&mut self, token: &str, start: LineColumn) {
        let text = &mut self.source.text;
        let base = *self.base.get_or_insert(start.column);
        let indent = start.column.saturating_sub(base).min(MAX_INDENT);
        match self.end {
            None if text.is_empty() => {}
            _ if text.ends_with('\n') => text.push_str(&" ".repeat(indent)),
            _ if self.is_joint => {}
            Some(end) if start.line > end.line => {
                text.push('\n');
                text.push_str(&" ".repeat(indent));
            }
            end => {
                let is_word = |c: char| c == '_' || c.is_alphanumeric();
                let glues = text.ends_with(is_word) && token.starts_with(is_word);
                if glues || end != Some(start) {
                    text.push(' ');
                }
            }
        }
    }

    fn doc(&mut self, lines: &str, span: Span) {
        for line in lines.split('\n') {
            if !self.source.text.is_empty() && !self.source.text.ends_with('\n') {
                self.source.text.push('\n');
            }
            let start = self.source.text.len();
            // A carriage return would end the comment for some readers.
            self.source.text.push_str(&format!("///{}\n", line.trim_end_matches('\r')));
            self.source.pieces.push((start..self.source.text.len(), span));
        }
        self.is_joint = false;
        self.end = None;
    }
}
