//! Syntax tree to [`Program`]: names, dtypes, symbolic shapes, placements.
//!
//! One walk over the body in source order. A value with a mistake in it is absent (`None`), and
//! whatever depends on it is then resolved, for the mistakes in its own names and arguments,
//! but not typed; so every message is a cause and none is a consequence.
//!
//! A tensor without annotation is *open* until its first use, which gives it the type that the
//! operation there wants.

mod args;
mod attention;
mod attention_grad;
mod chain;
mod collective;
mod dims;
mod dispatch;
mod elementwise;
mod finish;
mod gemm;
mod grouped;
mod infer;
mod mesh;
mod runtime;
mod swiglu;
mod types;

use crate::ast::{Operand, Source, Word};
use crate::diag::{MAX_SHOWN, Sink};
use crate::messages;
use crate::program::{DType, Op, Placement, Program};
use crate::span::Span;
use crate::suggest::nearest;
use dims::{Dims, Term};
use mesh::Mesh;
use std::collections::{BTreeMap, BTreeSet};

/// Checks `source`. `None` if something has been reported.
pub(crate) fn check(source: &Source<'_>, sink: &mut Sink) -> Option<Program> {
    let mesh = Mesh::of(source, sink)?;
    let mut checker = Checker {
        sink,
        mesh,
        dims: Dims::default(),
        is_bare: source.signature.is_none(),
        runtime: BTreeMap::new(),
        bound_later: source.body.lets.iter().map(|binding| binding.name.text).collect(),
        names: BTreeMap::new(),
        statistics: attention_grad::statistics(source),
        params: Vec::new(),
        nodes: Vec::new(),
        room: Vec::new(),
    };
    if let Some(signature) = &source.signature {
        checker.signature(signature);
    }
    for binding in &source.body.lets {
        let value = checker.chain(&binding.chain);
        checker.define(binding.name, value.map(|v| v.id));
    }
    let results: Vec<_> = source.body.results.iter().map(|c| checker.chain(c)).collect();
    checker.results(source, &results);
    // What has a mistake may be where a name is meant to be used.
    if checker.sink.is_empty() {
        checker.report_unused();
        checker.report_f32(&results);
        checker.report_integers(&results);
    }
    let results = results.into_iter().map(|v| v.map(|v| v.id)).collect::<Option<Vec<_>>>()?;
    checker.finish(source, &results)
}

/// Dtype, shape and placement under inference.
#[derive(Clone, Debug)]
struct Ty {
    dtype: DType,
    dims: Vec<Term>,
    /// One for each mesh axis.
    placement: Vec<Placement>,
}

/// A value before it has its final number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Param(usize),
    Node(usize),
}

/// A well-typed value.
#[derive(Clone, Debug)]
struct Value {
    id: Id,
    ty: Ty,
    /// For each mesh axis, whether a `gather` over it is upstream.
    gathered: Vec<bool>,
    /// What messages call it: "`x`", "`x.t`", "the result of `gemm`".
    label: String,
    /// `ty` is that of the transpose; only a factor of `gemm` can be.
    is_transposed: bool,
    /// Behind `ring`, of which this is the keys.
    ring: Option<Box<attention::Ring>>,
    /// Rows of experts, of which this is how many each has.
    ragged: Option<Id>,
}

#[derive(Debug)]
enum State {
    Known(Ty),
    /// What is not written is `None`.
    Open {
        dtype: Option<DType>,
        dims: Option<Vec<Term>>,
    },
    /// Its type has a mistake.
    Broken,
}

#[derive(Debug)]
struct Param<'a> {
    name: Word<'a>,
    /// Where its dtype is written; without annotation, its first use.
    dtype_span: Span,
    state: State,
}

#[derive(Debug)]
struct NodeDraft {
    op: Op,
    inputs: Vec<Id>,
    value: Value,
}

#[derive(Debug)]
struct Name<'a> {
    word: Word<'a>,
    /// `None`: defined, with a mistake.
    id: Option<Id>,
    is_used: bool,
}

/// The shape that an open tensor gets.
enum Shape {
    /// This many dimensions, of any size.
    Fresh(usize),
    /// These dimensions.
    Like(Vec<Term>),
    /// Three dimensions, of which the second is 2: gate and up.
    GateUp,
    /// Four dimensions, of which the third is 2: a stack of pairs of gate and up.
    Stacked,
    /// Four dimensions, of which the third, heads, is another one.
    Heads { like: [Term; 4] },
}

impl Shape {
    fn n_dims(&self) -> usize {
        match self {
            Shape::Fresh(n) => *n,
            Shape::Like(dims) => dims.len(),
            Shape::GateUp => 3,
            Shape::Heads { .. } | Shape::Stacked => 4,
        }
    }
}

/// The type that an open tensor gets where it is first used.
struct Wanted {
    dtype: DType,
    shape: Shape,
    placement: Vec<Placement>,
}

struct Checker<'a, 's> {
    sink: &'s mut Sink,
    mesh: Mesh<'a>,
    dims: Dims,
    /// Unknown names are parameters.
    is_bare: bool,
    /// The symbols that are known at launch only, and their declared bounds.
    runtime: BTreeMap<&'a str, Option<u64>>,
    names: BTreeMap<&'a str, Name<'a>>,
    /// What stages read that take f32 statistics of queries.
    statistics: BTreeSet<&'a str>,
    /// What a `let` further down defines.
    bound_later: BTreeSet<&'a str>,
    params: Vec<Param<'a>>,
    nodes: Vec<NodeDraft>,
    /// Rows of dispatched tokens that nothing bounds.
    room: Vec<Term>,
}

impl<'a> Checker<'a, '_> {
    fn define(&mut self, word: Word<'a>, id: Option<Id>) {
        if let Some(what) = types::reserved(word.text) {
            self.sink.push(word.span, messages::reserved_name(word.text, what));
        }
        if self.names.contains_key(word.text) {
            self.sink.push(word.span, messages::defined_twice(word.text));
            return;
        }
        self.names.insert(word.text, Name { word, id, is_used: false });
    }

    /// What the name means, now used; `None` after a report, now or where it was defined.
    fn resolve(&mut self, word: Word<'a>) -> Option<Id> {
        if let Some(name) = self.names.get_mut(word.text) {
            name.is_used = true;
            return name.id;
        }
        if self.bound_later.contains(word.text) {
            self.sink.push(word.span, messages::bound_later(word.text));
            return None;
        }
        if !self.is_bare {
            let known = self.names.keys().copied().take(MAX_SUGGESTIONS);
            let near = if self.sink.len() < MAX_SHOWN { nearest(word.text, known) } else { None };
            self.sink.push(word.span, messages::unknown_name(word.text, near));
            return None;
        }
        if let Some(what) = types::reserved(word.text) {
            self.sink.push(word.span, messages::reserved_name(word.text, what));
            return None;
        }
        let id = Id::Param(self.params.len());
        let state = State::Open { dtype: None, dims: None };
        self.params.push(Param { name: word, dtype_span: word.span, state });
        self.names.insert(word.text, Name { word, id: Some(id), is_used: true });
        Some(id)
    }

    /// Resolves an operand of a stage whose input is absent, for the mistakes in its name.
    fn touch(&mut self, operand: Operand<'a>) {
        self.resolve(operand.word);
    }

    /// The value of an operand that may not be transposed; if it is open, it becomes what is
    /// wanted.
    fn value(&mut self, operand: Operand<'a>, wanted: Wanted) -> Option<Value> {
        if let Some(span) = operand.transposed {
            self.sink.push(span, messages::transpose_elsewhere(operand.word.text));
            self.touch(operand);
            return None;
        }
        self.stored(operand.word, wanted)
    }

    /// The value of a name, as it is stored.
    fn stored(&mut self, word: Word<'a>, wanted: Wanted) -> Option<Value> {
        match self.resolve(word)? {
            Id::Node(i) => {
                let mut value = self.nodes[i].value.clone();
                value.label = format!("`{}`", word.text);
                Some(value)
            }
            Id::Param(i) => {
                let ty = match &self.params[i].state {
                    State::Known(ty) => ty.clone(),
                    State::Open { .. } => self.close(i, wanted)?,
                    State::Broken => return None,
                };
                Some(Value {
                    id: Id::Param(i),
                    gathered: vec![false; ty.placement.len()],
                    ty,
                    label: format!("`{}`", word.text),
                    is_transposed: false,
                    ring: None,
                    ragged: None,
                })
            }
        }
    }

    /// Gives an open parameter its type.
    fn close(&mut self, i: usize, wanted: Wanted) -> Option<Ty> {
        let Param { name, state, .. } = &mut self.params[i];
        let name = *name;
        let State::Open { dtype, dims } = std::mem::replace(state, State::Broken) else {
            return None;
        };
        let dims = dims.unwrap_or_else(|| match wanted.shape {
            Shape::Fresh(n) => (0..n).map(|dim| self.dims.var(name.text, dim)).collect(),
            Shape::Like(dims) => dims,
            Shape::Heads { like: [b, s, _, d] } => vec![b, s, self.dims.var(name.text, 2), d],
            Shape::Stacked => {
                let [experts, rows, columns] = [0, 1, 3].map(|dim| self.dims.var(name.text, dim));
                vec![experts, rows, self.dims.lit(2), columns]
            }
            Shape::GateUp => {
                let [rows, columns] = [0, 2].map(|dim| self.dims.var(name.text, dim));
                vec![rows, self.dims.lit(2), columns]
            }
        });
        let ty = Ty { dtype: dtype.unwrap_or(wanted.dtype), dims, placement: wanted.placement };
        self.validate(name, &ty)?;
        self.params[i].state = State::Known(ty.clone());
        Some(ty)
    }

    fn push(&mut self, op: Op, inputs: Vec<Id>, ty: Ty, gathered: Vec<bool>) -> Value {
        let id = Id::Node(self.nodes.len());
        let label = format!("the result of `{}`", op.name());
        let value =
            Value { id, ty, gathered, label, is_transposed: false, ring: None, ragged: None };
        self.nodes.push(NodeDraft { op, inputs, value: value.clone() });
        value
    }

    /// Parameters are `f32` where they are summands of ranks, or second operands of elementwise operations, which are in f32.
    fn report_f32(&mut self, results: &[Option<Value>]) {
        for (i, param) in self.params.iter().enumerate() {
            let State::Known(ty) = &param.state else { continue };
            let partial = ty.placement.contains(&Placement::Partial);
            if ty.dtype != DType::F32 || partial || self.statistics.contains(param.name.text) {
                continue;
            }
            let id = Id::Param(i);
            let elsewhere = |node: &NodeDraft| {
                let second = matches!(node.op, Op::Add | Op::Mul | Op::Bias | Op::Slope(_));
                let taken = match node.op {
                    Op::Combine => Some(2),
                    _ => second.then_some(1),
                };
                node.inputs.iter().enumerate().any(|(at, x)| *x == id && taken != Some(at))
            };
            let returned = results.iter().flatten().any(|value| value.id == id);
            if returned || self.nodes.iter().any(elsewhere) {
                self.sink.push(param.dtype_span, messages::f32_parameter(param.name.text));
            }
        }
    }

    fn report_unused(&mut self) {
        for name in self.names.values().filter(|name| !name.is_used) {
            self.sink.push(name.word.span, messages::unused(name.word.text));
        }
    }
}

/// The most names that a misspelt one is compared with.
const MAX_SUGGESTIONS: usize = 256;
