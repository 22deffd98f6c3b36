//! Placements and shapes that the source leaves out: those that make the chain type-check.
//!
//! The rule looks forward along the chain, on each mesh axis by itself, to the next stage that
//! is not elementwise (`docs/dsl.md` states it for users, in "Bare names").

use super::checker::{Checker, Id, Shape, State, Value};
use crate::ast::{ArgValue, Operand, Stage};
use crate::ops::{self, OpKind};
use crate::program::Placement;

/// What becomes of a value next, on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Gather,
    Gemm {
        /// A reduction over the axis is what comes after.
        reduced: bool,
    },
    Reduce,
    /// This dimension becomes whole.
    Concat(usize),
    Ring,
    Dispatch,
    Nothing,
}

/// The first of `stages` that moves or contracts over the axis called `axis`, and what follows it.
fn next<'s, 'a>(stages: &'s [Option<Stage<'a>>], axis: &str) -> (Next, &'s [Option<Stage<'a>>]) {
    for (i, stage) in stages.iter().enumerate() {
        let Some(stage) = stage else { continue };
        let kind = ops::find(stage.name.text).map(|op| op.kind);
        let found = match kind {
            Some(OpKind::Gemm) => Next::Gemm { reduced: false },
            Some(OpKind::Dispatch) => Next::Dispatch,
            Some(OpKind::AllToAll) if is_over(stage, axis) => {
                let concat = stage.args.iter().find(|a| a.key.is_some_and(|k| k.text == "concat"));
                match concat.map(|arg| arg.value) {
                    Some(ArgValue::Int(n)) => Next::Concat(n.value as usize),
                    _ => continue,
                }
            }
            Some(OpKind::Gather) if is_over(stage, axis) => Next::Gather,
            Some(OpKind::Ring) if is_ring_over(stage, axis) => Next::Ring,
            Some(OpKind::ReduceScatter | OpKind::AllReduce) if is_over(stage, axis) => Next::Reduce,
            _ => continue,
        };
        return (found, &stages[i + 1..]);
    }
    (Next::Nothing, &[])
}

/// As `next`, with the stage after a `gemm` looked at, too.
fn next_two(stages: &[Option<Stage<'_>>], axis: &str) -> Next {
    match next(stages, axis) {
        (Next::Gemm { .. }, rest) => Next::Gemm { reduced: next(rest, axis).0 == Next::Reduce },
        (found, _) => found,
    }
}

/// Whether a collective is over `axis`, or names no axis.
fn is_over(stage: &Stage<'_>, axis: &str) -> bool {
    super::args::axis_word(stage).is_none_or(|word| word.text == axis)
}

/// Whether `k -> ring(v, axis)` is over `axis`, or names no axis.
fn is_ring_over(stage: &Stage<'_>, axis: &str) -> bool {
    match stage.args.get(1).map(|arg| arg.text) {
        Some(word) => word == axis,
        None => true,
    }
}

/// The last dimension; that of a matrix for what is no tensor of columns, which is then refused.
fn columns(n_dims: usize) -> usize {
    n_dims.max(2) - 1
}

/// Whether an operation reads heads.
fn is_attention(kind: Option<OpKind>) -> bool {
    use OpKind::{
        Attention, AttentionDk, AttentionDq, AttentionDsinks, AttentionDv, AttentionStats, Lse,
        Ring,
    };
    let of_gradients = [AttentionStats, AttentionDq, AttentionDk, AttentionDv, AttentionDsinks];
    matches!(kind, Some(Ring | Attention | Lse)) || kind.is_some_and(|k| of_gradients.contains(&k))
}

/// Whether an operation has the shape of its input.
fn keeps_shape(kind: Option<OpKind>) -> bool {
    use OpKind::{
        CombineGrad, Dispatch, Dropped, Gemm, GroupedGemm, GroupedWgrad, Swiglu, SwigluGrad, View,
        WeighGrad,
    };
    let other = matches!(
        kind,
        None | Some(
            CombineGrad
                | Dispatch
                | Dropped
                | Gemm
                | GroupedGemm
                | GroupedWgrad
                | Swiglu
                | SwigluGrad
                | View
                | WeighGrad
        )
    );
    !is_attention(kind) && !other
}

impl<'a> Checker<'a, '_> {
    /// The shape of an operand without annotation, of which the value before `stages` has its
    /// columns; if only its placement is open, the shape that it has.
    pub(super) fn shape_before(&self, operand: Operand<'a>, stages: &[Option<Stage<'a>>]) -> Shape {
        let id = self.names.get(operand.word.text).and_then(|name| name.id);
        if let Some(Id::Param(i)) = id
            && let State::Open { dims: Some(dims), .. } = &self.params[i].state
        {
            return Shape::Like(dims.clone());
        }
        let kind = |s: &Stage<'_>| Some(ops::find(s.name.text)?.kind);
        let mut known = stages.iter().map(|s| (s.as_ref().and_then(kind), s));
        let next = known.find(|(kind, _)| !keeps_shape(*kind));
        match next.map(|(kind, _)| kind) {
            // A matrix has no gate/up axis to transpose around.
            Some(kind) if is_attention(kind) => Shape::Fresh(4),
            // Of heads.
            Some(Some(OpKind::View))
                if next.and_then(|n| n.1.as_ref()).is_some_and(|s| s.args.len() == 2) =>
            {
                Shape::Fresh(4)
            }
            Some(Some(OpKind::Swiglu)) if operand.transposed.is_none() => Shape::GateUp,
            _ => Shape::Fresh(2),
        }
    }

    /// The placement of a tensor of `n_dims` dimensions that enters a chain before `stages`.
    pub(super) fn infer_input(
        &self,
        stages: &[Option<Stage<'a>>],
        n_dims: usize,
    ) -> Vec<Placement> {
        let axes = self.mesh.axes.iter();
        axes.map(|axis| match next_two(stages, axis) {
            Next::Gather | Next::Dispatch => Placement::Shard(0),
            Next::Ring => Placement::Shard(1),
            Next::Gemm { reduced: true } => Placement::Shard(columns(n_dims)),
            Next::Gemm { reduced: false } | Next::Nothing => Placement::Replicate,
            Next::Reduce => Placement::Partial,
            Next::Concat(dim) => Placement::Shard(dim),
        })
        .collect()
    }

    /// The placement of the second operand of a `gemm` of `input`, of `n_dims` dimensions as the
    /// GEMM reads it, with `rest` after it.
    pub(super) fn infer_weight(
        &self,
        input: &Value,
        n_dims: usize,
        rest: &[Option<Stage<'a>>],
    ) -> Vec<Placement> {
        let columns = Placement::Shard(columns(n_dims));
        let axes = self.mesh.axes.iter().zip(&input.ty.placement).zip(&input.gathered);
        axes.map(|((axis, placement), &gathered)| match placement {
            Placement::Shard(1) => Placement::Shard(0),
            Placement::Shard(_) | Placement::Zigzag(_) | Placement::Partial => Placement::Replicate,
            Placement::Replicate => match next_two(rest, axis) {
                Next::Reduce => Placement::Partial,
                Next::Gemm { reduced: true } | Next::Gather => columns,
                Next::Gemm { reduced: false } | Next::Ring | Next::Dispatch | Next::Concat(_) => {
                    Placement::Replicate
                }
                Next::Nothing if gathered => columns,
                Next::Nothing => Placement::Replicate,
            },
        })
        .collect()
    }
}
