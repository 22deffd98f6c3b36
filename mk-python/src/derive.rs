//! Backward passes as texts, and pipelines cut into kernels, as plain data.

use crate::{errors::Class, options, plan::parse, program};
use mk::{
    cut,
    function::Signature,
    syntax::{
        Dim, Excerpt, Program, SymbolKind, ValueId,
        grad::{Input, Keep, Saves, Source, grad_into},
    },
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList},
};
use std::collections::BTreeMap;

/// The derivative of a pipeline: ``{"forward": text, "backward": text or None, "inputs": [(kind, position), ...],
/// "gradients": [(parameter, kind, position), ...]}``.
///
/// ``forward`` has more results than the pipeline: what is saved. ``inputs`` are the backward's parameters:
/// ``"gradient"`` of a result, ``"parameter"``, ``"saved"`` (a result of ``forward``), ``"ones"``, ``"main"``, the f32
/// matrix that the gradient of a parameter ``into`` is added to. ``gradients`` are of the ``wanted`` parameters:
/// ``"result"`` of the backward, ``"row"`` 0 of one, ``"rows"`` 0 of each matrix of one, or ``"given"``, the gradient
/// of a result as it is.
///
/// Raises PipelineError, or UnsupportedError for a pipeline without a backward.
#[pyfunction]
#[pyo3(name = "_derive", signature = (pipeline, wanted=None, *, gather_again=false, activate_again=false, into=None))]
pub fn derive<'py>(
    py: Python<'py>,
    pipeline: &str,
    wanted: Option<Vec<usize>>,
    gather_again: bool,
    activate_again: bool,
    into: Option<Vec<usize>>,
) -> PyResult<Bound<'py, PyDict>> {
    let program = parse(py, pipeline)?;
    let keep = |again| if again { Keep::Again } else { Keep::Saved };
    let saves = Saves { gathered: keep(gather_again), activations: keep(activate_again) };
    let made = grad_into(&program, wanted.as_deref(), saves, &into.unwrap_or_default())
        .map_err(|e| Class::Unsupported.error(py, e.to_string()))?;
    let inputs = made.inputs.iter().map(|input| match *input {
        Input::Gradient(i) => ("gradient", i),
        Input::Parameter(i) => ("parameter", i),
        Input::Saved(i) => ("saved", i),
        Input::Ones => ("ones", 0),
        Input::Main(i) => ("main", i),
    });
    let gradients = made.gradients.iter().map(|(parameter, source)| match *source {
        Source::Result(i) => (*parameter, "result", i),
        Source::Row(i) => (*parameter, "row", i),
        Source::Rows(i) => (*parameter, "rows", i),
        Source::Given(i) => (*parameter, "given", i),
    });
    let dict = PyDict::new(py);
    dict.set_item("forward", Excerpt::whole(&made.forward).text())?;
    dict.set_item("backward", made.backward.as_ref().map(|b| Excerpt::whole(b).text()))?;
    dict.set_item("inputs", inputs.collect::<Vec<_>>())?;
    dict.set_item("gradients", gradients.collect::<Vec<_>>())?;
    Ok(dict)
}

/// A pipeline cut into kernels, in the order of launches: for each ``{"kernel": bool, "text": text, "inputs": [value,
/// ...], "results": [value, ...], "flat": bool}``, values as ``_describe`` numbers them. What is no kernel is done
/// element by element.
///
/// Raises PipelineError, ArgumentError, UnsupportedError.
#[pyfunction]
#[pyo3(name = "_cut", signature = (pipeline, ranks, *, shapes=None, dims=None, nodes=1))]
pub fn cut_up<'py>(
    py: Python<'py>,
    pipeline: &str,
    ranks: &Bound<'py, PyAny>,
    shapes: Option<&Bound<'py, PyDict>>,
    dims: Option<&Bound<'py, PyDict>>,
    nodes: u32,
) -> PyResult<Bound<'py, PyList>> {
    let program = parse(py, pipeline)?;
    let given = options::sizes(py, shapes, dims)?;
    let argument = |e| crate::errors::argument(py, &e);
    let options::Ranks { ranks, mesh } = options::Ranks::new(ranks)?;
    let signature = Signature::on(program, ranks, &mesh, given).map_err(argument)?;
    let sizes = signature.bind(&Default::default()).map_err(argument)?;
    let steps = py.detach(|| cut::cut_over(signature.program(), &sizes, (ranks, nodes), &mesh));
    let list = PyList::empty(py);
    for step in steps.map_err(|e| Class::Unsupported.error(py, e.to_string()))? {
        let places = |ids: &[ValueId]| ids.iter().map(|id| id.index()).collect::<Vec<_>>();
        let dict = PyDict::new(py);
        dict.set_item("kernel", step.is_kernel)?;
        dict.set_item("text", &step.text)?;
        dict.set_item("inputs", places(&step.inputs))?;
        dict.set_item("results", places(&step.results))?;
        dict.set_item("flat", places(&step.flat))?;
        list.append(dict)?;
    }
    Ok(list)
}

/// A checked pipeline as plain data, without sizes: as ``Plan.program``, with ``dims`` (symbols and numbers) for
/// ``shape``, and ``"name"``, ``"runtime"``, the names of runtime symbols, and ``"text"``, the pipeline as mk writes
/// it.
///
/// Raises PipelineError.
#[pyfunction]
#[pyo3(name = "_describe")]
pub fn describe<'py>(py: Python<'py>, pipeline: &str) -> PyResult<Bound<'py, PyDict>> {
    let checked = parse(py, pipeline)?;
    let dims = |program: &Program, id: ValueId| -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for dim in program.ty(id).map(|t| t.dims.as_slice()).unwrap_or_default() {
            match dim {
                Dim::Lit(n) => list.append(n)?,
                Dim::Sym(s) => list.append(program.symbols().get(s.index()).map(|s| &s.name))?,
            }
        }
        Ok(list)
    };
    let dict = program::values(py, &checked, |id| Ok(("dims", dims(&checked, id)?.into_any())))?;
    let runtime = checked.symbols().iter();
    let runtime = runtime.filter(|s| !matches!(s.kind, SymbolKind::Fixed | SymbolKind::Blocks(_)));
    dict.set_item("name", checked.name())?;
    dict.set_item("runtime", runtime.map(|s| s.name.as_str()).collect::<Vec<_>>())?;
    // Of rows that each rank has its own number of, the most of all ranks together, where the text says it.
    let own = checked.symbols().iter().filter_map(|s| match s.kind {
        SymbolKind::Own { max } => Some((s.name.clone(), max)),
        _ => None,
    });
    dict.set_item("own", own.collect::<BTreeMap<_, _>>())?;
    dict.set_item("text", Excerpt::whole(&checked).text())?;
    Ok(dict)
}
