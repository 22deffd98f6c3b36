//! Why numbers do not fit a program.

use crate::program::MAX_DIM;
use crate::suggest::nearest;
use std::fmt;

/// Where a number comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Given {
    /// A number for a symbol.
    Dim {
        /// The symbol.
        name: String,
        /// The number.
        size: u64,
    },
    /// The shape of a tensor.
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The upper bound of a runtime symbol.
    UpperBound,
    /// Another size of a number in the text.
    Elsewhere,
    /// The rows of any routing.
    Routing,
    /// Other dimensions of a `view`.
    View,
}

/// As Rust has it; with `{:#}` as the command line has it.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Given::Dim { name, size } if f.alternate() => write!(f, "`--dim {name}={size}`"),
            Given::Dim { name, size } => write!(f, "`dims[{name:?}] = {size}`"),
            Given::Shape { name, shape } if f.alternate() => {
                write!(f, "`--shape {name}={}`", super::join(shape))
            }
            Given::Shape { name, shape } => write!(f, "`shapes[{name:?}] = {shape:?}`"),
            Given::UpperBound => f.write_str("its upper bound"),
            Given::Elsewhere => f.write_str("another size"),
            Given::Routing => f.write_str("the rows of any routing"),
            Given::View => f.write_str("the other dimensions of a `view`"),
        }
    }
}

/// One reason why numbers do not fit a program. `{:#}` speaks of the options of the command line, `{}` of the arguments
/// of [`Program::bind`](crate::Program::bind).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindError {
    /// A number is given for a symbol that the program does not have.
    UnknownSymbol {
        /// The name given.
        name: String,
        /// The program's symbols.
        known: Vec<String>,
    },
    /// A shape is given for a tensor that the program does not have.
    UnknownTensor {
        /// The name given.
        name: String,
        /// The program's tensors.
        known: Vec<String>,
    },
    /// A shape has another number of dimensions than the tensor.
    Rank {
        /// The tensor's name.
        tensor: String,
        /// Dimensions in the program.
        expected: usize,
        /// Dimensions given.
        found: usize,
    },
    /// A literal dimension of the program differs from the one given.
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
    Conflict {
        /// The symbol's name.
        symbol: String,
        /// The first number.
        first: u64,
        /// Where it comes from.
        first_from: Given,
        /// The second number.
        second: u64,
        /// Where it comes from.
        second_from: Given,
    },
    /// A symbol has no number.
    Unbound {
        /// The symbol's name.
        symbol: String,
        /// The tensor whose shape gives it, where it has no name of its own, and how many dimensions that has.
        tensor: Option<(String, usize)>,
    },
    /// A dimension is zero, or above [`MAX_DIM`].
    OutOfRange {
        /// The symbol's name.
        symbol: String,
        /// The number given.
        value: u64,
        /// Where it comes from.
        from: Given,
    },
    /// A runtime symbol is given more than its upper bound.
    AboveMax {
        /// The symbol's name.
        symbol: String,
        /// The number given.
        value: u64,
        /// Where it comes from.
        from: Given,
        /// The upper bound.
        max: u64,
    },
    /// A number for one launch is given for a symbol that is fixed.
    NotRuntime {
        /// The symbol's name.
        symbol: String,
    },
    /// A dimension of a `view` is not the product of those that it is seen as.
    View {
        /// The dimension of the matrix, as `` `M` = 16 ``.
        whole: String,
        /// The two dimensions of heads.
        factors: [String; 2],
    },
    /// A value's size in bytes does not fit 63 bits.
    TooManyBytes {
        /// The tensor's name, or the value as `%3`.
        value: String,
        /// The shape, as `8192x8192`.
        shape: String,
    },
}

impl BindError {
    /// What to do about it, one line, in words of Rust.
    pub fn help(&self) -> String {
        self.help_of(false)
    }

    /// The same in options of the command line.
    pub fn option_help(&self) -> String {
        self.help_of(true)
    }

    fn help_of(&self, on_command_line: bool) -> String {
        let shape = |tensor: &str, n_dims: usize| {
            let numbers = vec!["<number>"; n_dims];
            match on_command_line {
                true => format!("`--shape {tensor}={}`", numbers.join("x")),
                false => format!("`({tensor:?}.into(), vec![{}])` to `shapes`", numbers.join(", ")),
            }
        };
        match self {
            BindError::UnknownSymbol { name, known } => choose(name, known, "symbols"),
            BindError::UnknownTensor { name, known } => choose(name, known, "tensors"),
            BindError::Rank { tensor, expected, .. } if on_command_line => {
                format!("give all of them: {}", shape(tensor, *expected))
            }
            BindError::Rank { tensor, expected, .. } => {
                format!("give all of them: add {}", shape(tensor, *expected))
            }
            BindError::Literal { expected, dim, .. } => {
                format!("write {expected} there, or a symbol for dimension {dim} in the pipeline")
            }
            BindError::Conflict { symbol, .. } => {
                format!("give `{symbol}` once, or the same number each time")
            }
            BindError::Unbound { tensor: Some((tensor, n_dims)), .. } => {
                format!("add {}", shape(tensor, *n_dims))
            }
            BindError::Unbound { symbol, .. } if on_command_line => {
                format!("add `--dim {symbol}=<number>`")
            }
            BindError::Unbound { symbol, .. } => {
                format!("add `({symbol:?}.into(), <number>)` to `dims`")
            }
            BindError::OutOfRange { symbol, .. } => {
                format!("give `{symbol}` a number from 1 to {MAX_DIM}")
            }
            BindError::AboveMax { max, .. } => {
                format!("give a number from 1 to {max}, or raise the bound")
            }
            BindError::NotRuntime { symbol } => {
                format!("declare it in the pipeline: `fn name<{symbol}: dyn <= 8192>(..)`")
            }
            BindError::View { .. } => "give numbers of which the first is the product".into(),
            BindError::TooManyBytes { .. } => "choose smaller dimensions".into(),
        }
    }

    /// What is wrong, by what `given` calls the sources of numbers.
    fn message(&self, given: impl Fn(&Given) -> String) -> String {
        match self {
            BindError::UnknownSymbol { name, .. } => format!("the pipeline has no symbol `{name}`"),
            BindError::UnknownTensor { name, .. } => format!("the pipeline has no tensor `{name}`"),
            BindError::Rank { tensor, expected, found } => format!(
                "`{tensor}` has {}, and the shape given for it has {found}",
                crate::messages::dimensions(*expected)
            ),
            BindError::Literal { tensor, dim, expected, found } => format!(
                "dimension {dim} of `{tensor}` is {expected}, and the shape given for it has {found}"
            ),
            BindError::Conflict { symbol, first, first_from, second, second_from } => {
                let (first_from, second_from) = (given(first_from), given(second_from));
                format!("`{symbol}` is {first} by {first_from} and {second} by {second_from}")
            }
            BindError::Unbound { symbol, .. } => format!("`{symbol}` has no value"),
            BindError::OutOfRange { symbol, value, from } => {
                format!("`{symbol}` is {value} by {}, outside 1..={MAX_DIM}", given(from))
            }
            BindError::AboveMax { symbol, value, from, max } => {
                format!("`{symbol}` is {value} by {}, above its upper bound {max}", given(from))
            }
            BindError::NotRuntime { symbol } => {
                format!("`{symbol}` is a constant of the kernel, and no launch can change it")
            }
            BindError::View { whole, factors: [one, other] } => {
                format!("a `view` has {whole} as {one} times {other}")
            }
            BindError::TooManyBytes { value, shape } => {
                format!("{value} of shape {shape} is larger than 2^63 - 1 bytes")
            }
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_command_line = f.alternate();
        f.write_str(&self.message(|given| match on_command_line {
            true => format!("{given:#}"),
            false => given.to_string(),
        }))
    }
}

impl std::error::Error for BindError {}

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

/// A line and its help for each; with `{:#}`, as the command line says it.
impl fmt::Display for BindErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let gap = if i > 0 { "\n" } else { "" };
            match f.alternate() {
                true => write!(f, "{gap}error: {error:#}\n  = help: {}", error.option_help())?,
                false => write!(f, "{gap}{error}\n  help: {}", error.help())?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for BindErrors {}
