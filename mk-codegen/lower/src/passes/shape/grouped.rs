//! A kernel of products of ragged rows: one after the other, all with the same rows of each expert.

use super::tensor::Tensor;
use mk_plan::EpilogueOp;

/// The left operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Rows {
    /// A parameter.
    Given(usize),
    /// An earlier product.
    Made(usize),
    /// Tokens that were dispatched.
    Dispatched,
}

/// Where rows come from, and go to, if a routing says whose they are.
pub(in crate::passes) struct Route {
    /// The tokens, a parameter; nothing where rows were dispatched by a kernel before.
    pub x: Option<usize>,
    /// Experts of the world.
    pub experts: i32,
    /// Rows beyond those that are kept of each expert are dropped, and end no launch.
    pub drops: bool,
    pub combine: Option<Combine>,
}

/// Weighted sums of a product's rows, by token.
pub(in crate::passes) struct Combine {
    /// The product.
    pub of: usize,
    /// A parameter, `[tokens, slots]`.
    pub weights: usize,
    pub out: Tensor,
    /// Which result it is.
    pub result: usize,
}

/// A product.
pub(in crate::passes) struct Product {
    pub rows: Rows,
    /// The stack of matrices, a parameter.
    pub b: usize,
    /// In order of application.
    pub epilogue: Vec<EpilogueOp>,
    /// Parameters, of the operations that have an operand.
    pub extras: Vec<usize>,
    pub out: Tensor,
    /// Which result it is.
    pub result: Option<usize>,
    /// Whether another product reads it.
    pub read: bool,
}

/// What the kernel computes.
pub(in crate::passes) struct Grouped {
    pub name: String,
    /// Tensors of the caller, in the order of the program.
    pub params: Vec<Tensor>,
    /// Rows of each expert, a parameter; or the experts of each token, if there is a route.
    pub counts: usize,
    pub route: Option<Route>,
    pub products: Vec<Product>,
    /// In the order of the program.
    pub results: Vec<Tensor>,
}
