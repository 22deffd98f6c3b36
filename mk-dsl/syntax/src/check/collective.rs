//! `gather`, `reduce_scatter`, `all_reduce`, `all_to_all`: they change the placement over one mesh axis.

use super::checker::{Call, Checker, Value};
use crate::ast::Word;
use crate::messages;
use crate::program::{AxisId, Op, Placement};

/// The other axes over which a dimension is sharded.
fn sharing(x: &Value, axis: usize, dim: usize) -> Vec<usize> {
    let placement = x.ty.placement.iter().enumerate();
    let others = placement.filter(|(other, p)| *other != axis && **p == Placement::Shard(dim));
    others.map(|(other, _)| other).collect()
}

impl<'a> Checker<'a, '_> {
    /// `Shard(d) -> Replicate`. Factors of rows go with their rows.
    pub(super) fn gather(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let axis = call.args.axis(self.sink);
        call.args.finish(self.sink);
        let axis = self.named_axis(axis?)?;
        let mut input = call.input?;
        let is_sharded = |p: Placement| matches!(p, Placement::Shard(_));
        let Some(axis) = self.choose_axis(call.op, axis, &input, is_sharded)? else {
            if input.ty.placement.iter().any(|p| matches!(p, Placement::Zigzag(_))) {
                let text = messages::zigzag_elsewhere("gather", &input.label);
                return self.sink.refuse(call.op.span, text);
            }
            let is_partial = input.ty.placement.contains(&Placement::Partial);
            let found = self.mesh.show_all(&input.ty.placement);
            let text = messages::gather_of(&input.label, &found, is_partial);
            return self.sink.refuse(call.op.span, text);
        };
        let Placement::Shard(dim) = input.ty.placement[axis] else {
            return None;
        };
        self.innermost(call.op, &input, axis, dim)?;
        let scales = input.scales.map(|(id, of)| (id, of, self.scales_ty(&input.ty, of)));
        input.ty.placement[axis] = Placement::Replicate;
        input.gathered[axis] = true;
        let op = Op::Gather { axis: AxisId::new(axis), dim };
        let value = self.push(op, vec![input.id], input.ty, input.gathered.clone());
        let scales = scales.map(|(id, of, mut ty)| match ty.placement[axis] {
            Placement::Shard(dim) => {
                ty.placement[axis] = Placement::Replicate;
                let op = Op::Gather { axis: AxisId::new(axis), dim };
                (self.push(op, vec![id], ty, input.gathered.clone()).id, of)
            }
            // All ranks have those of rows that they share.
            _ => (id, of),
        });
        Some(self.keep_scales(value, scales))
    }

    /// `Partial -> Shard(dim)`, `dim` being 0 unless given.
    pub(super) fn reduce_scatter(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let axis = call.args.axis(self.sink);
        let dim = call.args.key_int("dim", self.sink);
        call.args.finish(self.sink);
        let (axis, dim) = (self.named_axis(axis?)?, dim?);
        let mut input = call.input?;
        let n_dims = input.ty.dims.len();
        let (value, at) = dim.map_or((0, call.op.span), |d| (d.value, d.span));
        let dim = usize::try_from(value).ok().filter(|&dim| dim < n_dims);
        if dim.is_none() {
            self.sink.push(at, messages::shard_out_of_range(value, n_dims));
        }
        let axis = self.partial_axis(call.op, axis, &input)?;
        let dim = dim?;
        for outer in sharing(&input, axis, dim) {
            self.nest(outer, axis, at)?;
        }
        input.ty.placement[axis] = Placement::Shard(dim);
        let op = Op::ReduceScatter { axis: AxisId::new(axis), dim };
        Some(self.push(op, vec![input.id], input.ty, input.gathered))
    }

    /// `Partial -> Replicate`.
    pub(super) fn all_reduce(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let axis = call.args.axis(self.sink);
        call.args.finish(self.sink);
        let axis = self.named_axis(axis?)?;
        let mut input = call.input?;
        let axis = self.partial_axis(call.op, axis, &input)?;
        input.ty.placement[axis] = Placement::Replicate;
        let op = Op::AllReduce { axis: AxisId::new(axis) };
        Some(self.push(op, vec![input.id], input.ty, input.gathered))
    }

    /// `Shard(concat) -> Shard(split)`.
    pub(super) fn all_to_all(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let axis = call.args.axis(self.sink);
        let [split, concat] = ["split", "concat"].map(|key| call.args.key_int(key, self.sink));
        call.args.finish(self.sink);
        let (axis, split, concat) = (self.named_axis(axis?)?, split?, concat?);
        let (Some(split), Some(concat)) = (split, concat) else {
            return self.sink.refuse(call.op.span, messages::all_to_all_dims());
        };
        let mut input = call.input?;
        let n_dims = input.ty.dims.len();
        let dims = [split, concat].map(|n| {
            let dim = usize::try_from(n.value).ok().filter(|&dim| dim < n_dims);
            if dim.is_none() {
                self.sink.push(n.span, messages::shard_out_of_range(n.value, n_dims));
            }
            dim
        });
        let [Some(to), Some(from)] = dims else { return None };
        if to == from {
            return self.sink.refuse(split.span, messages::all_to_all_same(to));
        }
        let is_sharded = |p: Placement| p == Placement::Shard(from);
        let Some(axis) = self.choose_axis(call.op, axis, &input, is_sharded)? else {
            let found = self.mesh.show_all(&input.ty.placement);
            let text = messages::all_to_all_of(&input.label, &found, from);
            return self.sink.refuse(call.op.span, text);
        };
        self.innermost(call.op, &input, axis, from)?;
        for outer in sharing(&input, axis, to) {
            self.nest(outer, axis, split.span)?;
        }
        input.ty.placement[axis] = Placement::Shard(to);
        let op = Op::AllToAll { axis: AxisId::new(axis), split: to, concat: from };
        Some(self.push(op, vec![input.id], input.ty, input.gathered))
    }

    /// Whether an axis is the inner one of those that share a dimension, which is about to be whole; `None` after a
    /// report.
    fn innermost(&mut self, op: Word<'a>, input: &Value, axis: usize, dim: usize) -> Option<()> {
        for inner in sharing(input, axis, dim) {
            if !self.mesh.nest(inner, axis) {
                let [outer, inner] = [axis, inner].map(|axis| self.mesh.axes[axis]);
                return self.sink.refuse(op.span, messages::gather_of_outer(outer, inner, dim));
            }
        }
        Some(())
    }

    /// The outer `None` is a mistake.
    fn named_axis(&mut self, word: Option<Word<'a>>) -> Option<Option<usize>> {
        match word {
            Some(word) => self.mesh.find(word, self.sink).map(Some),
            None => Some(None),
        }
    }

    /// The axis named if its placement is wanted, or the one axis whose placement is. The
    /// outer `None` is a mistake that was reported; the inner one is to be.
    pub(super) fn choose_axis(
        &mut self,
        op: Word<'a>,
        named: Option<usize>,
        input: &Value,
        is_wanted: impl Fn(Placement) -> bool,
    ) -> Option<Option<usize>> {
        let placements = input.ty.placement.iter().enumerate();
        let mut axes = placements
            .filter(|(axis, p)| is_wanted(**p) && named.is_none_or(|named| named == *axis))
            .map(|(axis, _)| axis);
        let axis = axes.next();
        if axes.next().is_some() {
            let what = format!("`{}`", op.text);
            return self.sink.refuse(op.span, messages::which_axis(&what, &self.mesh.list()));
        }
        Some(axis)
    }

    fn partial_axis(&mut self, op: Word<'a>, named: Option<usize>, input: &Value) -> Option<usize> {
        let axis = self.choose_axis(op, named, input, |p| p == Placement::Partial)?;
        if axis.is_none() {
            let found = self.mesh.show_all(&input.ty.placement);
            self.sink.push(op.span, messages::reduce_of(op.text, &input.label, &found));
        }
        axis
    }
}
