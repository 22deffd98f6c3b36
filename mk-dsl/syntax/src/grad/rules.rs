//! The rules, operation by operation.

mod experts;

use super::{
    draft::{Draft, Id},
    error::GradError,
    types::{Input, Keep, Saves},
};
use crate::excerpt::Excerpt;
use crate::program::{
    AxisId, Curve, DType, Def, Dim, Node, Op, Placement, Program, TensorType, ValueId,
};
use std::collections::BTreeMap;

/// The gradient of a parameter.
pub(super) struct Output {
    pub parameter: usize,
    pub value: Id,
    pub part: Part,
}

/// Which part of a value is a gradient.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// Its only row.
    Row,
    /// Of each expert's matrix a row, which are all alike.
    Rows,
}

/// A gradient that no other one is made of.
enum Behind {
    /// Of matrices `w`, which rows `x` of these experts are multiplied by: of gradients of their products.
    Matrices { w: ValueId, x: ValueId, ids: ValueId, d: Id },
    /// Of matrices `w`, by rows `y` that stand before the product which a `combine` has weights for, times these.
    Weighed { combine: ValueId, w: ValueId, y: Id, d: Id },
    /// Of vectors that are added to rows of these experts, of gradients of the sums.
    Vectors { vectors: ValueId, ids: ValueId, d: Id },
    /// Of the weights of a `combine`, of gradients of its tokens.
    Weights { combine: ValueId, d: Id },
    /// The same, of gradients of the rows `y` that stand before its product.
    Slots { combine: ValueId, y: Id, d: Id },
}

/// The walk from results to parameters.
pub(super) struct Walk<'p> {
    program: &'p Program,
    saves: Saves,
    /// By value: whether a gradient that is wanted depends on its gradient.
    needed: Vec<bool>,
    /// By value: its gradient so far.
    gradients: Vec<Option<Id>>,
    /// Values of forward, in the backward.
    here: BTreeMap<ValueId, Id>,
    ones: Vec<(TensorType, Id)>,
    pub draft: Draft,
    /// What forward saves, beside its results.
    pub saved: Vec<ValueId>,
    /// The parameters of the backward.
    pub given: Vec<(Id, Input)>,
    /// Sums over rows: matrices of one row.
    sums: Vec<Id>,
    /// Sums over rows of each expert: matrices of rows that are all alike.
    vectors: Vec<Id>,
    /// Gradients that take the data's way back for granted, and are made behind it.
    behind: Vec<Behind>,
}

impl<'p> Walk<'p> {
    pub fn new(program: &'p Program, wanted: &[usize], saves: Saves) -> Walk<'p> {
        let mut needed = vec![false; program.n_values()];
        for i in wanted {
            needed[*i] = true;
        }
        for node in program.nodes() {
            let depends = node.inputs.iter().any(|i| needed[i.index()]);
            needed[node.result.index()] = depends && !matches!(node.op, Op::Lse | Op::Dropped);
        }
        let taken = program.tensors().iter().map(|t| t.name.clone());
        let taken = taken.chain(program.symbols().iter().map(|s| s.name.clone())).collect();
        Walk {
            program,
            saves,
            needed,
            gradients: vec![None; program.n_values()],
            here: BTreeMap::new(),
            ones: Vec::new(),
            draft: Draft::new(taken),
            saved: Vec::new(),
            given: Vec::new(),
            sums: Vec::new(),
            vectors: Vec::new(),
            behind: Vec::new(),
        }
    }

    pub fn run(&mut self) -> Result<(), GradError> {
        let program = self.program;
        for (i, (id, name)) in program.results().iter().zip(program.result_names()).enumerate() {
            if !self.needed[id.index()] {
                continue;
            }
            let (placement, dtype) = (self.gradient_placement(*id), self.dtype(*id));
            let ty = self.type_of(*id, &placement, dtype);
            let d = self.draft.param(&format!("d_{name}"), ty, placement, dtype);
            self.given.push((d, Input::Gradient(i)));
            self.add(*id, d);
        }
        for node in program.nodes().iter().rev() {
            if let Some(d) =
                self.gradients[node.result.index()].filter(|_| self.needed[node.result.index()])
            {
                self.node(node, d)?;
            }
        }
        for behind in std::mem::take(&mut self.behind) {
            self.of_experts(behind)?;
        }
        Ok(())
    }

    /// The gradients of parameters, summed over the ranks where each has a part.
    pub fn outputs(&mut self, wanted: &[usize], into: &[usize]) -> Result<Vec<Output>, GradError> {
        let mut outputs = Vec::new();
        for &parameter in wanted {
            let id = ValueId::new(parameter);
            let Some(mut value) = self.gradients[parameter] else { continue };
            for (axis, placement) in self.placement(id).into_iter().enumerate() {
                if placement == Placement::Replicate {
                    value = self.whole_over(value, axis);
                }
            }
            let part = match () {
                () if self.sums.contains(&value) => Part::Row,
                () if self.vectors.contains(&value) => Part::Rows,
                () => Part::Whole,
            };
            if into.contains(&parameter) {
                value = self.added_to(parameter, value)?;
            }
            outputs.push(Output { parameter, value, part });
        }
        Ok(outputs)
    }

    /// The sum of a gradient and an f32 matrix.
    fn added_to(&mut self, parameter: usize, value: Id) -> Result<Id, GradError> {
        let sums = [&self.sums, &self.vectors];
        if sums.iter().any(|all| all.contains(&value)) || !self.draft.is_product(value) {
            return Err(GradError::NoProduct {
                name: self.program.tensors()[parameter].name.clone(),
            });
        }
        let id = ValueId::new(parameter);
        let (name, placement) = (&self.program.tensors()[parameter].name, self.placement(id));
        let ty = self.type_of(id, &placement, DType::F32);
        let main = self.draft.param(&format!("main_{name}"), ty, placement, DType::F32);
        self.given.push((main, Input::Main(parameter)));
        let held = (self.held(value).0, DType::F32);
        let wide = self.draft.op("cast", &[value], Some(DType::F32.name().into()), held.clone());
        Ok(self.draft.op("add", &[wide, main], None, held))
    }

    fn node(&mut self, node: &Node, d: Id) -> Result<(), GradError> {
        let input = |i: usize| node.inputs.get(i).copied().unwrap_or(node.result);
        let x = input(0);
        let wants =
            |walk: &Self, i: usize| node.inputs.get(i).is_some_and(|v| walk.needed[v.index()]);
        let held = self.held(d);
        let storage = |id: &ValueId| self.program.ty(*id).is_some_and(|t| t.dtype.is_storage());
        if node.inputs.iter().any(|x| self.needed[x.index()] && storage(x)) || storage(&node.result)
        {
            return Err(GradError::Operation {
                op: node.op.name(),
                why: "it takes or gives values of eight bits",
                help: "differentiate the part that computes in 16 bits",
            });
        }
        match node.op {
            Op::Gather { axis, dim } => {
                if held.0[axis.index()] != Placement::Partial {
                    return Err(GradError::Operation {
                        op: "gather",
                        why: "its gradient is the same on every rank, and no part of a sum",
                        help: "shard what reads the gathered value, or do not gather it",
                    });
                }
                let g = self.scattered(d, axis, dim);
                self.add(x, g);
            }
            Op::ReduceScatter { axis, .. } => {
                let held = self.placed(d, axis.index(), Placement::Replicate);
                let g = self.draft.op("gather", &[d], self.named(axis), held);
                self.add(x, g);
            }
            Op::AllToAll { axis, split, concat } => {
                let d = self.whole(d);
                let dims = format!("split = {concat}, concat = {split}");
                let words: Vec<String> = self.named(axis).into_iter().chain([dims]).collect();
                let held = self.placed(d, axis.index(), Placement::Shard(concat));
                let g = self.draft.op("all_to_all", &[d], Some(words.join(", ")), held);
                self.add(x, g);
            }
            Op::AllReduce { axis } => {
                let g = self.whole_over(d, axis.index());
                self.add(x, g);
            }
            Op::Gemm { a_transposed, b_transposed } => {
                self.gemm(node, d, (a_transposed, b_transposed))?
            }
            Op::Bias => {
                if wants(self, 0) {
                    self.add(x, d);
                }
                if wants(self, 1) {
                    match self.experts_of(node.result) {
                        Some(ids) => {
                            let vectors = Behind::Vectors { vectors: input(1), ids, d };
                            self.after_data(ids, vectors)?;
                        }
                        None => {
                            let sum = self.column_sum(node, d)?;
                            self.add(input(1), sum);
                        }
                    }
                }
            }
            Op::Curve(Curve::Relu) => {
                // The sign of its result is that of its input, and is often there for another reason.
                let at = if self.saves.activations == Keep::Saved { node.result } else { x };
                self.slope(x, Curve::Relu, d, at)?;
            }
            Op::Curve(curve) => self.slope(x, curve, d, x)?,
            Op::Swiglu => {
                let d = self.whole(d);
                let h = self.value(x)?;
                let wide = |p: Placement| match p {
                    Placement::Shard(1) => Placement::Shard(2),
                    p => p,
                };
                let placement = self.held(d).0.into_iter().map(wide).collect();
                let g = self.draft.op("swiglu_grad", &[d, h], None, (placement, held.1));
                self.add(x, g);
            }
            Op::RmsNorm { eps } => {
                let (x, d) = self.own_rows(x, d);
                let held = (self.held(d).0, held.1);
                let (eps, at) = (Some(format!("eps = {eps:?}")), self.value(x)?);
                let weight = node.inputs.get(1).copied();
                if wants(self, 0) {
                    let mut operands = vec![d, at];
                    if let Some(g) = weight {
                        operands.push(self.value(g)?);
                    }
                    let g = self.draft.op("rmsnorm_grad", &operands, eps.clone(), held.clone());
                    self.add(x, g);
                }
                if let Some(weight) = weight.filter(|_| wants(self, 1)) {
                    // Rows without the weight, times their gradients.
                    let plain = self.draft.op("rmsnorm", &[at], eps, held.clone());
                    let product = self.draft.op("mul", &[d, plain], None, held);
                    let sum = self.column_sum(node, product)?;
                    self.add(weight, sum);
                }
            }
            // The table has no gradient.
            Op::Rope { back: false } if wants(self, 0) => {
                if held.0.contains(&Placement::Partial) {
                    return Err(GradError::Operation {
                        op: "rope",
                        why: "its gradient is a sum over ranks that is not made",
                        help: "turn rows before they are gathered",
                    });
                }
                let table = self.value(input(1))?;
                let g = self.draft.op("rope_grad", &[d, table], None, held);
                self.add(x, g);
            }
            Op::Rope { back: false } => {}
            Op::Mul => {
                let y = input(1);
                if wants(self, 0) {
                    let factor = self.value(y)?;
                    let g = self.draft.op("mul", &[d, factor], None, held.clone());
                    self.add(x, g);
                }
                if wants(self, 1) {
                    let factor = self.value(x)?;
                    // Of contributions each rank's part of the sum.
                    let other = self.held(factor).0;
                    let operands = match other.contains(&Placement::Partial) {
                        true => [factor, d],
                        false => [d, factor],
                    };
                    let sum = |(own, other): (Placement, Placement)| match other {
                        Placement::Partial => other,
                        _ => own,
                    };
                    let placement = held.0.into_iter().zip(other).map(sum).collect();
                    let g = self.draft.op("mul", &operands, None, (placement, held.1));
                    self.add(y, g);
                }
            }
            Op::Add => {
                for i in 0..2 {
                    if wants(self, i) {
                        self.add(input(i), d);
                    }
                }
            }
            Op::View => {
                // The way back is a view that keeps what each rank has.
                let Some(ty) = self.program.ty(x) else { return Ok(()) };
                let to_heads = ty.dims.len() == 4;
                let alone = [&ty.dims, &node.ty.dims]
                    .into_iter()
                    .any(|dims| dims.len() == 4 && dims[0] == Dim::Lit(1));
                let moved = |p| crate::program::viewed(p, to_heads, alone).unwrap_or(p);
                let placement = held.0.into_iter().map(moved).collect();
                let detail = self.program.show_dims(&ty.dims);
                let g = self.draft.op("view", &[d], Some(detail), (placement, held.1));
                self.add(x, g);
            }
            Op::Scale(factor) => {
                let g = self.draft.op("scale", &[d], Some(format!("{factor:?}")), held);
                self.add(x, g);
            }
            Op::Cast(_) => {
                let to = self.dtype(x);
                let g = match to == held.1 {
                    true => d,
                    false => self.draft.op("cast", &[d], Some(to.name().into()), (held.0, to)),
                };
                self.add(x, g);
            }
            Op::Attention { .. } => self.attention(node, d)?,
            Op::Dequantize(_) | Op::Quantize(_) => {
                return Err(GradError::Operation {
                    op: node.op.name(),
                    why: "values of eight bits have no gradients",
                    help: "differentiate it in 16 bits; or write the gradient of the input as \
                           `dy -> quantize(e4m3, 1, 128) -> gemm(v.t)`, `v` being the weight stored the other way \
                           round, as layers of `mk.nn` do with fp8",
                });
            }
            // Of values of eight bits.
            Op::Factor(_) | Op::DispatchFactors => {}
            Op::GroupedGemm { .. } | Op::Dispatch { .. } | Op::Combine => self.experts(node, d)?,
            // Not differentiated: `needed` leaves it out.
            Op::Lse | Op::Dropped => {}
            Op::Slope(_)
            | Op::GroupedWgrad
            | Op::CombineGrad
            | Op::Weigh
            | Op::WeighGrad
            | Op::SwigluGrad
            | Op::RmsNormGrad { .. }
            | Op::Rope { back: true }
            | Op::AttentionStats
            | Op::AttentionDq { .. }
            | Op::AttentionDk { .. }
            | Op::AttentionDv
            | Op::AttentionDsinks => {
                return Err(GradError::Operation {
                    op: node.op.name(),
                    why: "it is a derivative itself",
                    help: "derive the first one only",
                });
            }
        }
        Ok(())
    }

    /// A value that is read row by row, and its gradient: of gathered rows that only the ranks' parts of the gradient
    /// are there of, the own ones.
    fn own_rows(&mut self, x: ValueId, d: Id) -> (ValueId, Id) {
        match self.program.def(x) {
            Some(Def::Node(Node { op: Op::Gather { dim: 0, axis }, inputs, .. }))
                if self.held(d).0[axis.index()] == Placement::Partial =>
            {
                let d = self.scattered(d, *axis, 0);
                (inputs[0], self.whole(d))
            }
            _ => (x, self.whole(d)),
        }
    }

    /// Backward of a curve: the gradient times its slope at a value.
    fn slope(&mut self, x: ValueId, curve: Curve, d: Id, at: ValueId) -> Result<(), GradError> {
        let at = self.value(at)?;
        let held = self.held(d);
        let g = self.draft.op(Op::Slope(curve).name(), &[d, at], None, held);
        self.add(x, g);
        Ok(())
    }

    /// Backward of `o = attention(q, k, v)`: from `o` and the logarithms of its sums, which forward saves.
    fn attention(&mut self, node: &Node, d: Id) -> Result<(), GradError> {
        let (Op::Attention { scores, ring }, [q, k, v, ..]) = (node.op, &node.inputs[..]) else {
            return Ok(());
        };
        let [q, k, v] = [q, k, v].map(|x| *x);
        let of_o = |n: &&Node| n.op == Op::Lse && n.inputs == [node.result];
        let Some(lse) = self.program.nodes().iter().find(of_o).map(|n| n.result) else {
            return Err(GradError::Operation {
                op: "attention",
                why: "the logarithms of its sums are not there",
                help: "let `o -> lse` be a result, too",
            });
        };
        let [o, lse] = [self.value(node.result)?, self.logarithms(lse)];
        let place = (self.held(lse).0, DType::F32);
        // Each rank has what its queries give.
        let of_heads = |p: &Placement| match p {
            Placement::Shard(1) | Placement::Replicate => *p,
            _ => Placement::Partial,
        };
        let of_sinks = (place.0.iter().map(of_heads).collect(), DType::F32);
        let stats = self.draft.op("attention_stats", &[o, d, lse], None, place);
        if let Some(sinks) = node.sinks().filter(|s| self.needed[s.index()]) {
            let own = self.value(sinks)?;
            let g = self.draft.op("attention_dsinks", &[stats, own], None, of_sinks);
            self.sums.push(g);
            self.add(sinks, g);
        }
        let detail = scores.words();
        let detail = (!detail.is_empty()).then(|| detail.join(", "));
        let [queries, keys, values] = [self.value(q)?, self.value(k)?, self.value(v)?];
        let of_queries = [queries, d, stats];
        let packed = node.documents().into_iter().map(|cu| self.value(cu));
        let packed = packed.collect::<Result<Vec<Id>, _>>()?;
        let typed = |walk: &Self, id: Id, p: Vec<Placement>| (p, walk.draft.values[id].dtype);
        if self.needed[q.index()] {
            let place = typed(self, queries, self.placement(q));
            let g = match ring.is_some() {
                true => {
                    let own = [&of_queries[..], &packed].concat();
                    self.draft.ring("attention_dq", &[keys, values], &own, detail.clone(), place)
                }
                false => {
                    let all = [&of_queries[..], &[keys, values], &packed].concat();
                    self.draft.op("attention_dq", &all, detail.clone(), place)
                }
            };
            self.add(q, g);
        }
        if !self.needed[k.index()] && !self.needed[v.index()] {
            return Ok(());
        }
        // Of keys that all ranks have, each rank has what its queries give.
        let over = |(axis, (q, k)): (usize, (Placement, Placement))| match q {
            Placement::Shard(1) | Placement::Zigzag(1) if ring != Some(AxisId::new(axis)) => {
                Placement::Partial
            }
            _ => k,
        };
        let both = self.placement(q).into_iter().zip(self.placement(k));
        let place = typed(self, keys, both.enumerate().map(over).collect());
        let dk = match ring.is_some() {
            true => {
                let own = [&[keys, values][..], &packed].concat();
                self.draft.ring("attention_dk", &of_queries, &own, detail, place.clone())
            }
            false => {
                let all = [&[keys, values], &of_queries[..], &packed].concat();
                self.draft.op("attention_dk", &all, detail, place.clone())
            }
        };
        if self.needed[k.index()] {
            self.add(k, dk);
        }
        if self.needed[v.index()] {
            let dv = self.draft.op("attention_dv", &[dk], None, place);
            self.add(v, dv);
        }
        Ok(())
    }

    /// The logarithms of an attention's sums, which forward saves.
    fn logarithms(&mut self, id: ValueId) -> Id {
        if let Some(here) = self.here.get(&id) {
            return *here;
        }
        let placement = self.placement(id);
        let ty = self.type_of(id, &placement, DType::F32);
        let made = self.draft.param("logs", ty, placement, DType::F32);
        self.save(id, made);
        self.here.insert(id, made);
        made
    }

    /// A parameter is a value that forward has as a result, or saves.
    fn save(&mut self, id: ValueId, made: Id) {
        let results = self.program.results();
        let position = results.iter().position(|r| *r == id).unwrap_or_else(|| {
            self.saved.push(id);
            results.len() + self.saved.len() - 1
        });
        self.given.push((made, Input::Saved(position)));
    }

    /// Backward of `Y = A B`: `dA = dY B.t` and `dB = A.t dY`; of what is stored the other way round, the transposes of
    /// that.
    fn gemm(
        &mut self,
        node: &Node,
        d: Id,
        (a_turned, b_turned): (bool, bool),
    ) -> Result<(), GradError> {
        let &[a, b] = node.inputs.as_slice() else { return Ok(()) };
        let mut d = d;
        for (axis, placement) in self.placement(node.result).into_iter().enumerate() {
            if placement != Placement::Partial {
                d = self.whole_over(d, axis);
            }
        }
        let wide = [a, b].iter().any(|v| self.program.ty(*v).is_some_and(|t| t.dims.len() > 2));
        if wide && (a_turned || b_turned) {
            return Err(GradError::Operation {
                op: "gemm",
                why: "it reads a transposed operand beside one of three dimensions",
                help: "store the operand as it is read",
            });
        }
        if self.needed[a.index()] {
            let weight = self.value(b)?;
            let g = match a_turned {
                false => self.draft.gemm((d, false), (weight, !b_turned)),
                true => self.draft.gemm((weight, b_turned), (d, true)),
            };
            self.add(a, g);
        }
        if self.needed[b.index()] {
            let left = self.value(a)?;
            let g = match b_turned {
                false => self.draft.gemm((left, !a_turned), (d, false)),
                true => self.draft.gemm((d, true), (left, a_turned)),
            };
            self.add(b, g);
        }
        Ok(())
    }

    /// The sum of a matrix over its rows: a row of ones times it.
    fn column_sum(&mut self, node: &Node, d: Id) -> Result<Id, GradError> {
        let [rows, _] = node.ty.dims.as_slice() else {
            return Err(GradError::Operation {
                op: node.op.name(),
                why: "its vector meets what is no matrix",
                help: "let it be of a matrix `[M, N]`",
            });
        };
        let d = self.whole(d);
        let (placement, dtype) = self.held(d);
        let of_rows = |p: Placement| match p {
            Placement::Shard(0) => Placement::Shard(1),
            _ => Placement::Replicate,
        };
        let placement: Vec<Placement> = placement.into_iter().map(of_rows).collect();
        let dims = vec![Dim::Lit(1), *rows];
        let ones = self.ones(TensorType { dtype, dims, placement });
        let sum = self.draft.gemm((ones, false), (d, false));
        self.sums.push(sum);
        Ok(sum)
    }

    /// Ones of a type, once.
    fn ones(&mut self, ty: TensorType) -> Id {
        if let Some((_, ones)) = self.ones.iter().find(|(known, _)| *known == ty) {
            return *ones;
        }
        let shown = self.program.show_type(&ty);
        let ones = self.draft.param("ones", shown, ty.placement.clone(), ty.dtype);
        self.given.push((ones, Input::Ones));
        self.ones.push((ty, ones));
        ones
    }

    /// Adds to the gradient of a value.
    fn add(&mut self, value: ValueId, g: Id) {
        if !self.needed[value.index()] {
            return;
        }
        let sum = match self.gradients[value.index()] {
            None => g,
            Some(before) => {
                let (mut before, mut g) = (before, g);
                for axis in 0..self.program.mesh_axes().len() {
                    if self.held(before).0[axis] != self.held(g).0[axis] {
                        (before, g) = (self.whole_over(before, axis), self.whole_over(g, axis));
                    }
                }
                let held = self.held(g);
                // What came before is an operand, and the last GEMM adds it.
                let sum = self.draft.op("add", &[g, before], None, held);
                for all in [&mut self.sums, &mut self.vectors] {
                    if all.contains(&g) {
                        all.push(sum);
                    }
                }
                sum
            }
        };
        self.gradients[value.index()] = Some(sum);
    }

    /// How a value is placed, and its type.
    fn held(&self, d: Id) -> (Vec<Placement>, DType) {
        (self.draft.values[d].placement.clone(), self.draft.values[d].dtype)
    }

    /// The same, placed otherwise over one axis.
    fn placed(&self, d: Id, axis: usize, placement: Placement) -> (Vec<Placement>, DType) {
        let (mut all, dtype) = self.held(d);
        all[axis] = placement;
        (all, dtype)
    }

    /// An axis as collectives name it, where there is another one.
    fn named(&self, axis: AxisId) -> Option<String> {
        let axes = self.program.mesh_axes();
        axes.get(axis.index()).filter(|_| crate::print::names_axes(axes)).cloned()
    }

    /// The ranks' parts of a sum, each in part `dim`.
    fn scattered(&mut self, d: Id, axis: AxisId, dim: usize) -> Id {
        let words = [self.named(axis), (dim != 0).then(|| format!("dim = {dim}"))];
        let words: Vec<String> = words.into_iter().flatten().collect();
        let detail = (!words.is_empty()).then(|| words.join(", "));
        let held = self.placed(d, axis.index(), Placement::Shard(dim));
        self.draft.op("reduce_scatter", &[d], detail, held)
    }

    /// The sum over the ranks of each axis along which they have parts of it.
    fn whole(&mut self, d: Id) -> Id {
        (0..self.program.mesh_axes().len()).fold(d, |d, axis| self.whole_over(d, axis))
    }

    /// The sum over the ranks along an axis, where each has a part of it.
    fn whole_over(&mut self, d: Id, axis: usize) -> Id {
        if self.draft.values[d].placement[axis] != Placement::Partial {
            return d;
        }
        let held = self.placed(d, axis, Placement::Replicate);
        let detail = self.named(AxisId::new(axis));
        let sum = self.draft.op("all_reduce", &[d], detail, held);
        if self.sums.contains(&d) {
            self.sums.push(sum);
        }
        sum
    }

    /// A value of forward, in the backward.
    fn value(&mut self, id: ValueId) -> Result<Id, GradError> {
        if let Some(here) = self.here.get(&id) {
            return Ok(*here);
        }
        let (placement, dtype) = (self.placement(id), self.dtype(id));
        let excerpt = Excerpt::whole(self.program);
        let made = match self.program.def(id) {
            Some(Def::Param(tensor)) => {
                let ty = self.program.show_type(&tensor.ty);
                // Its name is taken by itself.
                let made = self.draft.param_called(&tensor.name, ty, placement, dtype);
                self.given.push((made, Input::Parameter(id.index())));
                made
            }
            Some(Def::Node(node)) if self.computed_again(node) => {
                let operands: Vec<Id> =
                    node.inputs.iter().map(|i| self.value(*i)).collect::<Result<_, _>>()?;
                let detail = match node.op {
                    Op::Cast(to) => Some(to.name().into()),
                    Op::Gather { axis, .. } => self.named(axis),
                    Op::View => Some(self.program.show_dims(&node.ty.dims)),
                    _ => None,
                };
                self.draft.op(node.op.name(), &operands, detail, (placement, dtype))
            }
            // A cast to f32 changes nothing that 16 bits could show.
            Some(Def::Node(node)) if matches!(node.op, Op::Cast(DType::F32)) => {
                let Some(x) = node.inputs.first().copied() else { return Ok(0) };
                self.value(x)?
            }
            Some(Def::Node(node)) if node.ty.dtype == DType::F32 => {
                return Err(GradError::Operation {
                    op: node.op.name(),
                    why: "backward wants its result, which is `f32`",
                    help: "put a `cast` to 16 bits before what reads it",
                });
            }
            _ => {
                let ty = self.type_of(id, &placement, dtype);
                let made = self.draft.param(&excerpt.value_name(id), ty, placement, dtype);
                self.save(id, made);
                made
            }
        };
        self.here.insert(id, made);
        Ok(made)
    }

    /// Whether backward computes a value from others, which it has.
    fn computed_again(&self, node: &Node) -> bool {
        let of = |keep: Keep| keep == Keep::Again && !self.program.results().contains(&node.result);
        match node.op {
            // It is the same memory.
            Op::View => true,
            Op::Gather { .. } => {
                let param = |i: &ValueId| i.index() < self.program.tensors().len();
                of(self.saves.gathered) && node.inputs.iter().all(param)
            }
            Op::Swiglu if self.is_made_again(node.result) => true,
            Op::Curve(_) | Op::Swiglu => {
                // Not several of them in sequence: what is before the first is not there.
                let before = node.inputs.first().and_then(|i| self.program.def(*i));
                let plain =
                    !matches!(before, Some(Def::Node(Node { op: Op::Curve(_) | Op::Swiglu, .. })));
                of(self.saves.activations) && plain
            }
            _ => false,
        }
    }

    /// How a value is placed over each axis.
    fn placement(&self, id: ValueId) -> Vec<Placement> {
        self.program.ty(id).map(|t| t.placement.clone()).unwrap_or_default()
    }

    /// How the gradient of a result is given.
    fn gradient_placement(&self, id: ValueId) -> Vec<Placement> {
        let gathered = match self.program.def(id) {
            Some(Def::Node(Node { op: Op::Gather { axis, .. }, .. })) => Some(axis.index()),
            _ => None,
        };
        let over = |(axis, placement): (usize, Placement)| match placement {
            // Ranks read it apart, and each has its part of the gradient.
            _ if gathered == Some(axis) => Placement::Partial,
            Placement::Partial => Placement::Replicate,
            p => p,
        };
        self.placement(id).into_iter().enumerate().map(over).collect()
    }

    /// The type of a value's gradient: its own, or that of 16 bits that it was made of.
    fn dtype(&self, id: ValueId) -> DType {
        let mut at = id;
        loop {
            match self.program.def(at) {
                Some(Def::Node(node)) if node.ty.dtype == DType::F32 => {
                    let Some(first) = node.inputs.first() else { return DType::Bf16 };
                    at = *first;
                }
                Some(Def::Node(node)) => return node.ty.dtype,
                Some(Def::Param(tensor)) if tensor.ty.dtype != DType::F32 => {
                    return tensor.ty.dtype;
                }
                _ => return DType::Bf16,
            }
        }
    }

    /// A value's type as the source writes it, placed so.
    fn type_of(&self, id: ValueId, placement: &[Placement], dtype: DType) -> String {
        let dims = self.program.ty(id).map(|t| t.dims.clone()).unwrap_or_default();
        self.program.show_type(&TensorType { dtype, dims, placement: placement.to_vec() })
    }
}
