//! Why a program has no backward.

use crate::diag::Diagnostics;

/// Why a program has no backward.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradError {
    /// An operation has no derivative here.
    #[error("`{op}` has no derivative here: {why}\n  help: {help}")]
    Operation {
        /// Its name.
        op: &'static str,
        /// Why.
        why: &'static str,
        /// What to do.
        help: &'static str,
    },
    /// A parameter of which the gradient is wanted is none.
    #[error("the pipeline has no parameter {index}: it has {count}")]
    Parameter {
        /// Its position.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A gradient that cannot be added to an f32 matrix on the way.
    #[error(
        "the gradient of `{name}` is not what a product of this rank makes, which could add it to an f32 matrix\n  \
         help: let it be a gradient of its own, and add it behind"
    )]
    NoProduct {
        /// The parameter.
        name: String,
    },
    /// The text that was derived is wrong: a defect of mk.
    #[error("the derived text is wrong, which is a defect of mk:\n{text}\n{diagnostics}")]
    Derived {
        /// The text.
        text: String,
        /// What is wrong with it.
        diagnostics: Diagnostics,
    },
}
