//! Numbers for symbols: `--dim M=8192`, `--shape a=8192x8192`.

use crate::program::{Dim, MAX_DIM, Program, SymbolId, TensorType, ValueId};
use crate::suggest::nearest;
use std::collections::BTreeMap;
use std::fmt;

/// The numbers of one program's symbols. Made by [`Program::bind`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    sizes: Vec<u64>,
    shapes: Vec<Vec<u64>>,
}

impl Bound {
    /// The extent of each symbol in elements, indexed by [`SymbolId`]; each `1..=MAX_DIM`.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The extent of `dim` in elements; `None` for a symbol of another program.
    pub fn dim(&self, dim: Dim) -> Option<u64> {
        match dim {
            Dim::Lit(n) => Some(n),
            Dim::Sym(symbol) => self.sizes.get(symbol.index()).copied(),
        }
    }

    /// The global shape of `value`, row-major; `None` for a value of another program.
    pub fn shape(&self, value: ValueId) -> Option<&[u64]> {
        self.shapes.get(value.index()).map(Vec::as_slice)
    }
}

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
pub struct BindErrors(Vec<BindError>);

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

impl Program {
    /// Gives each symbol a number: from `dims` (symbol name to extent) and from `shapes`
    /// (tensor name to global shape, row-major), both in elements.
    ///
    /// # Errors
    ///
    /// All of the reasons why the numbers do not fit: see [`BindError`].
    pub fn bind(
        &self,
        dims: &BTreeMap<String, u64>,
        shapes: &BTreeMap<String, Vec<u64>>,
    ) -> Result<Bound, BindErrors> {
        let mut binder =
            Binder { program: self, given: vec![None; self.symbols().len()], errors: Vec::new() };
        for (name, &size) in dims {
            binder.dim(name, size);
        }
        for (name, shape) in shapes {
            binder.shape(name, shape);
        }
        binder.finish()
    }
}

struct Binder<'a> {
    program: &'a Program,
    /// For each symbol, its number and where that came from.
    given: Vec<Option<(u64, String)>>,
    errors: Vec<BindError>,
}

impl Binder<'_> {
    fn dim(&mut self, name: &str, size: u64) {
        match self.program.symbol(name) {
            Some(symbol) => self.set(symbol, size, format!("`--dim {name}={size}`")),
            None => self.errors.push(BindError::UnknownSymbol {
                name: name.into(),
                known: self.program.symbols().iter().map(|s| s.name.clone()).collect(),
            }),
        }
    }

    fn shape(&mut self, name: &str, shape: &[u64]) {
        let Some(tensor) = self.program.tensor(name) else {
            let known = self.program.tensors().iter().map(|t| t.name.clone()).collect();
            self.errors.push(BindError::UnknownTensor { name: name.into(), known });
            return;
        };
        let dims = &tensor.ty.dims;
        if dims.len() != shape.len() {
            let (expected, found) = (dims.len(), shape.len());
            self.errors.push(BindError::Rank { tensor: name.into(), expected, found });
            return;
        }
        for (dim, (&declared, &found)) in dims.iter().zip(shape).enumerate() {
            match declared {
                Dim::Sym(symbol) => {
                    self.set(symbol, found, format!("`--shape {name}={}`", join(shape)));
                }
                Dim::Lit(expected) if expected != found => {
                    let tensor = name.into();
                    self.errors.push(BindError::Literal { tensor, dim, expected, found });
                }
                Dim::Lit(_) => {}
            }
        }
    }

    fn set(&mut self, symbol: SymbolId, size: u64, from: String) {
        let name = || self.program.symbols()[symbol.index()].name.clone();
        match &self.given[symbol.index()] {
            Some((first, first_from)) if *first != size => self.errors.push(BindError::Conflict {
                symbol: name(),
                first: *first,
                first_from: first_from.clone(),
                second: size,
                second_from: from,
            }),
            Some(_) => {}
            None => {
                if !(1..=MAX_DIM).contains(&size) {
                    let (value, from) = (size, from.clone());
                    self.errors.push(BindError::OutOfRange { symbol: name(), value, from });
                }
                self.given[symbol.index()] = Some((size, from));
            }
        }
    }

    fn finish(mut self) -> Result<Bound, BindErrors> {
        let mut missing = Vec::new();
        for (i, given) in self.given.iter().enumerate() {
            if given.is_none() {
                let (symbol, flag) = self.flag(SymbolId::new(i));
                // One shape may give several symbols: ask for it once.
                if !missing.iter().any(|(_, f)| *f == flag) {
                    missing.push((symbol, flag));
                }
            }
        }
        self.errors
            .extend(missing.into_iter().map(|(symbol, flag)| BindError::Unbound { symbol, flag }));
        if !self.errors.is_empty() {
            return Err(BindErrors(self.errors));
        }
        let sizes = self.given.iter().flatten().map(|(size, _)| *size).collect();
        let mut bound = Bound { sizes, shapes: Vec::new() };
        for i in 0..self.program.n_values() {
            let id = ValueId::new(i);
            let shape = match self.program.ty(id) {
                Some(ty) => self.shape_of(&bound, id, ty),
                None => Vec::new(),
            };
            bound.shapes.push(shape);
        }
        if self.errors.is_empty() { Ok(bound) } else { Err(BindErrors(self.errors)) }
    }

    fn shape_of(&mut self, bound: &Bound, id: ValueId, ty: &TensorType) -> Vec<u64> {
        let shape: Vec<u64> = ty.dims.iter().filter_map(|&d| bound.dim(d)).collect();
        let n_bytes = shape.iter().try_fold(ty.dtype.size_bytes(), |n, &d| n.checked_mul(d));
        if n_bytes.is_none_or(|n| n > i64::MAX as u64) {
            let value = match self.program.tensors().get(id.index()) {
                Some(tensor) => format!("`{}`", tensor.name),
                None => format!("value {id}"),
            };
            self.errors.push(BindError::TooManyBytes { value, shape: join(&shape) });
        }
        shape
    }

    /// The symbol's name, and the flag that would bind it. A symbol that the source does not
    /// write (`a_1`) is asked for by the shape of its tensor.
    fn flag(&self, symbol: SymbolId) -> (String, String) {
        let name = &self.program.symbols()[symbol.index()].name;
        let mut holders = self.program.tensors().iter();
        let shape = holders.find(|t| t.ty.dims.contains(&Dim::Sym(symbol))).and_then(|t| {
            let written = name.strip_prefix(t.name.as_str())?.strip_prefix('_')?;
            let dim = written.parse::<usize>().ok()?;
            (t.ty.dims.get(dim) == Some(&Dim::Sym(symbol))).then(|| {
                format!("--shape {}={}", t.name, vec!["<number>"; t.ty.dims.len()].join("x"))
            })
        });
        (name.clone(), shape.unwrap_or_else(|| format!("--dim {name}=<number>")))
    }
}

fn join(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}
