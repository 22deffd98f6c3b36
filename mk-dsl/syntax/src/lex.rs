//! Text to tokens. Comments are dropped, doc comments are tokens.
//!
//! Limits are checked here, before anything allocates per token or looks ahead, so that no
//! later stage needs to mistrust the size of its input.

use crate::diag::Sink;
use crate::limits::{MAX_BYTES, MAX_DEPTH, MAX_IDENT};
use crate::messages;
use crate::span::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ident,
    /// Digits, with `_` allowed between.
    Int,
    Float,
    Str,
    /// `/// text`, up to the end of the line.
    Doc,
    /// `->`.
    Arrow,
    /// `<=`.
    Le,
    /// Any other single character of punctuation.
    Punct(char),
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub span: Span,
}

/// Splits `source`, ending with one [`Kind::End`] token. Reports characters that begin no
/// token. `None` if a limit is exceeded: then nothing more can be said about the text.
pub(crate) fn lex(source: &str, sink: &mut Sink) -> Option<Vec<Token>> {
    if source.len() > MAX_BYTES {
        sink.push(Span::default(), messages::too_long(source.len()));
        return None;
    }
    let mut lexer = Lexer { source, at: 0, tokens: Vec::new(), depth: 0 };
    lexer.run(sink)?;
    let end = Span { start: source.len(), end: source.len() };
    lexer.tokens.push(Token { kind: Kind::End, span: end });
    Some(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<Token>,
    depth: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or("")
    }

    /// Advances over the characters that `accept` takes.
    fn skip_while(&mut self, accept: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !accept(c)).unwrap_or(rest.len());
    }

    fn run(&mut self, sink: &mut Sink) -> Option<()> {
        loop {
            self.skip_while(char::is_whitespace);
            let (start, rest) = (self.at, self.rest());
            let Some(first) = rest.chars().next() else {
                return Some(());
            };
            let kind = if rest.starts_with("///") && !rest.starts_with("////") {
                self.skip_while(|c| c != '\n');
                Kind::Doc
            } else if rest.starts_with("//") {
                self.skip_while(|c| c != '\n');
                continue;
            } else if rest.starts_with("/*") {
                self.block_comment(sink);
                continue;
            } else if first == '_' || first.is_alphabetic() {
                self.skip_while(|c| c == '_' || c.is_alphanumeric());
                self.ident(start, sink);
                Kind::Ident
            } else if first.is_ascii_digit() {
                self.number()
            } else if first == '"' {
                self.string(sink)
            } else {
                match self.punct(first) {
                    Some(kind) => kind,
                    None => {
                        let span = Span { start, end: self.at };
                        sink.push(span, messages::unexpected_char(first));
                        continue;
                    }
                }
            };
            let span = Span { start, end: self.at };
            match kind {
                Kind::Punct('(' | '[' | '{') => self.depth += 1,
                Kind::Punct(')' | ']' | '}') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth > MAX_DEPTH {
                sink.push(span, messages::too_deep());
                return None;
            }
            self.tokens.push(Token { kind, span });
        }
    }

    fn ident(&self, start: usize, sink: &mut Sink) {
        let span = Span { start, end: self.at };
        let text = &self.source[start..self.at];
        if !text.is_ascii() {
            sink.push(span, messages::not_ascii());
        } else if text.len() > MAX_IDENT {
            sink.push(span, messages::name_too_long());
        }
    }

    /// `12`, `8_192`, `0.5`, `1e-3`. Letters that follow are part of the token (and refused
    /// where its value is read), so that `5x` is one mistake and not two tokens.
    fn number(&mut self) -> Kind {
        let word = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let start = self.at;
        self.skip_while(word);
        let mut kind = Kind::Int;
        let mut rest = self.rest().chars();
        if rest.next() == Some('.') && rest.next().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
            self.skip_while(word);
            kind = Kind::Float;
        }
        if self.source[start..self.at].ends_with(['e', 'E']) {
            let mut rest = self.rest().chars();
            if matches!(rest.next(), Some('+' | '-'))
                && rest.next().is_some_and(|c| c.is_ascii_digit())
            {
                self.at += 1;
                self.skip_while(word);
            }
        }
        let text = &self.source[start..self.at];
        if text.contains(['e', 'E']) { Kind::Float } else { kind }
    }

    fn string(&mut self, sink: &mut Sink) -> Kind {
        let start = self.at;
        let mut escaped = false;
        for (i, c) in self.rest().char_indices().skip(1) {
            match c {
                '"' if !escaped => {
                    self.at = start + i + 1;
                    return Kind::Str;
                }
                c => escaped = c == '\\' && !escaped,
            }
        }
        self.at = self.source.len();
        sink.push(Span { start, end: start + 1 }, messages::unclosed("string", "\""));
        Kind::Str
    }

    /// Comments nest, as in Rust.
    fn block_comment(&mut self, sink: &mut Sink) {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            let rest = self.rest();
            let step = if rest.starts_with("/*") {
                depth += 1;
                2
            } else if rest.starts_with("*/") {
                depth -= 1;
                2
            } else if let Some(c) = rest.chars().next() {
                c.len_utf8()
            } else {
                let span = Span { start, end: start + 2 };
                return sink.push(span, messages::unclosed("comment", "*/"));
            };
            self.at += step;
            if depth == 0 {
                return;
            }
        }
    }

    /// Advances over one piece of punctuation, or over one character that is none.
    fn punct(&mut self, first: char) -> Option<Kind> {
        let rest = self.rest();
        for (text, kind) in [("->", Kind::Arrow), ("<=", Kind::Le)] {
            if rest.starts_with(text) {
                self.at += text.len();
                return Some(kind);
            }
        }
        self.at += first.len_utf8();
        "()[]{}<>,:;=@.#+-*&|!".contains(first).then_some(Kind::Punct(first))
    }
}
