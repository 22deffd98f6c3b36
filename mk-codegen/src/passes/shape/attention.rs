//! A kernel that is one attention.

use super::tensor::Tensor;

/// What the kernel computes: `o = softmax(scale q k^T) v`, and the logarithms of the softmax's sums.
pub(in crate::passes) struct Attention {
    pub name: String,
    pub axis: String,
    /// Tensors of the caller, in the order of the program.
    pub params: Vec<Tensor>,
    /// Queries, keys and values, as indices into `params`.
    pub operands: [usize; 3],
    /// Results, in the order of the program.
    pub results: Vec<Tensor>,
    /// Indices into `results`.
    pub o: Option<usize>,
    pub lse: Option<usize>,
    pub causal: bool,
    /// The factor's f32 bits, where it is not `1 / sqrt(D)`.
    pub scale: Option<u32>,
    /// Whether keys and values are passed on from rank to rank.
    pub ring: bool,
}
