//! `attention_stats`, `attention_dq`, `attention_dk`, `attention_dv` and `attention_dsinks`: the backward of
//! `attention`.

use super::attention::{along_sequence, beside, wide_as};
use super::checker::{Call, Checker, Id, Ring, Shape, Ty, Value, Wanted};
use crate::ast::{ArgValue, Operand, Source, Stage, Word};
use crate::messages;
use crate::ops::{self, OpKind};
use crate::program::{AxisId, DType, Op, Placement, turned};
use crate::span::Span;
use std::collections::BTreeSet;

/// Numbers of a query's statistics.
const STATS: u64 = 4;

/// Names that stages read which take logarithms or statistics.
pub(super) fn statistics<'a>(source: &Source<'a>) -> BTreeSet<&'a str> {
    let chains = source.body.lets.iter().map(|l| &l.chain).chain(&source.body.results);
    let stages = chains.flat_map(|chain| chain.stages.iter().flatten());
    let takes = |stage: &&Stage<'a>| {
        use OpKind::{AttentionDk, AttentionDq, AttentionStats, Ring};
        let kind = ops::find(stage.name.text).map(|op| op.kind);
        matches!(kind, Some(AttentionStats | AttentionDq | AttentionDk | Ring))
    };
    let names =
        stages.filter(takes).flat_map(|stage| &stage.args).filter_map(|arg| match arg.value {
            ArgValue::Name(operand) => Some(operand.word.text),
            _ => None,
        });
    names.collect()
}

impl<'a> Checker<'a, '_> {
    /// `o -> attention_stats(do, lse)`: `f32[B, H, S, 4]`.
    pub(super) fn attention_stats(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let o = self.input_or_touch(&mut call)?;
        let (d_o, lse) = (call.args.operand(self.sink), call.args.operand(self.sink));
        call.args.finish(self.sink);
        let at = call.op.span;
        let [b, s, h, _] = self.four(&o, at)?;
        self.queries_fit(&o, at)?;
        let d_o = self.alike(d_o?, &o, call.op)?;
        let placement = turned(&o.ty.placement);
        let lse_ty = Ty { dtype: DType::F32, dims: vec![b, h, s], placement: placement.clone() };
        let lse = self.typed(lse?, lse_ty, call.op)?;
        let dims = vec![b, h, s, self.dims.lit(STATS)];
        let ty = Ty { dtype: DType::F32, dims, placement };
        Some(self.push(Op::AttentionStats, vec![o.id, d_o.id, lse.id], ty, o.gathered))
    }

    /// `q -> attention_dq(do, stats, k, v)`, or `attention_dq(q, do, stats)` behind `ring(k, v)`.
    pub(super) fn attention_dq(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op;
        let mut scores = self.scores(&mut call)?;
        let packed = call.args.key_operand("cu_seqlens", self.sink)?;
        let mut input = self.input_or_touch(&mut call)?;
        let ring = self.ring_of(&mut input, false)?;
        let mut operand = |checker: &mut Self| call.args.operand(checker.sink);
        let (q, d_o, stats, k, v, axis) = match ring {
            Some(ring) => {
                let [q, d_o, stats] = [operand(self)?, operand(self)?, operand(self)?];
                let q = self.queries_of(q, &input)?;
                (q, d_o, stats, input, ring.values, Some(ring.axis))
            }
            None => {
                let [d_o, stats, k, v] =
                    [operand(self)?, operand(self)?, operand(self)?, operand(self)?];
                let [k, v] = self.keys_of([k, v], &input, op.span)?;
                (input, d_o, stats, k, v, None)
            }
        };
        call.args.finish(self.sink);
        self.heads_fit([&q, &k, &v], axis, [op.span, op.span])?;
        let d_o = self.typed(d_o, wide_as(&q.ty, &v.ty), op)?;
        let stats = self.stats(stats, &q, op.span)?;
        let mut inputs = vec![q.id, d_o.id, stats.id, k.id, v.id];
        if let Some(cu) = packed {
            inputs.push(self.packed(cu, [&q, &k], &mut scores)?);
        }
        let made = Op::AttentionDq { scores, ring: axis.map(AxisId::new) };
        Some(self.push(made, inputs, q.ty, q.gathered))
    }

    /// `k -> attention_dk(v, q, do, stats)`, or `attention_dk(k, v)` behind `ring(q, do, stats)`.
    pub(super) fn attention_dk(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op;
        let mut scores = self.scores(&mut call)?;
        let packed = call.args.key_operand("cu_seqlens", self.sink)?;
        let mut input = self.input_or_touch(&mut call)?;
        let ring = self.ring_of(&mut input, true)?;
        let mut operand = |checker: &mut Self| call.args.operand(checker.sink);
        let (q, d_o, stats, k, v, axis) = match ring.map(|ring| *ring) {
            Some(Ring { axis, values, stats: Some(stats), .. }) => {
                let [k, v] = [operand(self)?, operand(self)?];
                let k = self.queries_of(k, &input)?;
                let v = self.values_of(v, &k, op)?;
                (input, values, stats, k, v, Some(axis))
            }
            _ => {
                let [v, q, d_o, stats] =
                    [operand(self)?, operand(self)?, operand(self)?, operand(self)?];
                let v = self.values_of(v, &input, op)?;
                let q = self.queries_of(q, &input)?;
                let d_o = self.typed(d_o, wide_as(&q.ty, &v.ty), op)?;
                let stats = self.stats(stats, &q, op.span)?;
                (q, d_o, stats, input, v, None)
            }
        };
        call.args.finish(self.sink);
        self.heads_fit([&q, &k, &v], axis, [op.span, op.span])?;
        if axis.is_some() {
            self.is_like(&d_o, &wide_as(&q.ty, &v.ty), op)?;
        }
        // Of keys that all ranks have, each rank adds what its queries give.
        let of_axis = |(i, p): (usize, &Placement)| match q.ty.placement.get(i) {
            Some(queries) if Some(i) != axis && along_sequence(*queries) => Placement::Partial,
            _ => *p,
        };
        let placement = k.ty.placement.iter().enumerate().map(of_axis).collect();
        let keys = k.clone();
        let ty = Ty { placement, ..k.ty };
        let mut inputs = vec![k.id, v.id, q.id, d_o.id, stats.id];
        if let Some(cu) = packed {
            inputs.push(self.packed(cu, [&q, &keys], &mut scores)?);
        }
        let made = Op::AttentionDk { scores, ring: axis.map(AxisId::new) };
        Some(self.push(made, inputs, ty, k.gathered))
    }

    /// `dk -> attention_dv`.
    pub(super) fn attention_dv(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        call.args.finish(self.sink);
        let dk = call.input?;
        let of = match dk.id {
            Id::Node(i) if matches!(self.nodes[i].op, Op::AttentionDk { .. }) => {
                self.nodes[i].inputs.get(1).copied()
            }
            _ => None,
        };
        let Some(ty) = of.and_then(|id| Some(wide_as(&dk.ty, self.known(id)?))) else {
            return self.sink.refuse(call.op.span, messages::attention_dv_of(&dk.label));
        };
        Some(self.push(Op::AttentionDv, vec![dk.id], ty, dk.gathered))
    }

    /// `stats -> attention_dsinks(s)`: `f32[1, H]`, of which each rank has what its queries give.
    pub(super) fn attention_dsinks(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op;
        let input = self.input_or_touch(&mut call)?;
        let sinks = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let [b, h, s, _] = self.four(&input, op.span)?;
        let four = Ty { dims: vec![b, h, s, self.dims.lit(STATS)], ..input.ty.clone() };
        self.is_like(&input, &Ty { dtype: DType::F32, ..four }, op)?;
        // Along an axis: of heads, of whole sequences, and of parts of them.
        let placed = |heads, other| {
            let of = |p: &Placement| match p {
                Placement::Shard(1) => heads,
                Placement::Replicate => Placement::Replicate,
                _ => other,
            };
            input.ty.placement.iter().map(of).collect::<Vec<_>>()
        };
        let placement = placed(Placement::Shard(0), Placement::Replicate);
        let ty = Ty { dtype: DType::F32, dims: vec![h], placement };
        let sinks = self.typed(sinks?, ty.clone(), op)?;
        let placement = placed(Placement::Shard(1), Placement::Partial);
        let ty = Ty { dims: vec![self.dims.lit(1), h], placement, ..ty };
        Some(self.push(Op::AttentionDsinks, vec![input.id, sinks.id], ty, input.gathered))
    }

    /// Queries beside keys, or keys beside queries: with other heads.
    pub(super) fn queries_of(&mut self, operand: Operand<'a>, beside: &Value) -> Option<Value> {
        let like = <[_; 4]>::try_from(beside.ty.dims.as_slice()).ok();
        let shape = like.map_or(Shape::Fresh(4), |like| Shape::Heads { like });
        let placement = beside.ty.placement.clone();
        self.value(operand, Wanted { dtype: beside.ty.dtype, shape, placement })
    }

    /// Values beside keys, of heads that may have other elements.
    fn values_of(&mut self, operand: Operand<'a>, keys: &Value, op: Word<'a>) -> Option<Value> {
        let values = self.value(operand, keys.ty.wanted())?;
        let ty = wide_as(&keys.ty, &values.ty);
        self.is_like(&values, &ty, Word { span: operand.word.span, ..op })?;
        Some(values)
    }

    /// Keys and values beside queries.
    pub(super) fn keys_of(
        &mut self,
        [k, v]: [Operand<'a>; 2],
        q: &Value,
        op: Span,
    ) -> Option<[Value; 2]> {
        let like = self.four(q, op)?;
        let placement: Vec<_> = q.ty.placement.iter().map(|p| beside(*p)).collect();
        let dtype = q.ty.dtype;
        let wanted = Wanted { dtype, shape: Shape::Heads { like }, placement: placement.clone() };
        let k = self.value(k, wanted)?;
        let shape = Shape::Like(k.ty.dims.clone());
        let v = self.value(v, Wanted { dtype, shape, placement })?;
        Some([k, v])
    }

    /// Statistics of these queries.
    pub(super) fn stats(&mut self, operand: Operand<'a>, q: &Value, at: Span) -> Option<Value> {
        let [b, s, h, _] = self.four(q, at)?;
        let dims = vec![b, h, s, self.dims.lit(STATS)];
        let ty = Ty { dtype: DType::F32, dims, placement: turned(&q.ty.placement) };
        self.typed(operand, ty, Word { span: at, text: "attention" })
    }

    /// An operand of the type of another one.
    fn alike(&mut self, operand: Operand<'a>, other: &Value, op: Word<'a>) -> Option<Value> {
        self.typed(operand, other.ty.clone(), op)
    }

    fn typed(&mut self, operand: Operand<'a>, ty: Ty, op: Word<'a>) -> Option<Value> {
        let value = self.value(operand, ty.wanted())?;
        self.is_like(&value, &ty, Word { span: operand.word.span, ..op })?;
        Some(value)
    }

    /// Checks a value's type; mistakes are at the word.
    fn is_like(&mut self, value: &Value, ty: &Ty, op: Word<'_>) -> Option<()> {
        if self.has_type(value, ty) {
            return Some(());
        }
        let (wanted, found) = (self.show(ty), self.show(&value.ty));
        let text = messages::attention_operand(op.text, &value.label, &wanted, &found);
        self.sink.refuse(op.span, text)
    }

    /// Queries are whole, or cut where attention may cut them.
    fn queries_fit(&mut self, o: &Value, at: Span) -> Option<()> {
        for (axis, p) in o.ty.placement.iter().enumerate() {
            let fine = matches!(p, Placement::Replicate | Placement::Shard(0 | 2));
            if !fine && !along_sequence(*p) {
                let shown = self.mesh.show(*p, axis);
                return self.sink.refuse(at, messages::attention_queries(&o.label, &shown));
            }
        }
        Some(())
    }
}
