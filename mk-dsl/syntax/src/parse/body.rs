//! `let h = gather(x); (h -> gemm(w), h)`.

use super::Parser;
use crate::ast::{Arg, ArgValue, Body, Chain, Let, Number, Operand, Stage};
use crate::lex::Kind;
use crate::messages::{self, Expected};
use crate::ops;
use crate::span::Span;

/// Where reading goes on after a stage that cannot be read.
const AFTER_STAGE: [Kind; 3] = [Kind::Arrow, Kind::Punct(';'), Kind::Punct(',')];

impl<'a> Parser<'a, '_> {
    /// Bindings and results, up to `}` or the end, which is not read.
    pub(super) fn body(&mut self) -> Body<'a> {
        let mut lets = Vec::new();
        self.docs();
        let mut is_cut = false;
        while self.eat_keyword("let").is_some() {
            let (binding, ends) = self.binding();
            lets.extend(binding);
            is_cut = !ends;
            self.docs();
        }
        let results = if self.at_punct('(') && self.nth(1).kind != Kind::Punct(')') {
            self.bump();
            self.list(')', Expected::ChainSeparator, |p| Some(p.chain()))
        } else if matches!(self.kind(), Kind::End | Kind::Punct('}')) {
            // A binding that runs into the end has been reported.
            if !is_cut {
                self.error(Expected::Result);
            }
            Vec::new()
        } else {
            vec![Some(self.chain())]
        };
        if self.at_punct(';') {
            self.error(Expected::NoSemicolon);
            self.recover(&[]);
        } else if !matches!(self.kind(), Kind::End | Kind::Punct('}')) {
            self.error(Expected::Arrow);
            self.recover(&[]);
        }
        Body { lets, results: results.into_iter().flatten().collect() }
    }

    /// Also whether its `;` was found, or what follows reads as the next statement.
    fn binding(&mut self) -> (Option<Let<'a>>, bool) {
        let name = self.word(Expected::LetName);
        let has_value =
            name.is_some() && self.expect(Kind::Punct('='), Expected::LetValue).is_some();
        let binding = match name {
            Some(name) if has_value => Some(Let { name, chain: self.chain() }),
            _ => None,
        };
        if self.eat(Kind::Punct(';')).is_some() {
            return (binding, true);
        }
        if binding.is_some() {
            self.error(Expected::Semicolon);
            // `let h = gather(x) h -> gemm(w)`: the `;` alone is missing.
            if matches!(self.kind(), Kind::Ident | Kind::Punct('(')) {
                return (binding, true);
            }
        }
        self.recover(&[Kind::Punct(';')]);
        let ends = self.eat(Kind::Punct(';')).is_some();
        (binding, ends)
    }

    fn chain(&mut self) -> Chain<'a> {
        let mut stages = Vec::new();
        let input = self.head(&mut stages);
        while self.arrow() {
            let stage = self.stage();
            if stage.is_none() {
                self.recover(&AFTER_STAGE);
            }
            stages.push(stage);
        }
        Chain { input, stages }
    }

    fn arrow(&mut self) -> bool {
        if self.eat(Kind::Arrow).is_some() {
            return true;
        }
        // `=>` and `|>` are what fingers type: one mistake, and the chain goes on.
        let is_typo = matches!(self.kind(), Kind::Punct('=' | '|'));
        if !is_typo || self.nth(1).kind != Kind::Punct('>') {
            return false;
        }
        let span = self.bump().span.to(self.bump().span);
        let found = format!("`{}`", self.text(span));
        self.sink.push(span, messages::expected(Expected::Arrow, &found));
        true
    }

    /// `x`, or `op(x, ..)`: the input, with what remains of the operation put into `stages`.
    fn head(&mut self, stages: &mut Vec<Option<Stage<'a>>>) -> Option<Operand<'a>> {
        let is_call = self.nth(1).kind == Kind::Punct('(');
        let is_op = ops::find(self.text(self.nth(0).span)).is_some();
        if !is_call && !is_op {
            let input = self.operand(Expected::Stage);
            if input.is_none() {
                self.recover(&AFTER_STAGE);
                stages.push(None);
            }
            return input;
        }
        let Some(mut stage) = self.stage() else {
            self.recover(&AFTER_STAGE);
            stages.push(None);
            return None;
        };
        let input = match stage.args.first() {
            Some(Arg { key: None, value: ArgValue::Name(input), .. }) => Some(*input),
            _ => None,
        };
        if input.is_some() {
            stage.args.remove(0);
        } else {
            self.sink.push(stage.name.span, messages::no_input(stage.name.text));
        }
        stages.push(Some(stage));
        input
    }

    fn stage(&mut self) -> Option<Stage<'a>> {
        let name = self.word(Expected::Stage)?;
        if self.at_punct('.') {
            self.error(Expected::Arrow);
            return None;
        }
        // With an argument missing, everything said about the others would be a guess.
        let args = match self.eat(Kind::Punct('(')) {
            Some(_) => self.list(')', Expected::ArgSeparator, Self::arg),
            None => Vec::new(),
        };
        Some(Stage { name, args: args.into_iter().collect::<Option<_>>()? })
    }

    fn operand(&mut self, expected: Expected) -> Option<Operand<'a>> {
        Some(Operand { word: self.word(expected)?, transposed: self.transposed()? })
    }

    /// `.t` after a name; the outer `None` is a mistake.
    fn transposed(&mut self) -> Option<Option<Span>> {
        if self.eat(Kind::Punct('.')).is_none() {
            return Some(None);
        }
        if !self.at_keyword("t") {
            self.error(Expected::Transpose);
            return None;
        }
        Some(Some(self.bump().span))
    }

    fn arg(&mut self) -> Option<Arg<'a>> {
        let has_key = self.kind() == Kind::Ident && self.nth(1).kind == Kind::Punct('=');
        let key = if has_key { Some(self.word(Expected::Arg)?) } else { None };
        if has_key {
            self.bump();
        }
        let start = self.nth(0).span;
        let value = self.arg_value()?;
        let span = start.to(self.last_span());
        Some(Arg { key, value, text: self.text(span), span })
    }

    fn arg_value(&mut self) -> Option<ArgValue<'a>> {
        let start = self.nth(0).span;
        let sign = self.eat(Kind::Punct('-'));
        match self.kind() {
            Kind::Int if sign.is_none() => self.int(Expected::Arg).map(ArgValue::Int),
            Kind::Int | Kind::Float => {
                let digits = self.bump().span;
                let digits = self.text(digits).replace('_', "");
                let span = start.to(self.last_span());
                match digits.parse::<f64>() {
                    Ok(n) if n.is_finite() => {
                        let value = if sign.is_some() { -n } else { n };
                        Some(ArgValue::Float(Number { value, span }))
                    }
                    _ => self.sink.refuse(span, messages::bad_number(self.text(span))),
                }
            }
            _ if sign.is_some() => {
                self.error(Expected::Number);
                None
            }
            _ => {
                let operand = self.operand(Expected::Arg)?;
                if self.at_punct('(') {
                    let inner = operand.word;
                    return self.sink.refuse(inner.span, messages::nested_call(inner.text));
                }
                Some(ArgValue::Name(operand))
            }
        }
    }
}
