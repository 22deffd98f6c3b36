//! The way back of tokens through their experts.
//!
//! Rows have the weights of `combine` either way. Where tokens alone have gradients, those of rows are without weights,
//! and the sums on the way back have them. Where matrices, or weights, have gradients, too, the gradients of tokens are
//! dispatched times their weights, so that products of rows have them, and the sums on the way back have ones.
//!
//! Of `swiglu -> grouped_gemm -> combine`, gradients of weights need neither the rows that are combined nor their
//! product once more: with `u` the gradients of rows before the product, without weights, they are the products of rows
//! of `u` and of the activation, and everything behind `u` has the weights (SonicMoE, Guo et al. 2025).

use super::{Behind, Walk};
use crate::grad::{draft::Id, error::GradError};
use crate::program::{DType, Def, Dim, Node, Op, Placement, TensorType, ValueId};

/// Columns of ones that rows of gradients are summed by.
const ONES: u64 = 8;

const EIGHT_BITS: GradError = GradError::Operation {
    op: "grouped_gemm",
    why: "values of eight bits have no gradients",
    help: "differentiate it in 16 bits; or write the gradient of rows as `dy -> quantize(e4m3, 1, 128) -> dispatch(ids) \
           -> grouped_gemm(v.t)`, `v` being the matrices stored the other way round, as layers of `mk.nn` do with fp8",
};

impl<'p> Walk<'p> {
    /// Backward of what rows of experts go through.
    pub(super) fn experts(&mut self, node: &Node, d: Id) -> Result<(), GradError> {
        let refuse = |why, help| Err(GradError::Operation { op: node.op.name(), why, help });
        let held = self.held(d);
        match (node.op, &node.inputs[..]) {
            (Op::GroupedGemm { .. }, &[_, w, _]) if self.is_scaled(w) => Err(EIGHT_BITS),
            (Op::GroupedGemm { transposed: true }, _) => refuse(
                "it reads transposed matrices, as a backward does",
                "store them as they are read",
            ),
            (Op::GroupedGemm { .. }, &[x, w, counts]) => {
                if let Some((combine, h)) = self.weighed_behind(node.result) {
                    return self.weighed(combine, h, (x, w), d);
                }
                if self.needed[w.index()] {
                    self.after_data(counts, Behind::Matrices { w, x, ids: counts, d })?;
                }
                if !self.needed[x.index()] {
                    return Ok(());
                }
                let counts = match self.draft.is_ragged(d) {
                    true => None,
                    false => Some(self.route(counts)?),
                };
                let matrices = self.value(w)?;
                let g = self.draft.grouped_gemm(d, counts, (matrices, true));
                self.add(x, g);
                Ok(())
            }
            (Op::Combine, &[y, ids, weights]) => {
                let Some(dispatch) = self.dispatch_of(ids) else {
                    return refuse(
                        "its rows were dispatched by another pipeline",
                        "put `dispatch` before it",
                    );
                };
                if dispatch.inputs.len() > 2 {
                    return refuse(
                        "its rows have weights already, as those of a backward do",
                        "give the weights to `combine` alone",
                    );
                }
                let weighted = self.is_weighted(ids);
                let drops = self.program.drops(ids);
                let rows = dispatch.ty.dims.first();
                let rows = rows.map_or_else(String::new, |rows| self.program.show_dim(rows));
                let drop = if drops { ", drop" } else { "" };
                let behind = self.weighed_behind(y).is_some();
                if self.needed[weights.index()] && !behind {
                    let combine = node.result;
                    self.behind.push(Behind::Weights { combine, d });
                }
                if !self.needed[y.index()] {
                    return Ok(());
                }
                let mut operands = vec![d, self.value(ids)?];
                if weighted && !behind {
                    operands.push(self.value(weights)?);
                }
                // Room that follows from a routing is named where rows that forward saved have it, too.
                let room = dispatch.ty.dims.first().is_some_and(|dim| self.program.is_room(*dim));
                let linear = |n: &Node| {
                    matches!(
                        n.op,
                        Op::GroupedGemm { .. } | Op::Dispatch { .. } | Op::Scale(_) | Op::Cast(_)
                    )
                };
                let mut nodes = self.program.nodes().iter();
                let saves = weighted || nodes.any(|n| self.is_ragged(n.result) && !linear(n));
                let detail = (saves || !room).then(|| format!("capacity = {rows}{drop}"));
                let g = self.draft.op("dispatch", &operands, detail, held);
                self.add(y, g);
                Ok(())
            }
            (Op::Dispatch { .. }, &[x, ids]) => {
                let Some(&[_, _, weights]) = self.combine_of(ids).map(|n| &n.inputs[..]) else {
                    return refuse(
                        "its rows do not come back as sums of tokens",
                        "put `combine` behind its last product",
                    );
                };
                if self.program.results().iter().any(|r| self.is_ragged(*r)) {
                    return refuse(
                        "its rows are a result, too, and their gradients have no weights",
                        "return what `combine` makes alone",
                    );
                }
                let weights = match self.is_weighted(ids) {
                    true => self.ones_like(weights),
                    false => self.value(weights)?,
                };
                let g = self.draft.op("combine", &[d, weights], None, held);
                self.add(x, g);
                Ok(())
            }
            (Op::Dispatch { .. }, _) => refuse(
                "its rows have weights, as those of a backward do",
                "give the weights to `combine`",
            ),
            _ => Ok(()),
        }
    }

    /// The `combine` by weights that have gradients, and what the `swiglu` takes, on either side of a product: then its
    /// gradients are weighed behind the product.
    fn weighed_behind(&self, product: ValueId) -> Option<(&'p Node, ValueId)> {
        let (combine, x, h) = self.activated(product)?;
        let needed = |of: ValueId| self.needed[of.index()];
        (needed(combine.inputs[2]) && needed(x)).then_some((combine, h))
    }

    /// Whether an activation is what [`Walk::weighed_behind`] may make once more: whichever gradients are wanted, so
    /// that forward saves as much for some of them as for all.
    pub(super) fn is_made_again(&self, activation: ValueId) -> bool {
        let mut nodes = self.program.nodes().iter();
        nodes.any(|n| self.activated(n.result).is_some_and(|(_, x, _)| x == activation))
    }

    /// The `combine` that alone reads a product, the `swiglu` before it that this product alone reads, and what that
    /// takes. Not of columns that ranks along another axis share.
    fn activated(&self, product: ValueId) -> Option<(&'p Node, ValueId, ValueId)> {
        let Some(Def::Node(node)) = self.program.def(product) else { return None };
        let (Op::GroupedGemm { transposed: false }, &[x, w, ids]) = (node.op, &node.inputs[..])
        else {
            return None;
        };
        let Some(Def::Node(activation)) = self.program.def(x) else { return None };
        let combine = self.combine_of(ids).filter(|c| c.inputs[0] == product)?;
        let readers = |of: ValueId| {
            let nodes = self.program.nodes().iter();
            let returned = self.program.results().iter().filter(|r| **r == of).count();
            nodes.flat_map(|n| &n.inputs).filter(|i| **i == of).count() + returned
        };
        let whole = |of: ValueId| {
            let whole = |p: &Placement| matches!(p, Placement::Replicate | Placement::Shard(0));
            self.placement(of).iter().all(whole)
        };
        let h = *activation.inputs.first()?;
        let is = activation.op == Op::Swiglu
            && !self.is_scaled(w)
            && [product, x].into_iter().all(|of| readers(of) == 1)
            && [product, x, w, h].into_iter().all(whole);
        is.then_some((combine, x, h))
    }

    /// Backward of a product of rows of an activation `x` of `h`, whose results have weights: `d` are gradients of these
    /// without weights.
    fn weighed(
        &mut self,
        combine: &'p Node,
        h: ValueId,
        (x, w): (ValueId, ValueId),
        d: Id,
    ) -> Result<(), GradError> {
        let combined = combine.result;
        let (matrices, before) = (self.value(w)?, self.value(h)?);
        let weights = self.value(combine.inputs[2])?;
        // Made once more, from what the gradient of the activation reads, too.
        let held = (self.held(d).0, self.dtype(x));
        let y = self.draft.op("swiglu", &[before], None, held);
        let u = self.draft.grouped_gemm(d, None, (matrices, true));
        let held = self.held(u);
        let g = self.draft.op("weigh", &[u, weights], None, held);
        self.add(x, g);
        self.behind.push(Behind::Slots { combine: combined, y, d: u });
        if self.needed[w.index()] {
            self.behind.push(Behind::Weighed { combine: combined, w, y, d });
        }
        Ok(())
    }

    /// What no other gradient is made of. Of rows that go on to their tokens it comes last: the data's way is one
    /// kernel where it can be.
    pub(super) fn after_data(&mut self, ids: ValueId, behind: Behind) -> Result<(), GradError> {
        if self.combine_of(ids).is_none() {
            return self.of_experts(behind);
        }
        self.behind.push(behind);
        Ok(())
    }

    /// What says whose rows these are, if they are rows that experts have made.
    pub(super) fn experts_of(&self, rows: ValueId) -> Option<ValueId> {
        let mut at = rows;
        loop {
            let Some(Def::Node(node)) = self.program.def(at) else { return None };
            match node.op {
                Op::GroupedGemm { .. } => return node.inputs.get(2).copied(),
                op if op.is_elementwise() || op == Op::Swiglu => at = node.inputs[0],
                _ => return None,
            }
        }
    }

    /// A gradient of matrices, of vectors, or of weights.
    pub(super) fn of_experts(&mut self, behind: Behind) -> Result<(), GradError> {
        match behind {
            Behind::Matrices { w, x, ids, d } => {
                let experts = self.program.ty(w).and_then(|ty| ty.dims.first().copied());
                let experts = experts.map_or_else(String::new, |e| self.program.show_dim(&e));
                let [rows, ids] = [self.value(x)?, self.route(ids)?];
                let g = self.draft.grouped_wgrad(rows, ids, d, &experts);
                self.add(w, g);
            }
            Behind::Weighed { combine, w, y, d } => {
                let Some(Def::Node(node)) = self.program.def(combine) else { return Ok(()) };
                let experts = self.program.ty(w).and_then(|ty| ty.dims.first().copied());
                let experts = experts.map_or_else(String::new, |e| self.program.show_dim(&e));
                let [route, weights] = [self.route(node.inputs[1])?, self.value(node.inputs[2])?];
                let held = self.held(y);
                let rows = self.draft.op("weigh", &[y, route, weights], None, held);
                let g = self.draft.grouped_wgrad(rows, route, d, &experts);
                self.add(w, g);
            }
            Behind::Slots { combine, y, d } => {
                let Some(Def::Node(node)) = self.program.def(combine) else { return Ok(()) };
                let weights = node.inputs[2];
                let held = (self.placement(weights), DType::F32);
                let g = self.draft.op("weigh_grad", &[d, y], None, held);
                self.add(weights, g);
            }
            Behind::Vectors { vectors, ids, d } => {
                let Some(ty) = self.program.ty(vectors) else { return Ok(()) };
                let experts =
                    ty.dims.first().map_or_else(String::new, |e| self.program.show_dim(e));
                let rows = self.program.nodes().iter().find(|n| {
                    matches!(n.op, Op::GroupedGemm { .. }) && n.inputs.get(2) == Some(&ids)
                });
                let Some(rows) = rows.and_then(|n| n.ty.dims.first().copied()) else {
                    return Ok(());
                };
                let (route, (placement, dtype)) = (self.route(ids)?, self.held(d));
                // A tensor map's rows are multiples of 16 bytes.
                let dims = vec![rows, Dim::Lit(ONES)];
                let ones = self.ones(TensorType { dtype, dims, placement });
                let g = self.draft.grouped_wgrad(ones, route, d, &experts);
                self.vectors.push(g);
                self.add(vectors, g);
            }
            Behind::Weights { combine, d } => {
                let Some(Def::Node(node)) = self.program.def(combine) else { return Ok(()) };
                let &[y, ids, weights] = &node.inputs[..] else { return Ok(()) };
                let (mut at, mut added) = (y, Vec::new());
                let inputs = loop {
                    match self.program.def(at) {
                        Some(Def::Node(Node {
                            op: Op::GroupedGemm { transposed: false },
                            inputs,
                            ..
                        })) => break inputs,
                        Some(Def::Node(Node { op: Op::Bias, inputs, .. })) => {
                            added.push(inputs[1]);
                            at = inputs[0];
                        }
                        Some(Def::Node(Node { op: Op::GroupedGemm { .. }, inputs, .. }))
                            if self.is_scaled(inputs[1]) =>
                        {
                            return Err(EIGHT_BITS);
                        }
                        _ => {
                            return Err(GradError::Operation {
                                op: node.op.name(),
                                why: "something stands between its weights and the product of its rows",
                                help: "put `combine` directly behind `grouped_gemm`, or its `bias`, or ask for no \
                                    gradient of the weights",
                            });
                        }
                    }
                };
                // Made once more: as wide as tokens, these rows are the largest of all.
                let [rows, matrices, ids] =
                    [self.value(inputs[0])?, self.value(inputs[1])?, self.route(ids)?];
                let mut again = self.draft.grouped_gemm(rows, Some(ids), (matrices, false));
                for vectors in added.into_iter().rev() {
                    let (vectors, held) = (self.value(vectors)?, self.held(again));
                    again = self.draft.op("bias", &[again, vectors], None, held);
                }
                // Of rows of which ranks have contributions, products are contributions.
                let of_rows = self.held(again).0;
                let partial = |(own, of): (Placement, Placement)| match of {
                    Placement::Partial => of,
                    _ => own,
                };
                let placement = self.placement(weights).into_iter().zip(of_rows).map(partial);
                let held = (placement.collect(), DType::F32);
                let g = self.draft.op("combine_grad", &[again, d], None, held);
                self.add(weights, g);
            }
        }
        Ok(())
    }

    /// What says whose rows are whose.
    fn route(&mut self, ids: ValueId) -> Result<Id, GradError> {
        let id = self.value(ids)?;
        if self.program.drops(ids) {
            self.draft.dropped.insert(id);
        }
        Ok(id)
    }

    /// A one for each weight.
    fn ones_like(&mut self, weights: ValueId) -> Id {
        let dims = self.program.ty(weights).map(|ty| ty.dims.clone()).unwrap_or_default();
        let placement = self.placement(weights);
        self.ones(TensorType { dtype: DType::F32, dims, placement })
    }

    /// What brings rows of these experts back to their tokens.
    fn combine_of(&self, ids: ValueId) -> Option<&'p Node> {
        let of_rows = |n: &&Node| n.op == Op::Combine && n.inputs.get(1) == Some(&ids);
        self.program.nodes().iter().find(of_rows)
    }

    /// Whether gradients of rows of these experts have the weights of their sums.
    fn is_weighted(&self, ids: ValueId) -> bool {
        let needed = |i: &ValueId| self.needed[i.index()];
        let mut nodes = self.program.nodes().iter();
        nodes.any(|n| match n.op {
            Op::GroupedGemm { .. } => n.inputs.get(2) == Some(&ids) && needed(&n.inputs[1]),
            Op::Combine => n.inputs.get(1) == Some(&ids) && needed(&n.inputs[2]),
            Op::Bias => needed(&n.inputs[1]) && self.experts_of(n.result) == Some(ids),
            _ => false,
        })
    }

    /// The dispatch by these experts of tokens.
    fn dispatch_of(&self, ids: ValueId) -> Option<&'p Node> {
        let by_these =
            |n: &&Node| matches!(n.op, Op::Dispatch { .. }) && n.inputs.get(1) == Some(&ids);
        self.program.nodes().iter().find(by_these)
    }

    /// Whether a value is a tensor of eight bits times its factors.
    fn is_scaled(&self, id: ValueId) -> bool {
        let def = self.program.def(id);
        matches!(def, Some(Def::Node(Node { op: Op::Dequantize(_), .. })))
    }

    /// Whether a value is rows of experts.
    fn is_ragged(&self, id: ValueId) -> bool {
        let mut at = id;
        while let Some(Def::Node(node)) = self.program.def(at) {
            match node.op {
                Op::GroupedGemm { .. } | Op::Dispatch { .. } => return true,
                op if op.is_elementwise() || op == Op::Swiglu => at = node.inputs[0],
                _ => return false,
            }
        }
        false
    }
}
