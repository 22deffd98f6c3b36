//! Numbers for symbols: `--dim M=8192`, `--shape a=8192x8192`.

mod error;
mod room;
mod view;

pub use error::{BindError, BindErrors, Given};

use crate::program::{
    Dim, MAX_DIM, Program, SCALE_BLOCK, SymbolId, SymbolKind, TensorType, ValueId,
};
use std::collections::BTreeMap;

/// The numbers of one program's symbols. Made by [`Program::bind`].
///
/// A runtime symbol has two: its extent in one launch, and the most that any launch may give it,
/// which is what memory and grids are made for. Of a fixed symbol the two are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    sizes: Vec<u64>,
    max_sizes: Vec<u64>,
    runtime: Vec<SymbolId>,
    /// Symbols whose numbers follow from others, and from the number of ranks.
    room: Vec<SymbolId>,
    ranks: u64,
    /// Numbers in the place of those of the text.
    literals: BTreeMap<u64, u64>,
    shapes: Vec<Vec<u64>>,
    max_shapes: Vec<Vec<u64>>,
}

impl Bound {
    /// The extent of each symbol in elements, indexed by [`SymbolId`]; each `1..=MAX_DIM`, or 0 where
    /// [`Program::may_be_zero`].
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The extent of `dim` in elements; `None` for a symbol of another program.
    pub fn dim(&self, dim: Dim) -> Option<u64> {
        match dim {
            Dim::Lit(n) => Some(self.literal(n)),
            Dim::Sym(symbol) => self.sizes.get(symbol.index()).copied(),
        }
    }

    /// What stands in the place of a number of the text: that number, but for [`Program::bind_elsewhere`].
    fn literal(&self, n: u64) -> u64 {
        self.literals.get(&n).copied().unwrap_or(n)
    }

    /// The global shape of `value`, row-major; `None` for a value of another program.
    pub fn shape(&self, value: ValueId) -> Option<&[u64]> {
        self.shapes.get(value.index()).map(Vec::as_slice)
    }

    /// The symbols that each launch gives anew, ascending.
    pub fn runtime(&self) -> &[SymbolId] {
        &self.runtime
    }

    /// Whether launches may differ in `dim`.
    pub fn is_runtime(&self, dim: Dim) -> bool {
        matches!(dim, Dim::Sym(symbol) if self.runtime.contains(&symbol))
    }

    /// The most elements of each symbol, indexed by [`SymbolId`]; each `1..=MAX_DIM`.
    pub fn max_sizes(&self) -> &[u64] {
        &self.max_sizes
    }

    /// The largest extent of `dim` in any launch; `None` for a symbol of another program.
    pub fn max_dim(&self, dim: Dim) -> Option<u64> {
        match dim {
            Dim::Lit(n) => Some(self.literal(n)),
            Dim::Sym(symbol) => self.max_sizes.get(symbol.index()).copied(),
        }
    }

    /// The largest global shape of `value` in any launch, row-major; `None` for a value of another
    /// program.
    pub fn max_shape(&self, value: ValueId) -> Option<&[u64]> {
        self.max_shapes.get(value.index()).map(Vec::as_slice)
    }
}

impl Program {
    /// Gives each symbol a number: from `dims` (symbol name to extent) and from `shapes`
    /// (tensor name to global shape, row-major), both in elements.
    ///
    /// For a runtime symbol that is the extent in one launch; without one it is the symbol's
    /// upper bound. Of a symbol without an upper bound, the number is the bound. [`SymbolKind::Room`] is that of one
    /// rank: see [`Bound::on`].
    ///
    /// # Errors
    ///
    /// All of the reasons why the numbers do not fit: see [`BindError`].
    pub fn bind(
        &self,
        dims: &BTreeMap<String, u64>,
        shapes: &BTreeMap<String, Vec<u64>>,
    ) -> Result<Bound, BindErrors> {
        let mut binder = Binder::new(self, vec![None; self.symbols().len()], BTreeMap::new());
        for (name, &size) in dims {
            binder.dim(name, size);
        }
        for (name, shape) in shapes {
            binder.shape(name, shape);
        }
        binder.finish(None, 1)
    }

    /// The same pipeline at another size, with other numbers in the place of some that its text has, wherever it has
    /// them: for looking at a pipeline beside others of its kind, not for running it.
    ///
    /// # Errors
    /// As [`Program::bind`].
    pub fn bind_elsewhere(
        &self,
        dims: &BTreeMap<String, u64>,
        literals: &BTreeMap<u64, u64>,
    ) -> Result<Bound, BindErrors> {
        let mut binder = Binder::new(self, vec![None; self.symbols().len()], literals.clone());
        for (name, &size) in dims {
            binder.dim(name, size);
        }
        for (number, &size) in literals.iter().filter(|(_, n)| !(1..=MAX_DIM).contains(*n)) {
            let (symbol, from) = (number.to_string(), Given::Elsewhere);
            binder.errors.push(BindError::OutOfRange { symbol, value: size, from });
        }
        binder.finish(None, 1)
    }

    /// The same kernel in another launch: `bound` with other numbers for its runtime symbols
    /// (name to extent). Those that `dims` leaves out keep theirs, and all keep their upper bound.
    ///
    /// # Errors
    ///
    /// [`BindError::UnknownSymbol`], [`BindError::NotRuntime`], [`BindError::OutOfRange`] and
    /// [`BindError::AboveMax`], all at once.
    pub fn rebind(&self, bound: &Bound, dims: &BTreeMap<String, u64>) -> Result<Bound, BindErrors> {
        let kept = bound.sizes.iter().map(|&size| Some((size, Given::Elsewhere)));
        let mut given: Vec<_> = kept.collect();
        bound.room.iter().for_each(|s| given[s.index()] = None);
        given.resize(self.symbols().len(), None);
        let mut binder = Binder::new(self, given, bound.literals.clone());
        for (name, &size) in dims {
            match self.symbol(name) {
                Some(symbol) if !bound.runtime.contains(&symbol) => {
                    // Its own number again is no other launch.
                    if bound.sizes.get(symbol.index()) == Some(&size) {
                        continue;
                    }
                    binder.errors.push(BindError::NotRuntime { symbol: name.clone() });
                }
                Some(symbol) => {
                    binder.given[symbol.index()] = None;
                    binder.dim(name, size);
                }
                None => binder.dim(name, size),
            }
        }
        binder.finish(Some(&bound.max_sizes), bound.ranks)
    }
}

struct Binder<'a> {
    program: &'a Program,
    /// For each symbol, its number and where that came from.
    given: Vec<Option<(u64, Given)>>,
    literals: BTreeMap<u64, u64>,
    errors: Vec<BindError>,
}

impl<'a> Binder<'a> {
    fn new(
        program: &'a Program,
        given: Vec<Option<(u64, Given)>>,
        literals: BTreeMap<u64, u64>,
    ) -> Binder<'a> {
        Binder { program, given, literals, errors: Vec::new() }
    }

    fn dim(&mut self, name: &str, size: u64) {
        match self.program.symbol(name) {
            Some(symbol) => self.set(symbol, size, Given::Dim { name: name.into(), size }),
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
                    let from = Given::Shape { name: name.into(), shape: shape.to_vec() };
                    self.set(symbol, found, from);
                }
                Dim::Lit(expected) if expected != found => {
                    let tensor = name.into();
                    self.errors.push(BindError::Literal { tensor, dim, expected, found });
                }
                Dim::Lit(_) => {}
            }
        }
    }

    fn set(&mut self, symbol: SymbolId, size: u64, from: Given) {
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
                let least = u64::from(!self.program.may_be_zero(symbol));
                if !(least..=MAX_DIM).contains(&size) {
                    let (value, from) = (size, from.clone());
                    self.errors.push(BindError::OutOfRange { symbol: name(), value, from });
                }
                self.given[symbol.index()] = Some((size, from));
            }
        }
    }

    /// Gives blocks their numbers: they follow from those of other symbols.
    fn blocks(&mut self) {
        for (i, symbol) in self.program.symbols().iter().enumerate() {
            let SymbolKind::Blocks(of) = symbol.kind else { continue };
            if let Some((size, _)) = self.given[of.index()] {
                let blocks = size.div_ceil(SCALE_BLOCK);
                let name = self.program.symbols()[of.index()].name.clone();
                self.set(SymbolId::new(i), blocks, Given::Dim { name, size });
            }
        }
    }

    /// The upper bound that the program declares for a symbol.
    fn declared_max(&self, i: usize) -> Option<u64> {
        match self.program.symbols().get(i).map(|s| s.kind) {
            Some(SymbolKind::Runtime { max } | SymbolKind::Own { max }) => max,
            _ => None,
        }
    }

    /// `kept` has the upper bounds of an earlier binding.
    fn finish(mut self, kept: Option<&[u64]>, ranks: u64) -> Result<Bound, BindErrors> {
        self.blocks();
        self.views();
        let room = self.room(kept, ranks);
        let mut missing = Vec::new();
        let mut max_sizes = Vec::new();
        for i in 0..self.given.len() {
            // Room is no bound: other ranks have other room.
            let kept = kept.filter(|_| !room.contains(&SymbolId::new(i)));
            let max = kept.and_then(|max| max.get(i).copied()).or(self.declared_max(i));
            if let (None, Some(max)) = (&self.given[i], max) {
                self.given[i] = Some((max, Given::UpperBound));
            }
            let given = &self.given[i];
            match (given, max) {
                // No bound.
                (Some((0, from)), None) if self.program.may_be_zero(SymbolId::new(i)) => {
                    let (symbol, from) = (self.program.symbols()[i].name.clone(), from.clone());
                    self.errors.push(BindError::OutOfRange { symbol, value: 0, from });
                }
                (Some((size, _)), None) => max_sizes.push(*size),
                // A smaller bound than the declared one: no launch has more.
                (Some((size, _)), Some(_)) if self.program.is_own(Dim::Sym(SymbolId::new(i))) => {
                    max_sizes.push(*size);
                }
                (_, Some(max)) => max_sizes.push(max),
                (None, None) => {}
            }
            if let (Some((value, from)), Some(max)) = (given, max)
                && *value > max
                && *value <= MAX_DIM
            {
                let (symbol, from) = (self.program.symbols()[i].name.clone(), from.clone());
                self.errors.push(BindError::AboveMax { symbol, value: *value, from, max });
            }
            if given.is_none() {
                let (symbol, tensor) = self.source(SymbolId::new(i));
                // One shape may give several symbols: ask for it once.
                if tensor.is_none() || !missing.iter().any(|(_, of)| *of == tensor) {
                    missing.push((symbol, tensor));
                }
            }
        }
        // What a wrong `view` leaves open is nothing to ask for.
        if self.errors.iter().any(|e| matches!(e, BindError::View { .. })) {
            missing.clear();
        }
        self.errors.extend(
            missing.into_iter().map(|(symbol, tensor)| BindError::Unbound { symbol, tensor }),
        );
        if !self.errors.is_empty() {
            return Err(BindErrors(self.errors));
        }
        let sizes = self.given.iter().flatten().map(|(size, _)| *size).collect();
        let runtime = self.program.symbols().iter().enumerate();
        let runtime = runtime.filter(|(_, s)| matches!(s.kind, SymbolKind::Runtime { .. }));
        let runtime = runtime.map(|(i, _)| SymbolId::new(i)).collect();
        let (shapes, max_shapes) = (Vec::new(), Vec::new());
        let literals = std::mem::take(&mut self.literals);
        let mut bound =
            Bound { sizes, max_sizes, runtime, room, ranks, literals, shapes, max_shapes };
        for i in 0..self.program.n_values() {
            let id = ValueId::new(i);
            let dims = self.program.ty(id).map_or(&[][..], |ty| &ty.dims);
            bound.shapes.push(dims.iter().filter_map(|&d| bound.dim(d)).collect());
            let max_shape: Vec<u64> = dims.iter().filter_map(|&d| bound.max_dim(d)).collect();
            if let Some(ty) = self.program.ty(id) {
                self.check_bytes(id, ty, &max_shape);
            }
            bound.max_shapes.push(max_shape);
        }
        if self.errors.is_empty() { Ok(bound) } else { Err(BindErrors(self.errors)) }
    }

    fn check_bytes(&mut self, id: ValueId, ty: &TensorType, shape: &[u64]) {
        let n_bytes = shape.iter().try_fold(ty.dtype.size_bytes(), |n, &d| n.checked_mul(d));
        if n_bytes.is_none_or(|n| n > i64::MAX as u64) {
            let value = match self.program.tensors().get(id.index()) {
                Some(tensor) => format!("`{}`", tensor.name),
                None => format!("value {id}"),
            };
            self.errors.push(BindError::TooManyBytes { value, shape: join(shape) });
        }
    }

    /// The symbol's name, and the tensor whose shape would bind it, with its number of dimensions, if the source does
    /// not write the symbol (`a_1`).
    fn source(&self, symbol: SymbolId) -> (String, Option<(String, usize)>) {
        let name = &self.program.symbols()[symbol.index()].name;
        let mut holders = self.program.tensors().iter();
        let tensor = holders.find(|t| t.ty.dims.contains(&Dim::Sym(symbol))).and_then(|t| {
            let written = name.strip_prefix(t.name.as_str())?.strip_prefix('_')?;
            let dim = written.parse::<usize>().ok()?;
            let is_its = t.ty.dims.get(dim) == Some(&Dim::Sym(symbol));
            is_its.then(|| (t.name.clone(), t.ty.dims.len()))
        });
        (name.clone(), tensor)
    }
}

fn join(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}
