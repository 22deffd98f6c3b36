//! A kernel of products of ragged rows: one after the other, all with the same rows of each expert.

use super::tensor::Tensor;
use crate::ir::EpilogueOp;

/// The left operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Rows {
    /// A parameter.
    Given(usize),
    /// Those that tokens are copied to.
    Dispatched,
    /// An earlier product.
    Made(usize),
}

/// What says whose rows are whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Route {
    /// Rows of each expert, a parameter.
    Counts(usize),
    /// The experts that each token names: parameters.
    Ids {
        /// Tokens.
        tokens: usize,
        /// Their experts.
        ids: usize,
    },
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
    pub axis: String,
    /// Tensors of the caller, in the order of the program.
    pub params: Vec<Tensor>,
    /// Whose rows are whose.
    pub route: Route,
    /// How many experts there are.
    pub experts: i32,
    pub products: Vec<Product>,
    /// In the order of the program.
    pub results: Vec<Tensor>,
}
