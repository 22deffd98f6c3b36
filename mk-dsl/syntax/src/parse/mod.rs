//! Tokens to syntax tree, by recursive descent without recursion: the grammar nests only to a
//! fixed depth (`docs/dsl.md` has it in full).
//!
//! After a mistake the parser reports it once, skips to the end of the smallest enclosing part
//! (argument, parameter, stage, binding), and goes on, so that one run finds all mistakes.

mod body;
mod item;

use crate::ast::{Number, Source, Word};
use crate::diag::Sink;
use crate::lex::{Kind, Token, lex};
use crate::messages::{self, Expected};
use crate::span::Span;

/// Words that cannot be names.
const KEYWORDS: [&str; 4] = ["pub", "fn", "let", "dyn"];

/// Reads `source`. `None` if it is too broken to say more; then something has been reported.
pub(crate) fn parse<'a>(source: &'a str, sink: &mut Sink) -> Option<Source<'a>> {
    let tokens = lex(source, sink)?;
    balance(source, &tokens, sink)?;
    Parser { source, tokens, at: 0, sink }.source()
}

/// Checks that brackets match. If not, everything after would be misread: that is all to say.
fn balance(source: &str, tokens: &[Token], sink: &mut Sink) -> Option<()> {
    let mut open: Vec<(&str, Span)> = Vec::new();
    for token in tokens {
        let text = &source[token.span.start..token.span.end];
        match token.kind {
            Kind::Punct('(') => open.push((")", token.span)),
            Kind::Punct('[') => open.push(("]", token.span)),
            Kind::Punct('{') => open.push(("}", token.span)),
            Kind::Punct(')' | ']' | '}') => match open.pop() {
                Some((wanted, _)) if wanted == text => {}
                Some((wanted, _)) => {
                    sink.push(token.span, messages::mismatched(text, wanted));
                    return None;
                }
                None => {
                    sink.push(token.span, messages::unopened(text));
                    return None;
                }
            },
            _ => {}
        }
    }
    match open.pop() {
        None => Some(()),
        Some((wanted, span)) => {
            sink.push(span, messages::unclosed(&source[span.start..span.end], wanted));
            None
        }
    }
}

pub(super) struct Parser<'a, 's> {
    source: &'a str,
    /// Ends with [`Kind::End`].
    tokens: Vec<Token>,
    at: usize,
    sink: &'s mut Sink,
}

impl<'a> Parser<'a, '_> {
    fn nth(&self, n: usize) -> Token {
        let end = Span { start: self.source.len(), end: self.source.len() };
        self.tokens.get(self.at + n).copied().unwrap_or(Token { kind: Kind::End, span: end })
    }

    fn kind(&self) -> Kind {
        self.nth(0).kind
    }

    fn bump(&mut self) -> Token {
        let token = self.nth(0);
        self.at += 1;
        token
    }

    fn text(&self, span: Span) -> &'a str {
        &self.source[span.start..span.end]
    }

    fn at_punct(&self, c: char) -> bool {
        self.kind() == Kind::Punct(c)
    }

    fn at_keyword(&self, keyword: &str) -> bool {
        self.kind() == Kind::Ident && self.text(self.nth(0).span) == keyword
    }

    fn eat(&mut self, kind: Kind) -> Option<Span> {
        (self.kind() == kind).then(|| self.bump().span)
    }

    fn eat_keyword(&mut self, keyword: &str) -> Option<Span> {
        self.at_keyword(keyword).then(|| self.bump().span)
    }

    /// The end of the last token read.
    fn last_span(&self) -> Span {
        self.at.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(Span::default(), |t| t.span)
    }

    fn error(&mut self, expected: Expected) {
        let Token { kind, span } = self.nth(0);
        let found = match kind {
            Kind::End => "the end".to_owned(),
            Kind::Doc => "a doc comment".to_owned(),
            Kind::Str => "a string".to_owned(),
            _ => format!("`{}`", self.text(span)),
        };
        self.sink.push(span, messages::expected(expected, &found));
    }

    fn expect(&mut self, kind: Kind, expected: Expected) -> Option<Span> {
        let span = self.eat(kind);
        if span.is_none() {
            self.error(expected);
        }
        span
    }

    /// A name that is no keyword.
    fn word(&mut self, expected: Expected) -> Option<Word<'a>> {
        let span = self.nth(0).span;
        if self.kind() != Kind::Ident || KEYWORDS.contains(&self.text(span)) {
            self.error(expected);
            return None;
        }
        self.bump();
        Some(Word { text: self.text(span), span })
    }

    /// A whole number; the current token is [`Kind::Int`] or the error is reported.
    fn int(&mut self, expected: Expected) -> Option<Number<u64>> {
        let span = self.expect(Kind::Int, expected)?;
        let value = self.text(span).replace('_', "").parse();
        if value.is_err() {
            self.sink.push(span, messages::bad_number(self.text(span)));
        }
        Some(Number { value: value.ok()?, span })
    }

    /// Skips to one of `stops`, or to the bracket that closes the enclosing group.
    fn recover(&mut self, stops: &[Kind]) {
        let mut depth = 0_usize;
        loop {
            match self.kind() {
                Kind::End => return,
                kind if depth == 0 && stops.contains(&kind) => return,
                Kind::Punct('(' | '[' | '{') => depth += 1,
                Kind::Punct(')' | ']' | '}') if depth == 0 => return,
                Kind::Punct(')' | ']' | '}') => depth -= 1,
                _ => {}
            }
            self.bump();
        }
    }

    /// What stands between `(`, which has been read, and `)`, which is read in any case.
    fn group<T>(&mut self, inner: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut read = inner(self);
        if read.is_some() && !self.at_punct(')') {
            self.error(Expected::EndOfGroup);
            read = None;
        }
        self.recover(&[]);
        self.eat(Kind::Punct(')'));
        read
    }

    /// Items separated by commas up to `close`, which is read too; the opening bracket has been.
    /// An item that is `None` has been reported.
    fn list<T>(
        &mut self,
        close: char,
        separator: Expected,
        item: impl Fn(&mut Self) -> Option<T>,
    ) -> Vec<Option<T>> {
        let mut items = Vec::new();
        loop {
            if self.eat(Kind::Punct(close)).is_some() {
                return items;
            }
            let read = item(self);
            let failed = read.is_none();
            items.push(read);
            if self.eat(Kind::Punct(',')).is_some() || self.at_punct(close) {
                continue;
            }
            if !failed {
                self.error(separator);
            }
            self.recover(&[Kind::Punct(','), Kind::Punct(close)]);
            if self.eat(Kind::Punct(',')).is_none() && !self.at_punct(close) {
                // The group ends without `close`: only `<..>`, which `balance` does not see.
                return items;
            }
        }
    }
}
