//! Why numbers do not fit a program.

use crate::program::MAX_DIM;
use crate::suggest::nearest;
use std::fmt;

/// One reason why numbers do not fit a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A number is given for a symbol that the program does not have.
    #[error("the pipeline has no symbol `{name}`")]
    UnknownSymbol {
        /// The name given.
        name: String,
        /// The program's symbols.
        known: Vec<String>,
    },
    /// A shape is given for a tensor that the program does not have.
    #[error("the pipeline has no tensor `{name}`")]
    UnknownTensor {
        /// The name given.
        name: String,
        /// The program's tensors.
        known: Vec<String>,
    },
    /// A shape has another number of dimensions than the tensor.
    #[error("`{tensor}` has {expected} dimensions, and the shape given for it has {found}")]
    Rank {
        /// The tensor's name.
        tensor: String,
        /// Dimensions in the program.
        expected: usize,
        /// Dimensions given.
        found: usize,
    },
    /// A literal dimension of the program differs from the one given.
    #[error("dimension {dim} of `{tensor}` is {expected}, and the shape given for it has {found}")]
    Literal {
        /// The tensor's name.
        tensor: String,
        /// The dimension, from 0.
        dim: usize,
        /// The number in the program.
        expected: u64,
        /// The number given.
        found: u64,
    },
    /// Two sources give one symbol different numbers.
    #[error("`{symbol}` is {first} by {first_from} and {second} by {second_from}")]
    Conflict {
        /// The symbol's name.
        symbol: String,
        /// The first number.
        first: u64,
        /// Where it comes from.
        first_from: String,
        /// The second number.
        second: u64,
        /// Where it comes from.
        second_from: String,
    },
    /// A symbol has no number.
    #[error("`{symbol}` has no value")]
    Unbound {
        /// The symbol's name.
        symbol: String,
        /// The flag to add, for instance `--dim M=<number>`.
        flag: String,
    },
    /// A dimension is zero, or above [`MAX_DIM`].
    #[error("`{symbol}` is {value} by {from}, outside 1..={max}", max = MAX_DIM)]
    OutOfRange {
        /// The symbol's name.
        symbol: String,
        /// The number given.
        value: u64,
        /// Where it comes from.
        from: String,
    },
    /// A runtime symbol is given more than its upper bound.
    #[error("`{symbol}` is {value} by {from}, above its upper bound {max}")]
    AboveMax {
        /// The symbol's name.
        symbol: String,
        /// The number given.
        value: u64,
        /// Where it comes from.
        from: String,
        /// The upper bound.
        max: u64,
    },
    /// A number for one launch is given for a symbol that is fixed.
    #[error("`{symbol}` is a constant of the kernel, and no launch can change it")]
    NotRuntime {
        /// The symbol's name.
        symbol: String,
    },
    /// A value's size in bytes does not fit 63 bits.
    #[error("{value} of shape {shape} is larger than 2^63 - 1 bytes")]
    TooManyBytes {
        /// The tensor's name, or the value as `%3`.
        value: String,
        /// The shape, as `8192x8192`.
        shape: String,
    },
}

impl BindError {
    /// What to do about it, one line.
    pub fn help(&self) -> String {
        match self {
            BindError::UnknownSymbol { name, known } => choose(name, known, "symbols"),
            BindError::UnknownTensor { name, known } => choose(name, known, "tensors"),
            BindError::Rank { tensor, expected, .. } => {
                format!(
                    "give all of them: `--shape {tensor}={}`",
                    vec!["<number>"; *expected].join("x")
                )
            }
            BindError::Literal { expected, dim, .. } => {
                format!("write {expected} there, or a symbol for dimension {dim} in the pipeline")
            }
            BindError::Conflict { symbol, .. } => {
                format!("give `{symbol}` once, or the same number each time")
            }
            BindError::Unbound { flag, .. } => format!("add `{flag}`"),
            BindError::OutOfRange { symbol, .. } => {
                format!("give `{symbol}` a number from 1 to {MAX_DIM}")
            }
            BindError::AboveMax { max, .. } => {
                format!("give a number from 1 to {max}, or raise the bound")
            }
            BindError::NotRuntime { symbol } => {
                format!("declare it in the pipeline: `fn name<{symbol}: dyn <= 8192>(..)`")
            }
            BindError::TooManyBytes { .. } => "choose smaller dimensions".into(),
        }
    }
}

fn choose(name: &str, known: &[String], what: &str) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("it has no {what}"),
        None => format!("its {what} are `{}`", known.join("`, `")),
    }
}

/// Every reason why numbers do not fit a program; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindErrors(pub(super) Vec<BindError>);

impl BindErrors {
    /// The reasons: first what is given wrongly, then what is missing.
    pub fn iter(&self) -> std::slice::Iter<'_, BindError> {
        self.0.iter()
    }
}

impl fmt::Display for BindErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let gap = if i > 0 { "\n" } else { "" };
            write!(f, "{gap}error: {error}\n  = help: {}", error.help())?;
        }
        Ok(())
    }
}

impl std::error::Error for BindErrors {}
