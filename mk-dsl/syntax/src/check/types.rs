//! Written types: dtype, dimensions, placements.

use super::checker::{Checker, Id, Param, State, Ty};
use super::dims::{Resolved, Term};
use crate::ast::{DimExpr, PlacementExpr, PlacementKind, ScalesExpr, Signature, Type, Word};
use crate::messages;
use crate::program::MAX_DIMS;
use crate::program::{DType, MAX_DIM, Placement};
use crate::suggest::nearest;

/// A written type; no placement if none is written.
pub(super) struct Written {
    pub dtype: DType,
    pub dims: Vec<Term>,
    pub placement: Option<Vec<Placement>>,
    /// Whether each row has a factor.
    pub scaled: bool,
}

impl Ty {
    /// That of the factors of its rows.
    pub(super) fn scales(&self) -> Ty {
        let placement = self.placement.iter().map(|p| match p {
            Placement::Shard(0) => Placement::Shard(0),
            _ => Placement::Replicate,
        });
        let dims = self.dims.first().copied().into_iter().collect();
        Ty { dtype: DType::F32, dims, placement: placement.collect() }
    }
}

impl<'a> Checker<'a, '_> {
    pub(super) fn signature(&mut self, signature: &Signature<'a>) {
        self.runtime_symbols(signature);
        for param in &signature.params {
            let dtype_span = param.ty.as_ref().map_or(param.name.span, |ty| ty.dtype.span);
            let written = param.ty.as_ref().and_then(|ty| self.written(ty));
            let scaled = written.as_ref().is_some_and(|w| w.scaled);
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
                State::Known(ty) => State::Known(ty.scales()),
                State::Open { .. } => State::Open { dtype: None, dims: None },
                State::Broken => State::Broken,
            };
            let (name, scales) = (param.name, scaled.then_some(i + 1));
            self.params.push(Param { name, suffix: "", dtype_span, state, scales });
            self.define(name, Some(Id::Param(i)));
            if scaled {
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
        for dim in 0..ty.dims.len() {
            if ty.placement.iter().filter(|p| p.cut() == Some(dim)).count() > 1 {
                self.sink.push(name.span, messages::dim_sharded_twice(dim));
            }
        }
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
            self.sink.push(ty.dims_span, messages::too_many_dims());
            return None;
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
        let scaled = ty.scales.as_ref().is_some_and(|s| self.scales(s, dtype, &dims, &placement));
        let is_sound = self.sink.len() == n_before;
        Some(Written { dtype: dtype?, dims, placement, scaled }).filter(|_| is_sound)
    }

    /// Reads `scaled(1, K)` of a matrix of eight bits, whose K that is; reports other blocks.
    fn scales(
        &mut self,
        scales: &ScalesExpr<'a>,
        dtype: Option<DType>,
        dims: &[Term],
        placement: &Option<Vec<Placement>>,
    ) -> bool {
        let own = |dim: &DimExpr<'a>| match dim {
            DimExpr::Sym(word) => self.dims.sym(word.text),
            DimExpr::Lit(number) => self.dims.lit(number.value),
        };
        let block: Vec<_> = scales.block.iter().map(own).collect();
        let &[rows, columns] = block.as_slice() else {
            self.sink.push(scales.span, messages::scales_of_rows());
            return false;
        };
        let by_rows = matches!(self.dims.resolve(rows), Resolved::Lit(1));
        let whole = dims.len() == 2 && self.dims.unify(columns, dims[1]);
        if dtype.is_some_and(|d| !d.is_narrow()) {
            self.sink.push(scales.span, messages::scales_of_dtype(dtype));
        } else if !by_rows || !whole {
            self.sink.push(scales.span, messages::scales_of_rows());
        } else if placement.iter().flatten().any(|p| *p == Placement::Partial) {
            self.sink.push(scales.span, messages::scales_of_partial());
        }
        true
    }

    /// One placement for each axis; `None` if none is written.
    fn placement(
        &mut self,
        written: &[PlacementExpr<'a>],
        n_dims: usize,
    ) -> Option<Vec<Placement>> {
        let mut axes: Vec<Option<Placement>> = vec![None; self.mesh.axes.len()];
        for expr in written {
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
            let is_taken = axes.iter().flatten().any(|p| p.cut() == placement.cut());
            match placement {
                _ if !is_first => {
                    self.sink.push(expr.span, messages::axis_twice(self.mesh.axes[axis]));
                }
                Placement::Shard(dim) | Placement::Zigzag(dim) if is_taken => {
                    self.sink.push(expr.span, messages::dim_sharded_twice(dim));
                }
                _ => {}
            }
            axes[axis] = Some(placement);
        }
        let axes = axes.into_iter().map(|p| p.unwrap_or(Placement::Replicate));
        (!written.is_empty()).then(|| axes.collect())
    }

    /// The axis of one written placement; none for a plain `replicate` on several axes.
    fn axis_of(&mut self, expr: &PlacementExpr<'a>, placement: Placement) -> Option<usize> {
        match expr.axis {
            Some(word) => self.mesh.find(word, self.sink),
            None if self.mesh.axes.len() == 1 => Some(0),
            None if placement == Placement::Replicate => None,
            None => {
                let what = format!("`{}`", crate::print::placement(placement, None));
                self.sink.push(expr.span, messages::which_axis(&what, &self.mesh.list()));
                None
            }
        }
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
