//! State of the checker: names, types under inference, nodes.

use super::{
    args::Args,
    dims::{Dims, Term},
    mesh::Mesh,
};
use crate::ast::{Operand, Stage, Word};
use crate::diag::{MAX_SHOWN, Sink, Text};
use crate::messages;
use crate::ops;
use crate::program::{DType, Factors, Op, Placement, SymbolKind};
use crate::span::Span;
use crate::suggest::nearest;
use std::collections::{BTreeMap, BTreeSet};

/// Dtype, shape and placement under inference.
#[derive(Clone, Debug)]
pub(super) struct Ty {
    pub dtype: DType,
    pub dims: Vec<Term>,
    /// One for each mesh axis.
    pub placement: Vec<Placement>,
}

impl Ty {
    /// For an open tensor that gets this type.
    pub fn wanted(&self) -> Wanted {
        let (dtype, placement) = (self.dtype, self.placement.clone());
        Wanted { dtype, shape: Shape::Like(self.dims.clone()), placement }
    }
}

/// A value before it has its final number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    Param(usize),
    Node(usize),
}

/// A well-typed value.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub id: Id,
    pub ty: Ty,
    /// For each mesh axis, whether a `gather` over it is upstream.
    pub gathered: Vec<bool>,
    /// What messages call it: "`x`", "`x.t`", "the result of `gemm`".
    pub label: String,
    /// `ty` is that of the transpose; only a factor of `gemm` can be.
    pub is_transposed: bool,
    /// After `ring`: the tensors beside this value, which is the keys.
    pub ring: Option<Box<Ring>>,
    /// For rows grouped by expert: the value that has the number of rows of each expert.
    pub ragged: Option<Id>,
    /// Its scale factors as stored, and the elements that share one.
    pub scales: Option<(Id, Factors)>,
}

/// What travels in a ring with the value of the chain: values with keys, to `attention`; or, in the backward, output
/// gradients and statistics with queries.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    pub axis: usize,
    pub values: Value,
    /// Statistics of queries, in the backward.
    pub stats: Option<Value>,
    /// Span of the word `ring`.
    pub span: Span,
}

/// One stage about to be typed.
pub(super) struct Call<'c, 'a> {
    pub op: Word<'a>,
    /// `None` if it has a mistake upstream.
    pub input: Option<Value>,
    pub args: Args<'c, 'a>,
    /// The stages after this one.
    pub rest: &'c [Option<Stage<'a>>],
}

#[derive(Debug)]
pub(super) enum State {
    Known(Ty),
    /// `None` for parts that the annotation leaves out.
    Open {
        dtype: Option<DType>,
        dims: Option<Vec<Term>>,
    },
    /// Its type has a mistake.
    Broken,
}

#[derive(Debug)]
pub(super) struct Param<'a> {
    pub name: Word<'a>,
    /// Suffix of its name: `_scale` for the scale factors of parameter `name`.
    pub suffix: &'static str,
    /// Where its dtype is written; without annotation, its first use.
    pub dtype_span: Span,
    pub state: State,
    /// The parameter with its scale factors, and the elements that share one.
    pub scales: Option<(usize, Factors)>,
}

#[derive(Debug)]
pub(super) struct NodeDraft {
    pub op: Op,
    pub inputs: Vec<Id>,
    pub value: Value,
}

#[derive(Debug)]
pub(super) struct Name<'a> {
    pub word: Word<'a>,
    /// `None`: defined, with a mistake.
    pub id: Option<Id>,
    pub is_used: bool,
}

/// The shape that an open tensor gets.
pub(super) enum Shape {
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
    pub fn n_dims(&self) -> usize {
        match self {
            Shape::Fresh(n) => *n,
            Shape::Like(dims) => dims.len(),
            Shape::GateUp => 3,
            Shape::Heads { .. } | Shape::Stacked => 4,
        }
    }
}

/// The type that an open tensor gets where it is first used.
pub(super) struct Wanted {
    pub dtype: DType,
    pub shape: Shape,
    pub placement: Vec<Placement>,
}

pub(super) struct Checker<'a, 's> {
    pub sink: &'s mut Sink,
    pub mesh: Mesh<'a>,
    pub dims: Dims,
    /// Unknown names are parameters.
    pub is_bare: bool,
    /// The symbols that are known at launch only.
    pub runtime: BTreeMap<&'a str, SymbolKind>,
    pub names: BTreeMap<&'a str, Name<'a>>,
    /// Names read by stages that take f32 statistics of queries.
    pub statistics: BTreeSet<&'a str>,
    /// Names that a later `let` defines.
    pub bound_later: BTreeSet<&'a str>,
    pub params: Vec<Param<'a>>,
    pub nodes: Vec<NodeDraft>,
    /// Unbounded numbers of rows of dispatched tokens.
    pub room: Vec<Term>,
    /// Ids by which rows are routed, and whether some are dropped.
    pub routes: Vec<(Id, bool)>,
}

impl<'a> Checker<'a, '_> {
    pub fn define(&mut self, word: Word<'a>, id: Option<Id>) {
        if let Some(what) = reserved(word.text) {
            self.sink.push(word.span, messages::reserved_name(word.text, what));
        }
        let of_factors = |p: &Param<'_>| {
            !p.suffix.is_empty() && word.text.strip_prefix(p.name.text) == Some(p.suffix)
        };
        if self.params.iter().any(of_factors) {
            self.sink.push(word.span, messages::defined_twice(word.text));
            self.names.entry(word.text).or_insert(Name { word, id: None, is_used: true });
            return;
        }
        if self.names.contains_key(word.text) {
            self.sink.push(word.span, messages::defined_twice(word.text));
            return;
        }
        self.names.insert(word.text, Name { word, id, is_used: false });
    }

    /// What the name means, now used; `None` after a report, now or where it was defined.
    pub fn resolve(&mut self, word: Word<'a>) -> Option<Id> {
        if let Some(name) = self.names.get_mut(word.text) {
            name.is_used = true;
            return name.id;
        }
        if self.bound_later.contains(word.text) {
            return self.sink.refuse(word.span, messages::bound_later(word.text));
        }
        if !self.is_bare {
            let known = self.names.keys().copied().take(MAX_SUGGESTIONS);
            let near = if self.sink.len() < MAX_SHOWN { nearest(word.text, known) } else { None };
            return self.sink.refuse(word.span, messages::unknown_name(word.text, near));
        }
        if let Some(what) = reserved(word.text) {
            return self.sink.refuse(word.span, messages::reserved_name(word.text, what));
        }
        let id = Id::Param(self.params.len());
        let state = State::Open { dtype: None, dims: None };
        let (dtype_span, scales) = (word.span, None);
        self.params.push(Param { name: word, suffix: "", dtype_span, state, scales });
        self.names.insert(word.text, Name { word, id: Some(id), is_used: true });
        Some(id)
    }

    /// Resolves an operand of a stage whose input is absent, for the mistakes in its name.
    pub fn touch(&mut self, operand: Operand<'a>) {
        self.resolve(operand.word);
    }

    /// A stage's input; where that has a mistake, operands are resolved for theirs.
    pub fn input_of(
        &mut self,
        input: Option<Value>,
        operands: impl IntoIterator<Item = Operand<'a>>,
    ) -> Option<Value> {
        if input.is_none() {
            operands.into_iter().for_each(|operand| self.touch(operand));
        }
        input
    }

    /// Two dimensions become one; the text is of those that differ, as they are written.
    pub fn fit(&mut self, [x, y]: [Term; 2], at: Span, text: impl FnOnce(&str, &str) -> Text) {
        if !self.dims.unify(x, y) {
            let text = text(&self.dims.show(x), &self.dims.show(y));
            self.sink.push(at, text);
        }
    }

    /// Checks that a value is placed as another; the text is of both placements.
    pub fn placed_as(
        &mut self,
        x: &Value,
        y: &Value,
        at: Span,
        text: impl FnOnce(&str, &str) -> Text,
    ) {
        if x.ty.placement != y.ty.placement {
            let [x, y] = [x, y].map(|v| self.mesh.show_all(&v.ty.placement));
            self.sink.push(at, text(&x, &y));
        }
    }

    /// The value of an operand that may not be transposed; if it is open, it becomes what is
    /// wanted.
    pub fn value(&mut self, operand: Operand<'a>, wanted: Wanted) -> Option<Value> {
        if let Some(span) = operand.transposed {
            self.sink.push(span, messages::transpose_elsewhere(operand.word.text));
            self.touch(operand);
            return None;
        }
        self.stored(operand.word, wanted)
    }

    /// The value of a name, as it is stored.
    pub fn stored(&mut self, word: Word<'a>, wanted: Wanted) -> Option<Value> {
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
                    scales: self.params[i].scales.map(|(i, of)| (Id::Param(i), of)),
                })
            }
        }
    }

    /// The type of a value, if it has one.
    pub fn known(&self, id: Id) -> Option<&Ty> {
        match id {
            Id::Node(i) => Some(&self.nodes[i].value.ty),
            Id::Param(i) => match &self.params[i].state {
                State::Known(ty) => Some(ty),
                State::Open { .. } | State::Broken => None,
            },
        }
    }

    /// Whether a value has this type, of which dimensions become one with its own.
    pub fn has_type(&mut self, value: &Value, ty: &Ty) -> bool {
        let dims = value.ty.dims.len() == ty.dims.len()
            && value.ty.dims.iter().zip(&ty.dims).all(|(a, b)| self.dims.unify(*a, *b));
        dims && value.ty.dtype == ty.dtype && value.ty.placement == ty.placement
    }

    /// Gives an open parameter its type.
    pub fn close(&mut self, i: usize, wanted: Wanted) -> Option<Ty> {
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
        if let Some((scales, of)) = self.params[i].scales {
            let ty = self.scales_ty(&ty, of);
            self.params[scales].state = State::Known(ty);
        }
        Some(ty)
    }

    pub fn push(&mut self, op: Op, inputs: Vec<Id>, ty: Ty, gathered: Vec<bool>) -> Value {
        let id = Id::Node(self.nodes.len());
        let label = format!("the result of `{}`", op.name());
        let (ring, ragged, scales) = (None, None, None);
        let value = Value { id, ty, gathered, label, is_transposed: false, ring, ragged, scales };
        self.nodes.push(NodeDraft { op, inputs, value: value.clone() });
        value
    }

    /// The value with these factors, also under a name.
    pub fn keep_scales(&mut self, mut value: Value, scales: Option<(Id, Factors)>) -> Value {
        value.scales = scales;
        if let Id::Node(i) = value.id {
            self.nodes[i].value.scales = scales;
        }
        value
    }

    /// Parameters are `f32` where they are contributions of ranks, or second operands of elementwise operations, which
    /// are in f32.
    pub fn report_f32(&mut self, results: &[Option<Value>]) {
        for (i, param) in self.params.iter().enumerate() {
            let State::Known(ty) = &param.state else { continue };
            let partial = ty.placement.contains(&Placement::Partial);
            let own = !param.suffix.is_empty() || self.statistics.contains(param.name.text);
            if ty.dtype != DType::F32 || partial || own {
                continue;
            }
            let id = Id::Param(i);
            let elsewhere = |node: &NodeDraft| {
                let second = matches!(
                    node.op,
                    Op::Add | Op::Mul | Op::Bias | Op::Slope(_) | Op::Rope { .. }
                );
                let taken = match node.op {
                    Op::Combine | Op::Weigh | Op::Dispatch { .. } => Some(2),
                    Op::Dequantize(_) => Some(1),
                    Op::DispatchFactors => Some(0),
                    Op::Attention { scores, .. } if scores.sinks => Some(3),
                    _ => second.then_some(1),
                };
                let all = node.op == Op::AttentionDsinks;
                node.inputs.iter().enumerate().any(|(at, x)| *x == id && !all && taken != Some(at))
            };
            let returned = results.iter().flatten().any(|value| value.id == id);
            if returned || self.nodes.iter().any(elsewhere) {
                self.sink.push(param.dtype_span, messages::f32_parameter(param.name.text));
            }
        }
    }

    pub fn report_unused(&mut self) {
        for name in self.names.values().filter(|name| !name.is_used) {
            self.sink.push(name.word.span, messages::unused(name.word.text));
        }
    }
}

/// The most names that a misspelt one is compared with.
pub(super) const MAX_SUGGESTIONS: usize = 256;

/// What else `name` means, so that no tensor may be called so.
fn reserved(name: &str) -> Option<&'static str> {
    if ops::find(name).is_some() {
        Some("an operation")
    } else if DType::from_name(name).is_some() {
        Some("a dtype")
    } else {
        None
    }
}
