//! Ragged rows, GEMMs of them, and the weighted sums that go back to tokens.

use super::{
    ids::{Extra, OpId, Param, Reduce},
    tensor::Tensor,
};
use mk_plan::EpilogueOp;

/// Rows in blocks of one expert each: how many each expert has, and where they come from.
pub(in crate::passes) struct Ragged {
    /// Rows of each expert, `[E]`; or the experts of each token, `[tokens, slots]`, if there is a route.
    pub counts: Param,
    /// What the first GEMM makes of them: as many rows.
    pub rows: Tensor,
    pub route: Option<Route>,
}

/// Where rows come from, and go to, if a routing says whose they are.
pub(in crate::passes) struct Route {
    /// The tokens; nothing where rows were dispatched by a kernel before.
    pub x: Option<Param>,
    /// Their factors.
    pub factors: Option<Param>,
    /// What rows are multiplied by, each its token's slot.
    pub weights: Option<Param>,
    /// Which result the dispatched rows are.
    pub result: Option<usize>,
    /// Which result their factors are.
    pub result_factors: Option<usize>,
    /// Which result has how many rows of the rank's tokens are dropped.
    pub dropped: Option<usize>,
    /// Experts of the world.
    pub experts: i32,
    /// Rows beyond those that are kept of each expert are dropped, and end no launch.
    pub drops: bool,
    /// Whether rows go back to their tokens.
    pub combines: bool,
}

/// Operand A of a grouped GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Rows {
    Given(Param),
    /// What an earlier grouped GEMM made, or what [`Grads`] made of it.
    Made(OpId),
    /// Tokens that were dispatched.
    Dispatched,
}

/// Ragged rows times the matrices of their experts.
pub(in crate::passes) struct Grouped {
    /// The rows' [`Ragged`].
    pub ragged: OpId,
    pub rows: Rows,
    /// The stack of matrices.
    pub b: Param,
    /// Stored the other way round.
    pub transposed: bool,
    /// In order of application.
    pub epilogue: Vec<EpilogueOp>,
    /// Of the operations that have an operand.
    pub extras: Vec<Extra>,
    pub out: Tensor,
    /// Which result it is.
    pub result: Option<usize>,
    /// Whether another grouped GEMM reads it.
    pub read: bool,
    /// Whether [`Combine`] reads it, on all ranks.
    pub combined: bool,
}

impl Grouped {
    /// K, and columns of the result, that a rank has, by the stack of matrices; of gates and ups those of one of them.
    pub fn depth_and_columns(&self, b: &Tensor) -> (i32, i32) {
        let (depth, columns) = self.dims(b);
        let of = |d: usize| if d < b.shape.len() { b.widest(d) } else { 0 };
        (of(depth), of(columns))
    }

    /// The dimensions of the stack that these are: `[E, K, N]`, `[E, K, 2, N]`; transposed `[E, N, K]`, `[E, 2, N, K]`.
    pub fn dims(&self, b: &Tensor) -> (usize, usize) {
        let last = b.shape.len() - 1;
        match self.transposed {
            true if mk_plan::gated(&self.epilogue) => (last, last - 1),
            true => (last, 1),
            false => (1, last),
        }
    }

    /// Whether it sums over gates and ups of rows `[rows, 2, k]`, by matrices `[E, N, 2, K]` that are stored the other
    /// way round.
    pub fn sums_halves(&self, b: &Tensor) -> bool {
        b.shape.len() == 4
            && self.transposed
            && !b.dtype.is_narrow()
            && !mk_plan::gated(&self.epilogue)
    }

    /// Whether its result is `[rows, 2, n]`, the gradient of what `swiglu` takes.
    pub fn halves(&self) -> bool {
        mk_plan::halves(&self.epilogue)
    }
}

/// What is made of gradients of rows that have weights behind their activation.
pub(in crate::passes) struct Grads {
    /// The rows' [`Ragged`].
    pub ragged: OpId,
    /// The GEMM that makes gradients `[R, F]` of what the activation made, without weights.
    pub of: OpId,
    /// Gates and ups, `[R, 2, F]`.
    pub gates: Param,
    /// `[tokens, slots]`.
    pub weights: Param,
    /// Their gradients: with weights, `[R, 2, F]`.
    pub out: Tensor,
    /// Which result these are.
    pub result: Option<usize>,
    /// Which result rows of the activation times weights are.
    pub weighed: Option<usize>,
}

/// Gradients of the matrices of experts: sums over their rows.
pub(in crate::passes) struct Wgrad {
    /// The rows' [`Ragged`].
    pub ragged: OpId,
    /// Rows, `[R, M]`.
    pub x: Param,
    /// Gradients of what rows and matrices make, `[R, N]`.
    pub dy: Param,
    /// In order of application.
    pub epilogue: Vec<EpilogueOp>,
    /// Of the operations that have an operand.
    pub extras: Vec<Param>,
    /// Which result it is, `[E, M, N]`.
    pub result: usize,
}

/// What becomes of the rows of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Combined {
    /// Their sum, by weights `[tokens, slots]`.
    Sum(Param),
    /// The product of each and the token's row of `[tokens, columns]`.
    Products(Param),
    /// An element of each: what [`Grads`] made for its weight.
    Elements,
}

/// A grouped GEMM's rows, by token.
pub(in crate::passes) struct Combine {
    /// The GEMM.
    pub of: OpId,
    pub how: Combined,
    /// What is added to the sums: as large as the result.
    pub addend: Option<Param>,
    pub out: Tensor,
    /// Which result it is.
    pub result: usize,
    /// Whether ranks along the other axis have contributions to rows, which are added up here.
    pub summed: Option<Reduce>,
}

impl Combine {
    /// Whether ranks may send each other what they make of a token's rows, instead of rows.
    pub fn parts(&self, params: &[Tensor]) -> bool {
        // No sum of parts ends where a rank's own rows do.
        let own = matches!(self.how, Combined::Products(dy) if params[dy].own_rows());
        self.summed.is_none() && !own && !self.out.own_rows()
    }
}
