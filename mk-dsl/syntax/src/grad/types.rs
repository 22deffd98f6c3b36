//! What is asked of a derivative, and what it is made of.

use crate::program::Program;

/// Where backward has a value from that forward computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Forward saves it: one more result.
    #[default]
    Saved,
    /// Backward computes it again.
    Again,
}

/// What forward saves for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Saves {
    /// Gathered parameters: `M * K` elements on each rank, or another `gather`.
    pub gathered: Keep,
    /// Values behind `gelu`, `silu`, `relu`, `swiglu` that a GEMM reads; those before them are saved in any case.
    pub activations: Keep,
}

/// What a parameter of a backward is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The gradient of a result of the pipeline, by position; of a result in f32 in 16 bits. Sharded as the result is.
    /// Of a result that is whole on every rank it is whole, too; but where `gather` gives the result, what each rank
    /// adds to it.
    Gradient(usize),
    /// A parameter of the pipeline, by position.
    Parameter(usize),
    /// What forward saved: a result of [`Gradient::forward`], by position.
    Saved(usize),
    /// A matrix of ones.
    Ones,
    /// The f32 matrix that the gradient of a parameter of the pipeline, by position, is added to.
    Main(usize),
}

/// Where a gradient is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A result of the backward, by position.
    Result(usize),
    /// The only row of one.
    Row(usize),
    /// The first row of each matrix of one, `[E, 8, N]` or `[E, 8, 2, N]`.
    Rows(usize),
    /// The gradient of a result of the pipeline, by position, as it is given.
    Given(usize),
}

/// A pipeline and its backward.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The pipeline with more results: those of the pipeline come first, then what is saved.
    pub forward: Program,
    /// The backward; `None` if every gradient is one that is given.
    pub backward: Option<Program>,
    /// Its parameters.
    pub inputs: Vec<Input>,
    /// For each parameter of the pipeline of which the gradient is wanted, its position, and where the gradient is.
    pub gradients: Vec<(usize, Source)>,
}
