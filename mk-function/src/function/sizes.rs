//! Global sizes from the shapes of the tensors that a rank holds.

use crate::{error::ArgumentError, layout::Layout};
use mk_abi::DType;
use mk_syntax::{Bound, Dim, MAX_DIM, Program, SymbolId, SymbolKind, Tensor, ValueId};
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, ArgumentError>;

/// Global sizes, in elements. What is not given follows from the tensors of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Extents of symbols.
    pub dims: BTreeMap<String, u64>,
    /// Global shapes of tensors, row-major.
    pub shapes: BTreeMap<String, Vec<u64>>,
}

/// A pipeline on a number of ranks: says which tensors a rank must bring, and which global sizes follow from them.
#[derive(Clone, Debug)]
pub struct Signature {
    program: Program,
    ranks: u32,
    /// Of each of the pipeline's axes its ranks, and how far apart they are in the world.
    axes: Vec<(u32, u32)>,
    given: Sizes,
}

/// What to do where sizes that were given contradict each other.
const GLOBAL: &str = "give it one number: given shapes are global, of all ranks together";

/// What to do where a rank's tensors contradict each other, or what was given.
const LOCAL: &str = "the shapes are those of one rank's tensors; if shards are uneven, give the global shape when \
    compiling";

/// A number of a symbol, and where it comes from.
type Found = Option<(u64, String)>;

impl Signature {
    /// A pipeline on `ranks` ranks, with the sizes that are known already.
    ///
    /// # Errors
    /// [`ArgumentError`] for no or too many ranks, a pipeline over several axes, unknown names, and sizes that
    /// contradict each other.
    pub fn new(program: Program, ranks: u32, given: Sizes) -> Result<Signature> {
        Signature::on(program, ranks, &[], given)
    }

    /// The same on a mesh of `ranks` ranks, axes by name, the last one fastest; without axes, on ranks in a row.
    ///
    /// # Errors
    /// As [`Signature::new`]; [`ArgumentError::Mesh`] for a mesh of other ranks, [`ArgumentError::Axis`] for a pipeline
    /// over an axis that the mesh lacks.
    pub fn on(
        program: Program,
        ranks: u32,
        mesh: &[(String, u32)],
        given: Sizes,
    ) -> Result<Signature> {
        let most = mk_abi::device::MAX_RANKS as u32;
        if !(1..=most).contains(&ranks) {
            return Err(ArgumentError::Ranks { ranks, most });
        }
        let axes = along(program.mesh_axes(), ranks, mesh)?;
        let this = Signature { program, ranks, axes, given };
        this.known()?;
        Ok(this)
    }

    /// The pipeline.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Ranks along each of the pipeline's axes, and the place of one of them.
    pub fn along(&self, rank: u32) -> impl Iterator<Item = (u32, u32)> {
        self.axes.iter().map(move |&(size, stride)| (size, rank / stride % size))
    }

    /// The names of the parameters, for messages.
    pub fn parameters(&self) -> String {
        let names = self.program.tensors().iter().map(|t| format!("`{}`", t.name));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The sizes, from those given and `more`, without tensors.
    ///
    /// # Errors
    /// [`ArgumentError`] for names and numbers that do not fit; [`ArgumentError::Bind`] when some are missing.
    pub fn bind(&self, more: &Sizes) -> Result<Bound> {
        let mut given = self.given.clone();
        given.dims.extend(more.dims.clone());
        given.shapes.extend(more.shapes.clone());
        let whole = Signature { given, ..self.clone() };
        let found = whole.known()?;
        self.finish(&found)
    }

    /// The sizes, from those given and the shapes of tensors: `shapes[i]` are the local shapes of rank `first + i`, in
    /// the order of the parameters. A sharded dimension without a given size is the local one times the ranks that
    /// share it.
    ///
    /// # Errors
    /// [`ArgumentError`] names the tensor, and what would fit.
    pub fn infer<S: AsRef<[u64]>>(&self, first: u32, shapes: &[Vec<S>]) -> Result<Bound> {
        let tensors = self.program.tensors();
        for local in shapes {
            self.count(local.len())?;
            for (tensor, shape) in tensors.iter().zip(local) {
                dimensions(tensor, shape.as_ref())?;
            }
        }
        let mut found = self.known()?;
        let given: Vec<bool> = found.iter().map(Option::is_some).collect();
        for (tensor, shape) in tensors.iter().zip(shapes.first().into_iter().flatten()) {
            for (d, (dim, local)) in tensor.ty.dims.iter().zip(shape.as_ref()).enumerate() {
                let Dim::Sym(symbol) = *dim else { continue };
                // A rank's own rows say nothing of the others'.
                if self.program.is_own(*dim) {
                    continue;
                }
                // What was said beats what can be guessed; `fits` compares.
                if given.get(symbol.index()).copied().unwrap_or(true) {
                    continue;
                }
                let shape = shape.as_ref();
                let cuts = tensor.ty.placement.iter().zip(&self.axes);
                let parts: u32 =
                    cuts.filter(|(p, _)| p.cut() == Some(d)).map(|(_, (size, _))| size).product();
                let cut = tensor.ty.placement.iter().any(|p| p.cut() == Some(d));
                let (name, size) = (&tensor.name, local.saturating_mul(parts.into()));
                let from = match cut {
                    true => format!("dimension {d} of `{name}`, {parts} times that of {shape:?}"),
                    false => format!("dimension {d} of `{name}`, which is {shape:?}"),
                };
                self.set(&mut found, symbol, size, from, LOCAL)?;
            }
        }
        let bound = self.finish(&found)?;
        for (rank, local) in (first..).zip(shapes) {
            let own = self.own_rows(local);
            for (tensor, shape) in tensors.iter().zip(local) {
                self.fits(&bound, tensor, (rank, own), shape.as_ref())?;
            }
        }
        Ok(bound)
    }

    /// The local shape of a value.
    pub fn local_shape(&self, bound: &Bound, value: ValueId, rank: u32) -> Vec<u64> {
        let placement = self.program.ty(value).map_or(&[][..], |ty| &ty.placement);
        let global = bound.shape(value).unwrap_or(&[]);
        let sizes: Vec<usize> = self.axes.iter().map(|(size, _)| *size as usize).collect();
        let place = self.along(rank).fold(0, |place, (size, at)| place * size + at);
        Layout::over(global, placement, &sizes, place as usize).shape()
    }

    /// The rows of a rank's tensors that have its own number of them, by the shapes of its tensors.
    pub fn own_rows<S: AsRef<[u64]>>(&self, shapes: &[S]) -> Option<u64> {
        let mut given = self.program.tensors().iter().zip(shapes);
        given.find_map(|(t, shape)| {
            t.ty.dims.first().filter(|dim| self.program.is_own(**dim))?;
            shape.as_ref().first().copied()
        })
    }

    /// A local shape, of so many rows where ranks have their own number of them.
    pub fn of_own(&self, value: ValueId, mut shape: Vec<u64>, own: Option<u64>) -> Vec<u64> {
        let dim = self.program.ty(value).and_then(|ty| ty.dims.first());
        let counted = dim.is_some_and(|dim| self.program.is_own(*dim));
        if let (true, Some(own), Some(rows)) = (counted, own, shape.first_mut()) {
            *rows = own;
        }
        shape
    }

    /// Element type and local shape of each result on a rank: of the most rows, where it has its own number of them.
    pub fn results(&self, bound: &Bound, rank: u32) -> Vec<(DType, Vec<u64>)> {
        let all = self.program.results().iter();
        let typed = all.filter_map(|id| Some((*id, self.program.ty(*id)?.dtype)));
        let local = |(id, dtype)| (dtype, self.local_shape(bound, id, rank));
        typed.map(local).collect()
    }

    /// Checks the number of tensors of a rank.
    ///
    /// # Errors
    /// [`ArgumentError::Count`].
    pub fn count(&self, given: usize) -> Result<()> {
        let expected = self.program.tensors().len();
        if given == expected {
            return Ok(());
        }
        Err(ArgumentError::Count { what: "tensors", given, expected, names: self.parameters() })
    }

    /// Checks the element type of parameter `i`.
    ///
    /// # Errors
    /// [`ArgumentError::DType`].
    pub fn check_dtype(&self, i: usize, given: DType) -> Result<()> {
        let Some(tensor) = self.program.tensors().get(i) else { return Ok(()) };
        let expected = tensor.ty.dtype;
        if expected == given {
            return Ok(());
        }
        let (place, name) = (self.placed(tensor), &tensor.name);
        let help = match given {
            // GEMMs have no f32 operands.
            DType::F32 => "convert it".to_string(),
            _ => format!(
                "convert it, or write the pipeline as an item that says `{name}: {given}[..] @ {place}`"
            ),
        };
        Err(ArgumentError::DType { tensor: tensor.name.clone(), expected, given, help })
    }

    /// Checks the numbers that a rank holds of parameter `i`: of integers, those that the executor's f32 hold exactly.
    ///
    /// # Errors
    /// [`ArgumentError::Integer`] for the first other one.
    pub fn check_integers(
        &self,
        i: usize,
        rank: u32,
        values: impl IntoIterator<Item = f64>,
    ) -> Result<()> {
        let Some(tensor) = self.program.tensors().get(i) else { return Ok(()) };
        let dtype = tensor.ty.dtype;
        if !dtype.is_integer() {
            return Ok(());
        }
        let whole = |x: f64| x.fract() == 0.0 && x.abs() <= f64::from(1 << f32::MANTISSA_DIGITS);
        match values.into_iter().enumerate().find(|(_, x)| !whole(*x)) {
            None => Ok(()),
            Some((at, value)) => {
                let (tensor, value) = (tensor.name.clone(), value.to_string());
                Err(ArgumentError::Integer { tensor, dtype, rank, at, value })
            }
        }
    }

    /// What the given sizes say of each symbol.
    fn known(&self) -> Result<Vec<Found>> {
        let program = &self.program;
        let mut found = vec![None; program.symbols().len()];
        for (name, size) in &self.given.dims {
            let Some(symbol) = program.symbol(name) else {
                let all = program.symbols().iter().map(|s| s.name.as_str());
                return Err(unknown("symbol", name, all));
            };
            self.set(&mut found, symbol, *size, "its given size".into(), GLOBAL)?;
        }
        for (name, shape) in &self.given.shapes {
            let Some(tensor) = program.tensor(name) else {
                let all = program.tensors().iter().map(|t| t.name.as_str());
                return Err(unknown("tensor", name, all));
            };
            dimensions(tensor, shape)?;
            for (dim, size) in tensor.ty.dims.iter().zip(shape) {
                if let Dim::Sym(symbol) = *dim {
                    let from = format!("the given shape of `{name}`, {shape:?}");
                    self.set(&mut found, symbol, *size, from, GLOBAL)?;
                }
            }
        }
        Ok(found)
    }

    fn set(
        &self,
        found: &mut [Found],
        symbol: SymbolId,
        size: u64,
        from: String,
        help: &str,
    ) -> Result<()> {
        let Some(slot) = found.get_mut(symbol.index()) else { return Ok(()) };
        match slot {
            None => *slot = Some((size, from)),
            Some((first, _)) if *first == size => {}
            Some((first, first_from)) => {
                let name = self.program.symbols().get(symbol.index());
                return Err(ArgumentError::Conflict {
                    symbol: name.map(|s| s.name.clone()).unwrap_or_default(),
                    first: *first,
                    first_from: first_from.clone(),
                    second: size,
                    second_from: from,
                    help: help.into(),
                });
            }
        }
        Ok(())
    }

    fn finish(&self, found: &[Found]) -> Result<Bound> {
        let symbols = self.program.symbols().iter().zip(found);
        for (i, (symbol, found)) in symbols.clone().enumerate() {
            let Some((value, from)) = found else { continue };
            let may_be_zero = self.program.may_be_zero(SymbolId::new(i));
            let (declared, most) = match symbol.kind {
                SymbolKind::Runtime { max: Some(max) } => (true, max.min(MAX_DIM)),
                _ => (false, MAX_DIM),
            };
            let (value, symbol, from) = (*value, symbol.name.clone(), from.clone());
            if value == 0 && !may_be_zero {
                return Err(ArgumentError::Empty { symbol, from });
            }
            // Here, where it is known whence a number came.
            if value > most {
                return Err(ArgumentError::TooLarge { symbol, value, from, most, declared });
            }
        }
        let dims = symbols.filter_map(|(s, f)| Some((s.name.clone(), f.as_ref()?.0))).collect();
        let bound = self.program.bind(&dims, &BTreeMap::new());
        bound
            .and_then(|bound| bound.on(&self.program, self.sharing_experts()))
            .map_err(ArgumentError::Bind)
    }

    fn fits(
        &self,
        bound: &Bound,
        tensor: &Tensor,
        (rank, own): (u32, Option<u64>),
        given: &[u64],
    ) -> Result<()> {
        let most = self.local_shape(bound, tensor.id, rank);
        let own = own.filter(|own| most.first().is_some_and(|most| own <= most));
        let expected = self.of_own(tensor.id, most, own);
        if expected == given {
            return Ok(());
        }
        let shape = bound.shape(tensor.id).unwrap_or(&[]);
        Err(ArgumentError::Shape {
            tensor: tensor.name.clone(),
            rank,
            given: given.to_vec(),
            expected,
            global: format!("{shape:?} @ {} over {}", self.placed(tensor), self.over()),
            sharded: tensor.ty.placement.iter().any(|p| p.cut().is_some()),
        })
    }

    /// The ranks that compute together.
    fn in_group(&self) -> u32 {
        self.axes.iter().map(|(size, _)| size).product()
    }

    /// Those of them that share experts.
    fn sharing_experts(&self) -> u32 {
        let along = self.program.axis_of_experts().and_then(|axis| self.axes.get(axis));
        along.map_or_else(|| self.in_group(), |(size, _)| *size)
    }

    /// They, as messages write them.
    fn over(&self) -> String {
        match self.axes.as_slice() {
            [_] => mk_abi::count(self.in_group(), "rank"),
            axes => {
                let named = self.program.mesh_axes().iter().zip(axes);
                written(named.map(|(name, (size, _))| (name.as_str(), *size)))
            }
        }
    }

    /// The placement, as pipelines write it.
    pub(super) fn placed(&self, tensor: &Tensor) -> String {
        let ty = self.program.show_type(&tensor.ty);
        ty.split_once(" @ ").map_or_else(String::new, |(_, placement)| placement.to_string())
    }
}

/// `tp=4,dp=2`.
fn written<'a>(axes: impl Iterator<Item = (&'a str, u32)>) -> String {
    axes.map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",")
}

/// Of each axis the ranks along it, and how far apart they are.
fn along(axes: &[String], ranks: u32, mesh: &[(String, u32)]) -> Result<Vec<(u32, u32)>> {
    if mesh.is_empty() {
        return match axes {
            [_] => Ok(vec![(ranks, 1)]),
            _ => Err(ArgumentError::Axes { axes: axes.join("`, `") }),
        };
    }
    let shown = || written(mesh.iter().map(|(name, size)| (name.as_str(), *size)));
    let size = mesh.iter().try_fold(1u32, |n, (_, size)| n.checked_mul(*size));
    if size != Some(ranks) {
        return Err(ArgumentError::Mesh { mesh: shown(), ranks });
    }
    let of = |axis: &String| {
        let at = mesh.iter().position(|(name, _)| name == axis)?;
        let (inner, (_, size)) = (mesh.iter().skip(at + 1), mesh.get(at)?);
        Some((*size, inner.map(|(_, size)| size).product()))
    };
    let found = |axis: &String| {
        of(axis).ok_or_else(|| ArgumentError::Axis { axis: axis.clone(), mesh: shown() })
    };
    axes.iter().map(found).collect()
}

fn dimensions(tensor: &Tensor, shape: &[u64]) -> Result<()> {
    let expected = tensor.ty.dims.len();
    if expected == shape.len() {
        return Ok(());
    }
    Err(ArgumentError::Dimensions { tensor: tensor.name.clone(), expected, given: shape.to_vec() })
}

fn unknown<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> ArgumentError {
    let known: Vec<String> = known.map(|n| format!("`{n}`")).collect();
    let help = match known.is_empty() {
        true => format!("it has no {what}s"),
        false => format!("its {what}s are {}", known.join(", ")),
    };
    ArgumentError::Unknown { what, name: name.into(), help }
}
