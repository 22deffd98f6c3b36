//! What ranks hold when a launch has ended.

use mk_abi::DType;

/// One tensor of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The tensor's name in the plan: a parameter, or a result (`out` where it has no name of its own).
    pub name: String,
    /// The rank.
    pub rank: usize,
    /// Whether it is an input, and not a result.
    pub input: bool,
    /// The rank's part of the tensor, row-major; an extent is 0 on a rank that holds none of it.
    pub shape: Vec<u64>,
    /// The type of its elements.
    pub dtype: DType,
    /// Its elements, which f32 holds exactly.
    pub values: Vec<f32>,
}
