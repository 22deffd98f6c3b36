//! Written types: dtype, dimensions, placements.

use super::checker::{Checker, Id, Param, State, Ty};
use super::dims::{Dims, Resolved, Term};
use crate::ast::{DimExpr, PlacementExpr, PlacementKind, ScalesExpr, Signature, Type, Word};
use crate::messages;
use crate::program::{DType, Factors, MAX_DIM, MAX_DIMS, Placement, SCALE_BLOCK};
use crate::span::Span;
use crate::suggest::nearest;

/// A written type; no placement if none is written.
pub(super) struct Written {
    pub dtype: DType,
    pub dims: Vec<Term>,
    pub placement: Option<Vec<Placement>>,
    /// What shares a factor.
    pub scaled: Option<Factors>,
}

impl<'a> Checker<'a, '_> {
    /// The type of the factors of a matrix.
    pub(super) fn scales_ty(&mut self, of: &Ty, factors: Factors) -> Ty {
        // Of a stack, each matrix has factors of its own.
        let (stack, matrix) = of.dims.split_at(of.dims.len().saturating_sub(2));
        let [rows, columns] = [matrix[0], matrix[1]];
        // Which dimensions of the factors the matrix's rows and columns have.
        let (dims, along) = match factors {
            Factors::Rows => (vec![rows], [Some(0), None]),
            Factors::Steps => (vec![self.dims.blocks(columns), rows], [Some(1), Some(0)]),
            Factors::Blocks => {
                let both = [rows, columns].map(|dim| self.dims.blocks(dim));
                (both.to_vec(), [Some(0), Some(1)])
            }
        };
        let placement = of.placement.iter().map(|p| match p {
            Placement::Shard(dim) if *dim < stack.len() => *p,
            Placement::Shard(dim) => along
                .get(dim - stack.len())
                .copied()
                .flatten()
                .map_or(Placement::Replicate, |d| Placement::Shard(stack.len() + d)),
            _ => Placement::Replicate,
        });
        let dims = [stack, &dims].concat();
        Ty { dtype: DType::F32, dims, placement: placement.collect() }
    }

    pub(super) fn signature(&mut self, signature: &Signature<'a>) {
        self.runtime_symbols(signature);
        for param in &signature.params {
            let dtype_span = param.ty.as_ref().map_or(param.name.span, |ty| ty.dtype.span);
            let written = param.ty.as_ref().and_then(|ty| self.written(ty));
            let scaled = written.as_ref().and_then(|w| w.scaled);
            let state = match written {
                None => State::Broken,
                Some(Written { dtype, dims, placement: None, .. }) => {
                    State::Open { dtype: Some(dtype), dims: Some(dims) }
                }
                Some(Written { dtype, dims, placement: Some(placement), .. }) => {
                    let ty = Ty { dtype, dims, placement };
                    self.validate(param.name, &ty).map_or(State::Broken, |()| State::Known(ty))
                }
            };
            let i = self.params.len();
            let factors = match &state {
                State::Known(ty) => match scaled {
                    Some(of) => State::Known(self.scales_ty(&ty.clone(), of)),
                    None => State::Broken,
                },
                State::Open { .. } => State::Open { dtype: None, dims: None },
                State::Broken => State::Broken,
            };
            let (name, scales) = (param.name, scaled.map(|of| (i + 1, of)));
            self.params.push(Param { name, suffix: "", dtype_span, state, scales });
            self.define(name, Some(Id::Param(i)));
            if scaled.is_some() {
                let (suffix, state, scales) = ("_scale", factors, None);
                self.params.push(Param { name, suffix, dtype_span, state, scales });
                let taken = |word: &str| word.strip_prefix(name.text) == Some(suffix);
                if let Some(word) = self.names.values().map(|n| n.word).find(|w| taken(w.text)) {
                    self.sink.push(word.span, messages::defined_twice(word.text));
                }
            }
        }
    }

    /// What a parameter must satisfy, written or inferred.
    pub(super) fn validate(&mut self, name: Word<'a>, ty: &Ty) -> Option<()> {
        let n_before = self.sink.len();
        let sharded = ty.placement.iter().filter_map(|p| p.cut());
        // Only an inferred placement can be out of range here.
        if let Some(dim) = sharded.max().filter(|dim| *dim >= ty.dims.len()) {
            let text = messages::shard_out_of_range(dim as u64, ty.dims.len());
            self.sink.push(name.span, text);
        }
        (self.sink.len() == n_before).then_some(())
    }

    /// Reads a written type; `None` after a report.
    pub(super) fn written(&mut self, ty: &Type<'a>) -> Option<Written> {
        let n_before = self.sink.len();
        let dtype = DType::from_name(ty.dtype.text);
        if dtype.is_none() {
            let near = nearest(ty.dtype.text, DType::ALL.map(DType::name));
            self.sink.push(ty.dtype.span, messages::unknown_dtype(ty.dtype.text, near));
        }
        if ty.dims.is_empty() {
            self.sink.push(ty.dims_span, messages::no_dims());
        }
        if ty.dims.len() > MAX_DIMS {
            return self.sink.refuse(ty.dims_span, messages::too_many_dims());
        }
        let mut dims = Vec::new();
        for dim in &ty.dims {
            dims.push(match dim {
                DimExpr::Sym(word) => self.dims.sym(word.text),
                DimExpr::Lit(number) => {
                    if !(1..=MAX_DIM).contains(&number.value) {
                        self.sink.push(number.span, messages::dim_out_of_range(number.value));
                    }
                    self.dims.lit(number.value)
                }
            });
        }
        let placement = self.placement(&ty.placements, dims.len());
        let scaled = ty.scales.as_ref().and_then(|s| self.scales(s, dtype, &dims, &placement));
        let is_sound = self.sink.len() == n_before;
        Some(Written { dtype: dtype?, dims, placement, scaled }).filter(|_| is_sound)
    }

    /// Reads `scaled(1, K)` of a matrix of eight bits, whose K that is, `scaled(1, 128)` or `scaled(128, 128)`; reports
    /// other blocks. A stack of matrices has the last.
    fn scales(
        &mut self,
        scales: &ScalesExpr<'a>,
        dtype: Option<DType>,
        dims: &[Term],
        placement: &Option<Vec<Placement>>,
    ) -> Option<Factors> {
        let own = |dim: &DimExpr<'a>| match dim {
            DimExpr::Sym(word) => self.dims.sym(word.text),
            DimExpr::Lit(number) => self.dims.lit(number.value),
        };
        let block: Vec<_> = scales.block.iter().map(own).collect();
        let &[rows, columns] = block.as_slice() else {
            return self.sink.refuse(scales.span, messages::scales_of_rows());
        };
        let number = |dims: &Dims, dim| match dims.resolve(dim) {
            Resolved::Lit(n) => Some(n),
            _ => None,
        };
        let (matrix, stack) = (dims.len() == 2, matches!(dims.len(), 2..=4));
        let found = match (number(&self.dims, rows), number(&self.dims, columns)) {
            (Some(1), _) if matrix && self.dims.unify(columns, dims[1]) => Some(Factors::Rows),
            (Some(1), Some(SCALE_BLOCK)) if matrix => Some(Factors::Steps),
            (Some(SCALE_BLOCK), Some(SCALE_BLOCK)) if stack => Some(Factors::Blocks),
            _ => None,
        };
        if dtype.is_some_and(|d| !d.is_narrow()) {
            self.sink.push(scales.span, messages::scales_of_dtype(dtype));
        } else if found.is_none() {
            self.sink.push(scales.span, messages::scales_of_rows());
        } else if placement.iter().flatten().any(|p| *p == Placement::Partial) {
            self.sink.push(scales.span, messages::scales_of_partial());
        }
        found
    }

    /// One placement for each axis; `None` if none is written.
    fn placement(&mut self, given: &[PlacementExpr<'a>], n_dims: usize) -> Option<Vec<Placement>> {
        let mut axes: Vec<Option<Placement>> = vec![None; self.mesh.axes.len()];
        for expr in given {
            let placement = match expr.kind {
                PlacementKind::Replicate => Placement::Replicate,
                PlacementKind::Partial => Placement::Partial,
                PlacementKind::Shard(dim) | PlacementKind::Zigzag(dim) => {
                    match usize::try_from(dim.value) {
                        Ok(cut) if cut < n_dims && matches!(expr.kind, PlacementKind::Shard(_)) => {
                            Placement::Shard(cut)
                        }
                        Ok(cut) if cut < n_dims => Placement::Zigzag(cut),
                        _ => {
                            let text = messages::shard_out_of_range(dim.value, n_dims);
                            self.sink.push(dim.span, text);
                            continue;
                        }
                    }
                }
            };
            let Some(axis) = self.axis_of(expr, placement) else {
                continue;
            };
            let Some(slot) = axes.get_mut(axis) else {
                continue;
            };
            let is_first = slot.is_none();
            if !is_first {
                self.sink.push(expr.span, messages::axis_twice(self.mesh.axes[axis]));
            }
            let cut = placement.cut().filter(|_| is_first);
            let outer = axes.iter().enumerate().filter_map(|(outer, p)| Some((outer, (*p)?)));
            let outer: Vec<_> = outer.filter(|(_, p)| cut.is_some() && p.cut() == cut).collect();
            for (outer, other) in outer {
                let zigzag = [placement, other].iter().any(|p| matches!(p, Placement::Zigzag(_)));
                match cut {
                    Some(dim) if zigzag => {
                        self.sink.push(expr.span, messages::zigzag_beside_shard(dim));
                    }
                    _ => drop(self.nest(outer, axis, expr.span)),
                }
            }
            axes[axis] = Some(placement);
        }
        let axes = axes.into_iter().map(|p| p.unwrap_or(Placement::Replicate));
        (!given.is_empty()).then(|| axes.collect())
    }

    /// The axis of one written placement; none for a plain `replicate` on several axes.
    fn axis_of(&mut self, expr: &PlacementExpr<'a>, placement: Placement) -> Option<usize> {
        match expr.axis {
            Some(word) => self.mesh.find(word, self.sink),
            None if self.mesh.axes.len() == 1 => Some(0),
            None if placement == Placement::Replicate => None,
            None => {
                let what = format!("`{}`", crate::print::placement(placement, None));
                self.sink.refuse(expr.span, messages::which_axis(&what, &self.mesh.list()))
            }
        }
    }

    /// Notes that shards over `inner` are parts of shards over `outer`; `None` after a report.
    pub(super) fn nest(&mut self, outer: usize, inner: usize, span: Span) -> Option<()> {
        let consistent = self.mesh.nest(outer, inner);
        if !consistent {
            let [outer, inner] = [outer, inner].map(|axis| self.mesh.axes[axis]);
            self.sink.push(span, messages::nested_otherwise(outer, inner));
        }
        consistent.then_some(())
    }

    /// A type as the source would write it.
    pub(super) fn show(&self, ty: &Ty) -> String {
        let placement = self.mesh.show_all(&ty.placement);
        format!("{}{} @ {placement}", ty.dtype, self.show_dims(&ty.dims))
    }

    /// A shape as the source would write it: `[M, K]`.
    pub(super) fn show_dims(&self, dims: &[Term]) -> String {
        let dims: Vec<String> = dims.iter().map(|&dim| self.dims.show(dim)).collect();
        format!("[{}]", dims.join(", "))
    }
}
