//! The syntax tree: what was written, with the place of each word. Nothing is resolved.
//!
//! A part that could not be read is absent (`None`, or left out of its list), and has been
//! reported; the checker stays silent about what is absent.

use crate::span::Span;

/// A word of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    pub text: &'a str,
    pub span: Span,
}

/// A number of the source, not negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<T> {
    pub value: T,
    pub span: Span,
}

/// `pub fn name<..>(..) -> .. { .. }`, or the body alone.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub docs: Vec<&'a str>,
    /// `None` for a bare chain: its names are then its parameters.
    pub signature: Option<Signature<'a>>,
    pub body: Body<'a>,
}

#[derive(Debug)]
pub(crate) struct Signature<'a> {
    pub name: Word<'a>,
    /// `<M: dyn <= 8192>`.
    pub runtime: Vec<RuntimeSymbol<'a>>,
    pub params: Vec<Param<'a>>,
    pub results: Option<Results<'a>>,
}

#[derive(Debug)]
pub(crate) struct RuntimeSymbol<'a> {
    pub name: Word<'a>,
    /// `own`, in place of `dyn`.
    pub own: bool,
    pub max: Option<Number<u64>>,
}

#[derive(Debug)]
pub(crate) struct Param<'a> {
    pub name: Word<'a>,
    /// `None` if it could not be read.
    pub ty: Option<Type<'a>>,
}

#[derive(Debug)]
pub(crate) struct Results<'a> {
    /// The whole result list.
    pub span: Span,
    /// `None` for one that could not be read.
    pub types: Vec<Option<Type<'a>>>,
}

/// `bf16[M, K] @ shard(0, dp) @ shard(1, tp)`.
#[derive(Debug)]
pub(crate) struct Type<'a> {
    pub dtype: Word<'a>,
    /// From `[` to `]`.
    pub dims_span: Span,
    pub dims: Vec<DimExpr<'a>>,
    /// `scaled(1, K)`.
    pub scales: Option<ScalesExpr<'a>>,
    /// Empty: to be inferred.
    pub placements: Vec<PlacementExpr<'a>>,
}

/// `scaled(1, K)`: elements that share a factor, along each dimension.
#[derive(Debug)]
pub(crate) struct ScalesExpr<'a> {
    pub span: Span,
    pub block: Vec<DimExpr<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum DimExpr<'a> {
    Sym(Word<'a>),
    Lit(Number<u64>),
}

#[derive(Debug)]
pub(crate) struct PlacementExpr<'a> {
    pub span: Span,
    pub kind: PlacementKind,
    pub axis: Option<Word<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PlacementKind {
    Shard(Number<u64>),
    Zigzag(Number<u64>),
    Replicate,
    Partial,
}

#[derive(Debug)]
pub(crate) struct Body<'a> {
    pub lets: Vec<Let<'a>>,
    /// More than one if written as `(a, b)`. Empty if missing, which has been reported.
    pub results: Vec<Chain<'a>>,
}

#[derive(Debug)]
pub(crate) struct Let<'a> {
    pub name: Word<'a>,
    pub chain: Chain<'a>,
}

/// `input -> stage -> stage`. A first stage `op(x, ..)` is read as `x -> op(..)`.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    /// `None` if it could not be read.
    pub input: Option<Operand<'a>>,
    /// `None` for a stage that could not be read.
    pub stages: Vec<Option<Stage<'a>>>,
}

/// A tensor where an operation uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub word: Word<'a>,
    /// `name.t`.
    pub transposed: Option<Span>,
}

/// `name`, or `name(arg, key = arg)`.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub name: Word<'a>,
    pub args: Vec<Arg<'a>>,
}

#[derive(Debug)]
pub(crate) struct Arg<'a> {
    pub key: Option<Word<'a>>,
    pub value: ArgValue<'a>,
    /// The value as written.
    pub text: &'a str,
    /// Of the value.
    pub span: Span,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ArgValue<'a> {
    Name(Operand<'a>),
    Int(Number<u64>),
    Float(Number<f64>),
}
