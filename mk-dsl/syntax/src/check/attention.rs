//! `ring(k, v)`, `attention(q, k, v)` and `lse`.
//!
//! `ring` makes no node of its own: it says where the keys and values of the `attention` behind it come from.

use super::checker::{Call, Checker, Id, Ring, Shape, Ty, Value, Wanted};
use super::dims::{Resolved, Term};
use crate::ast::{Operand, Word};
use crate::messages;
use crate::program::{AxisId, DType, Op, Placement, Scores, turned};
use crate::span::Span;

/// What later versions will know.
const LATER: [&str; 2] = ["bias", "dropout"];

pub(super) fn along_sequence(p: Placement) -> bool {
    matches!(p, Placement::Shard(1) | Placement::Zigzag(1))
}

impl<'a> Checker<'a, '_> {
    /// `k -> ring(v)`.
    pub(super) fn ring(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let second = call.args.operand(self.sink);
        // What names no tensor names the axis.
        let third = match call.args.next_name() {
            Some(word) if self.is_axis(word) => None,
            Some(_) => Some(call.args.operand(self.sink)?),
            None => None,
        };
        let axis = call.args.axis(self.sink);
        call.args.finish(self.sink);
        let (second, axis) = (second?, axis?);
        let named = match axis {
            Some(word) => Some(self.mesh.find(word, self.sink)?),
            None => None,
        };
        let mut keys = self.input_of(call.input, [second].into_iter().chain(third))?;
        let values = self.value(second, keys.ty.wanted())?;
        let n_before = self.sink.len();
        let Some(axis) = self.choose_axis(call.op, named, &keys, along_sequence)? else {
            let found = self.mesh.show_all(&keys.ty.placement);
            return self.sink.refuse(call.op.span, messages::ring_of(&keys.label, &found));
        };
        if values.ty.placement != keys.ty.placement {
            let show = |v: &Value| self.mesh.show_all(&v.ty.placement);
            let (want, found) = (show(&keys), show(&values));
            let text = messages::ring_pair(&want, &values.label, &found);
            self.sink.push(second.word.span, text);
        }
        let stats = match third {
            Some(third) => Some(self.stats(third, &keys, call.op.span)?),
            None => None,
        };
        self.sink.fine_since(n_before)?;
        keys.ring = Some(Box::new(Ring { axis, values, stats, span: call.op.span }));
        Some(keys)
    }

    /// Whether a name is a mesh axis, and no tensor.
    fn is_axis(&self, word: Word<'_>) -> bool {
        self.mesh.axes.contains(&word.text) && !self.names.contains_key(word.text)
    }

    /// `q -> attention(k, v)`, or `attention(q)` behind `ring`.
    pub(super) fn attention(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let op = call.op.span;
        let n_before = self.sink.len();
        for key in call.args.keys() {
            if LATER.contains(&key.text) {
                self.sink.push(key.span, messages::attention_later(key.text));
            }
        }
        self.sink.fine_since(n_before)?;
        let scores = self.scores(&mut call);
        let packed = call.args.key_operand("cu_seqlens", self.sink)?;
        let sinks = call.args.key_operand("sinks", self.sink)?;
        let mut input = self.input_or_touch(&mut call)?;
        let ring = self.ring_of(&mut input, false)?;
        let first = call.args.operand(self.sink);
        let second = if ring.is_none() { Some(call.args.operand(self.sink)) } else { None };
        call.args.finish(self.sink);
        let mut scores = scores?;
        let (q, k, v, at) = match ring {
            Some(ring) => {
                let operand = first?;
                // The heads of queries are a multiple of those of keys.
                self.four(&input, op)?;
                let q = self.queries_of(operand, &input)?;
                (q, input, ring.values.clone(), Some((ring.axis, operand.word.span)))
            }
            None => {
                let [k, v] = self.keys_of([first?, second??], &input, op)?;
                (input, k, v, None)
            }
        };
        let place = at.map_or(op, |r| r.1);
        let axis = at.map(|(axis, _)| axis);
        self.heads_fit([&q, &k, &v], axis, [op, place])?;
        let mut inputs = vec![q.id, k.id, v.id];
        if let Some(sinks) = sinks {
            inputs.push(self.sinks(sinks, &q)?);
            scores.sinks = true;
        }
        if let Some(cu) = packed {
            inputs.push(self.packed(cu, [&q, &k], &mut scores)?);
        }
        let op = Op::Attention { scores, ring: axis.map(AxisId::new) };
        let ty = wide_as(&q.ty, &v.ty);
        Some(self.push(op, inputs, ty, q.gathered))
    }

    /// One number for each head of queries, with those of which it lies.
    fn sinks(&mut self, operand: Operand<'a>, q: &Value) -> Option<Id> {
        let of = |p: &Placement| match p {
            Placement::Shard(2) => Placement::Shard(0),
            _ => Placement::Replicate,
        };
        let placement: Vec<_> = q.ty.placement.iter().map(of).collect();
        let ty = Ty { dtype: DType::F32, dims: vec![q.ty.dims[2]], placement };
        let sinks = self.value(operand, ty.wanted())?;
        if !self.has_type(&sinks, &ty) || !matches!(sinks.id, Id::Param(_)) {
            let [wanted, found] = [&ty, &sinks.ty].map(|ty| self.show(ty));
            return self
                .sink
                .refuse(operand.word.span, messages::sinks(&wanted, &sinks.label, &found));
        }
        Some(sinks.id)
    }

    /// Where the documents of packed sequences begin: one tensor for all batches, which all ranks have.
    pub(super) fn packed(
        &mut self,
        operand: Operand<'a>,
        [q, k]: [&Value; 2],
        scores: &mut Scores,
    ) -> Option<Id> {
        let at = operand.word.span;
        let placement = vec![Placement::Replicate; q.ty.placement.len()];
        let wanted = Wanted { dtype: DType::I32, shape: Shape::Fresh(1), placement };
        let cu = self.value(operand, wanted)?;
        let n_before = self.sink.len();
        let whole = cu.ty.placement.iter().all(|p| *p == Placement::Replicate);
        let given = matches!(cu.id, Id::Param(_));
        if cu.ty.dtype != DType::I32 || cu.ty.dims.len() != 1 || !whole || !given {
            let found = self.show(&cu.ty);
            self.sink.push(at, messages::packed_documents(&cu.label, &found));
        }
        let [s, t] = [q, k].map(|x| x.ty.dims[1]);
        self.fit([s, t], at, messages::packed_lengths);
        scores.packed = true;
        (self.sink.len() == n_before).then_some(cu.id)
    }

    /// The words behind the operands.
    pub(super) fn scores(&mut self, call: &mut Call<'_, 'a>) -> Option<Scores> {
        let causal = call.args.flag("causal");
        let of = |key: &str| call.args.keys().find(|k| k.text == key).map(|k| k.span);
        let places = ["window", "softcap"].map(of);
        let mut number = |key: &str| call.args.key_number(key, self.sink);
        let (window, softcap, scale) = (number("window"), number("softcap"), number("scale"));
        let (window, softcap, scale) = (window?, softcap?, scale?);
        let n_before = self.sink.len();
        let at = |place: Option<Span>| place.unwrap_or(call.op.span);
        let keys = window.map(|n| (n, n as u32));
        if let Some((n, keys)) = keys {
            if keys < 1 || f64::from(keys) != n || keys > i32::MAX as u32 {
                self.sink.push(at(places[0]), messages::attention_window(n));
            } else if !causal {
                self.sink.push(at(places[0]), messages::attention_window_causal());
            }
        }
        if let Some(cap) = softcap.filter(|c| !(*c > 0.0 && (*c as f32).is_normal())) {
            self.sink.push(at(places[1]), messages::attention_softcap(cap));
        }
        let window = keys.map(|(_, keys)| keys);
        let scores = Scores { causal, window, softcap, scale, packed: false, sinks: false };
        (self.sink.len() == n_before).then_some(scores)
    }

    /// What a stage reads first; where that has a mistake, its operands are resolved for theirs.
    pub(super) fn input_or_touch(&mut self, call: &mut Call<'_, 'a>) -> Option<Value> {
        let input = call.input.take();
        if input.is_none() {
            while let Some(operand) = call.args.optional_operand() {
                self.touch(operand);
            }
        }
        input
    }

    /// What `ring` passes on to a stage, that takes statistics of queries or does not. The outer `None` is a mistake.
    pub(super) fn ring_of(
        &mut self,
        input: &mut Value,
        takes_stats: bool,
    ) -> Option<Option<Box<Ring>>> {
        let ring = input.ring.take();
        if let Some(ring) = &ring
            && ring.stats.is_some() != takes_stats
        {
            return self.sink.refuse(ring.span, messages::ring_parts(takes_stats));
        }
        Some(ring)
    }

    pub(super) fn four(&mut self, x: &Value, at: Span) -> Option<[Term; 4]> {
        let dims = <[_; 4]>::try_from(x.ty.dims.as_slice()).ok();
        if dims.is_none() {
            let shape = self.show_dims(&x.ty.dims);
            self.sink.push(at, messages::attention_rank(&x.label, &shape));
        }
        dims
    }

    /// Checks queries, keys and values; over `ring` keys and values come from everywhere, or queries do. Mistakes are
    /// of the stage, or of an operand.
    pub(super) fn heads_fit(
        &mut self,
        [q, k, v]: [&Value; 3],
        ring: Option<usize>,
        [op, at]: [Span; 2],
    ) -> Option<()> {
        let n_before = self.sink.len();
        let [b, s, _, d] = self.four(q, at)?;
        let keys = self.four(k, op)?;
        let values = self.four(v, op)?;
        for x in [q, k, v] {
            if x.ty.dtype == DType::F32 || x.ty.dtype.is_storage() {
                self.sink.push(at, messages::product_dtype("attention", &x.label, x.ty.dtype));
            } else if x.ty.dtype != q.ty.dtype && q.ty.dtype != DType::F32 {
                let text = messages::dtype_mismatch("attention", q.ty.dtype, &x.label, x.ty.dtype);
                self.sink.push(at, text);
            }
        }
        let names = ["a batch of", "a sequence of", "heads of keys", "heads of"];
        // What a ring passes on is as long as what it meets.
        let long = if ring.is_some() { s } else { keys[1] };
        let pairs = [(b, keys[0]), (long, keys[1]), (keys[2], keys[2]), (d, keys[3])];
        // Heads of values may have other elements.
        let of_values = keys[..3].iter().zip(&values).map(|(want, found)| (*want, *found));
        let all = pairs.into_iter().zip(names).map(|p| (p, k));
        for (((want, found), what), x) in all.chain(of_values.zip(names).map(|p| (p, v))) {
            self.fit([want, found], at, |want, found| {
                messages::attention_dim(what, want, &x.label, found)
            });
        }
        let of_values = match self.dims.resolve(values[3]) {
            Resolved::Lit(depth) => Some(depth),
            _ => None,
        };
        if let Resolved::Lit(depth) = self.dims.resolve(d) {
            let alike = of_values.is_none_or(|n| n == depth);
            let fine = matches!(depth, 64 | 128 | 192 | 256) && alike;
            if !fine && (depth, of_values) != (192, Some(128)) {
                let text = match of_values.filter(|_| !alike) {
                    Some(values) => messages::attention_depths(depth, values),
                    None => messages::attention_depth(depth),
                };
                self.sink.push(at, text);
            }
        }
        for axis in 0..q.ty.placement.len() {
            self.attends_over(axis, q, k, v, ring, at);
        }
        (self.sink.len() == n_before).then_some(())
    }

    /// Checks the placements over one axis.
    fn attends_over(
        &mut self,
        axis: usize,
        q: &Value,
        k: &Value,
        v: &Value,
        ring: Option<usize>,
        at: Span,
    ) {
        let of = |x: &Value| x.ty.placement[axis];
        let queries = of(q);
        let fine = match queries {
            Placement::Replicate | Placement::Shard(0 | 2) => true,
            p => along_sequence(p),
        };
        let shown = self.mesh.show(queries, axis);
        if !fine {
            self.sink.push(at, messages::attention_queries(&q.label, &shown));
            return;
        }
        let wanted = if ring == Some(axis) { of(k) } else { beside(queries) };
        if ring == Some(axis) && queries != of(k) {
            let want = self.mesh.show(of(k), axis);
            self.sink.push(at, messages::ring_queries(&want, &q.label, &shown));
            return;
        }
        for x in [k, v] {
            if of(x) != wanted {
                let (want, found) = (self.mesh.show(wanted, axis), self.mesh.show(of(x), axis));
                let text = messages::attention_placement(&shown, &x.label, &want, &found);
                self.sink.push(at, text);
            }
        }
    }

    /// `o -> lse`: `[B, S, H, D]` to `f32[B, H, S]`.
    pub(super) fn lse(&mut self, call: Call<'_, 'a>) -> Option<Value> {
        call.args.finish(self.sink);
        let o = call.input?;
        let is_attention = match o.id {
            Id::Node(i) => matches!(self.nodes[i].op, Op::Attention { .. }),
            Id::Param(_) => false,
        };
        let Ok([b, s, h, _]) = <[_; 4]>::try_from(o.ty.dims.as_slice()) else {
            return self.sink.refuse(call.op.span, messages::lse_of(&o.label));
        };
        if !is_attention {
            return self.sink.refuse(call.op.span, messages::lse_of(&o.label));
        }
        let placement = turned(&o.ty.placement);
        let ty = Ty { dtype: DType::F32, dims: vec![b, h, s], placement };
        Some(self.push(Op::Lse, vec![o.id], ty, o.gathered))
    }
}

/// Queries, or keys, with heads as wide as those of values.
pub(super) fn wide_as(of: &Ty, values: &Ty) -> Ty {
    let mut ty = of.clone();
    if let (Some(own), Some(wide)) = (ty.dims.last_mut(), values.dims.last()) {
        *own = *wide;
    }
    ty
}

/// The placement of keys and values that every rank has what its queries need of, without a ring.
pub(super) fn beside(queries: Placement) -> Placement {
    if along_sequence(queries) { Placement::Replicate } else { queries }
}
