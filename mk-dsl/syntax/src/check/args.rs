//! The arguments of one stage, taken one by one by the operation.

use crate::ast::{Arg, ArgValue, Number, Operand, Stage, Word};
use crate::diag::Sink;
use crate::messages;
use crate::span::Span;

/// What is left of a stage's arguments.
pub(super) struct Args<'c, 'a> {
    op: Word<'a>,
    left: Vec<&'c Arg<'a>>,
}

/// The mesh axis that a collective names: its first argument without a key.
pub(super) fn axis_word<'a>(stage: &Stage<'a>) -> Option<Word<'a>> {
    stage.args.iter().find_map(|arg| match arg {
        Arg { key: None, value: ArgValue::Name(axis), .. } => Some(axis.word),
        _ => None,
    })
}

impl<'c, 'a> Args<'c, 'a> {
    pub fn of(stage: &'c Stage<'a>) -> Self {
        Args { op: stage.name, left: stage.args.iter().collect() }
    }

    /// The next argument without a key.
    pub fn positional(&mut self) -> Option<&'c Arg<'a>> {
        let i = self.left.iter().position(|arg| arg.key.is_none())?;
        Some(self.left.remove(i))
    }

    /// The next argument without a key, which must be there.
    fn required(&mut self, what: &str, sink: &mut Sink) -> Option<&'c Arg<'a>> {
        let arg = self.positional();
        arg.or_else(|| sink.refuse(self.op.span, messages::missing_argument(self.op.text, what)))
    }

    fn wrong<T>(&self, arg: &Arg<'a>, what: &str, sink: &mut Sink) -> Option<T> {
        sink.refuse(arg.span, messages::wrong_argument(self.op.text, what, arg.text))
    }

    /// A tensor.
    pub fn operand(&mut self, sink: &mut Sink) -> Option<Operand<'a>> {
        let what = "a tensor operand";
        let arg = self.required(what, sink)?;
        match arg.value {
            ArgValue::Name(operand) => Some(operand),
            _ => self.wrong(arg, what, sink),
        }
    }

    /// A name that is no tensor.
    pub fn word(&mut self, what: &str, sink: &mut Sink) -> Option<Word<'a>> {
        let arg = self.required(what, sink)?;
        match arg.value {
            ArgValue::Name(Operand { word, transposed: None }) => Some(word),
            _ => self.wrong(arg, what, sink),
        }
    }

    /// A finite number.
    pub fn number(&mut self, sink: &mut Sink) -> Option<f64> {
        let what = "a number";
        let arg = self.required(what, sink)?;
        match arg.value {
            ArgValue::Int(n) => Some(n.value as f64),
            ArgValue::Float(n) => Some(n.value),
            ArgValue::Name(_) => self.wrong(arg, what, sink),
        }
    }

    /// The name of a mesh axis, if there is one; the outer `None` is a mistake.
    pub fn axis(&mut self, sink: &mut Sink) -> Option<Option<Word<'a>>> {
        match self.left.iter().any(|arg| arg.key.is_none()) {
            true => self.word("the name of a mesh axis", sink).map(Some),
            false => Some(None),
        }
    }

    /// `key = number`, if it is there; the outer `None` is a mistake.
    pub fn key_int(&mut self, key: &str, sink: &mut Sink) -> Option<Option<Number<u64>>> {
        let Some(arg) = self.key(key) else { return Some(None) };
        match arg.value {
            ArgValue::Int(n) => Some(Some(n)),
            _ => self.wrong(arg, "a whole number there", sink),
        }
    }

    /// `key = …`, if it is there.
    pub fn key(&mut self, key: &str) -> Option<&'c Arg<'a>> {
        let has_key = |arg: &&Arg<'a>| arg.key.is_some_and(|k| k.text == key);
        let i = self.left.iter().position(has_key)?;
        Some(self.left.remove(i))
    }

    /// `key = tensor`, if it is there; the outer `None` is a mistake.
    pub fn key_operand(&mut self, key: &str, sink: &mut Sink) -> Option<Option<Operand<'a>>> {
        let Some(arg) = self.key(key) else { return Some(None) };
        match arg.value {
            ArgValue::Name(operand) => Some(Some(operand)),
            _ => self.wrong(arg, "a tensor there", sink),
        }
    }

    /// Whether the word stands among the arguments; takes it.
    pub fn flag(&mut self, name: &str) -> bool {
        self.flag_at(name).is_some()
    }

    /// Where the word stands among the arguments, if it does; takes it.
    pub fn flag_at(&mut self, name: &str) -> Option<Span> {
        let is = |arg: &&Arg<'a>| match arg.value {
            ArgValue::Name(Operand { word, transposed: None }) => {
                arg.key.is_none() && word.text == name
            }
            _ => false,
        };
        let found = self.left.iter().position(is);
        found.map(|i| self.left.remove(i).span)
    }

    /// The next name without a key, which stays.
    pub fn next_name(&self) -> Option<Word<'a>> {
        match self.left.iter().find(|arg| arg.key.is_none())?.value {
            ArgValue::Name(operand) => Some(operand.word),
            _ => None,
        }
    }

    /// The keys of what is left.
    pub fn keys(&self) -> impl Iterator<Item = Word<'a>> + '_ {
        self.left.iter().filter_map(|arg| arg.key)
    }

    /// A tensor, if there is one; other arguments without a key are passed over.
    pub fn optional_operand(&mut self) -> Option<Operand<'a>> {
        while let Some(arg) = self.positional() {
            if let ArgValue::Name(operand) = arg.value {
                return Some(operand);
            }
        }
        None
    }

    /// `key = number`, if it is there; the outer `None` is a mistake.
    pub fn key_number(&mut self, key: &str, sink: &mut Sink) -> Option<Option<f64>> {
        let Some(arg) = self.key(key) else { return Some(None) };
        match arg.value {
            ArgValue::Int(n) => Some(Some(n.value as f64)),
            ArgValue::Float(n) => Some(Some(n.value)),
            ArgValue::Name(_) => self.wrong(arg, "a number there", sink),
        }
    }

    /// Reports what no one has taken.
    pub fn finish(self, sink: &mut Sink) {
        for arg in self.left {
            match arg.key {
                Some(key) => sink.push(key.span, messages::unknown_key(self.op.text, key.text)),
                None => sink.push(arg.span, messages::extra_argument(self.op.text)),
            }
        }
    }
}
