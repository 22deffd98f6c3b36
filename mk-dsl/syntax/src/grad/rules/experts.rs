//! The way back of tokens through their experts.

use super::Walk;
use crate::grad::{draft::Id, error::GradError};
use crate::program::{Def, Dim, Node, Op, ValueId};

impl<'p> Walk<'p> {
    /// Backward of what rows of experts go through. All of it is linear, row by row, in their gradients: these are
    /// without the weights that rows have in sums of tokens, and the sums on the way back have them.
    pub(super) fn experts(&mut self, node: &Node, d: Id) -> Result<(), GradError> {
        let refuse = |why, help| Err(GradError::Operation { op: node.op.name(), why, help });
        let held = (self.draft.values[d].placement, self.draft.values[d].dtype);
        match (node.op, &node.inputs[..]) {
            (Op::GroupedGemm { transposed: true }, _) => refuse(
                "it reads transposed matrices, as a backward does",
                "store them as they are read",
            ),
            (Op::GroupedGemm { .. }, &[x, w, counts]) => {
                if self.needed[w.index()] {
                    if self.is_combined(counts) {
                        return refuse(
                            "the gradient of its matrices takes rows with the weights of `combine`, which no kernel has so far",
                            "ask for the gradient of the tokens alone",
                        );
                    }
                    let experts = self.program.ty(w).and_then(|ty| ty.dims.first().copied());
                    let experts = experts.map_or_else(String::new, |e| self.extent(e));
                    let [rows, counts] = [self.value(x)?, self.value(counts)?];
                    let g = self.draft.grouped_wgrad(rows, counts, d, &experts);
                    self.add(w, g);
                }
                if !self.needed[x.index()] {
                    return Ok(());
                }
                let counts = match self.draft.is_param(d) {
                    true => Some(self.value(counts)?),
                    false => None,
                };
                let matrices = self.value(w)?;
                let g = self.draft.grouped_gemm(d, counts, matrices);
                self.add(x, g);
                Ok(())
            }
            (Op::Combine, &[y, ids, weights]) => {
                if self.needed[weights.index()] {
                    return refuse(
                        "the gradient of its weights is a product of rows, which no kernel has so far",
                        "ask for the gradient of the tokens alone",
                    );
                }
                let Some(dispatch) = self.dispatch_of(ids) else {
                    return refuse(
                        "its rows were dispatched by another pipeline",
                        "put `dispatch` before it",
                    );
                };
                let rows = dispatch.ty.dims.first();
                let rows = rows.map_or_else(String::new, |rows| self.extent(*rows));
                let drops = dispatch.op == Op::Dispatch { drops: true };
                let drop = if drops { ", drop" } else { "" };
                let ids = self.value(ids)?;
                // Room that follows from a routing is named where rows that forward saved have it, too.
                let room = dispatch.ty.dims.first().is_some_and(|dim| self.program.is_room(*dim));
                let linear = |n: &Node| {
                    matches!(
                        n.op,
                        Op::GroupedGemm { .. } | Op::Dispatch { .. } | Op::Scale(_) | Op::Cast(_)
                    )
                };
                let mut nodes = self.program.nodes().iter();
                let saves = nodes.any(|n| self.is_ragged(n.result) && !linear(n));
                let detail = (saves || !room).then(|| format!("capacity = {rows}{drop}"));
                let g = self.draft.op("dispatch", &[d, ids], detail, held);
                self.add(y, g);
                Ok(())
            }
            (Op::Dispatch { .. }, &[x, ids]) => {
                let of_rows = |n: &&Node| n.op == Op::Combine && n.inputs.get(1) == Some(&ids);
                let combine = self.program.nodes().iter().find(of_rows);
                let Some(weights) = combine.and_then(|n| n.inputs.get(2).copied()) else {
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
                let weights = self.value(weights)?;
                let g = self.draft.op("combine", &[d, weights], None, held);
                self.add(x, g);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// An extent, as the source writes it.
    fn extent(&self, dim: Dim) -> String {
        match dim {
            Dim::Lit(n) => n.to_string(),
            Dim::Sym(id) => self.program.symbols()[id.index()].name.clone(),
        }
    }

    /// Whether rows of these experts of tokens have weights in sums of tokens.
    fn is_combined(&self, ids: ValueId) -> bool {
        let of_rows = |n: &Node| n.op == Op::Combine && n.inputs.get(1) == Some(&ids);
        self.program.nodes().iter().any(of_rows)
    }

    /// The dispatch by these experts of tokens.
    fn dispatch_of(&self, ids: ValueId) -> Option<&'p Node> {
        let by_these =
            |n: &&Node| matches!(n.op, Op::Dispatch { .. }) && n.inputs.get(1) == Some(&ids);
        self.program.nodes().iter().find(by_these)
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
