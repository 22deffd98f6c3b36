//! A function explained, and compared with the same operations by torch. What is measured is in `python/mk/_explain.py`.

use crate::{
    errors::{self, Class},
    function::{Function, shapes},
    plan::Plan,
    tensor::Torch,
    world::Place,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};

/// See ``Function.explain``.
pub fn explain<'py>(
    function: &Bound<'py, Function>,
    args: &Bound<'py, PyTuple>,
    rounds: u32,
    tolerance: f64,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, this) = (function.py(), function.get());
    if rounds == 0 {
        return Err(Class::Argument.error(py, "rounds is 0, and must be at least 1"));
    }
    if !(tolerance > 0.0 && tolerance < 1.0) {
        let what = format!("tolerance is {tolerance}, and must be between 0 and 1");
        return Err(Class::Argument.error(py, what));
    }
    let given = this.arguments(py, args, kwargs)?;
    let local = this.place().local();
    let [tensors] = given.as_slice() else {
        let what = format!(
            "this process has {} ranks, and torch.distributed has one a process: there is nothing to compare with\n  help: run a \
             process per GPU, under torchrun, with World.from_torch(); Plan.explain() explains without measuring",
            local.len()
        );
        return Err(Class::Unsupported.error(py, what));
    };
    let torch = Torch::get(py)?;
    let calls = this.read(py, torch, &given)?;
    let shapes = shapes(&calls);
    let sizes = this.signature.infer(local.start, &shapes);
    let sizes = sizes.map_err(|e| errors::argument(py, &e))?;
    if let Place::Gpus(_) = this.place()
        && torch.is_capturing(py)?
    {
        let what =
            "the stream is being captured, and times are not: explain outside of torch.cuda.graph";
        return Err(Class::Error.error(py, what));
    }
    let (made, text) = this.with(py, |function| {
        let which = function.specialise(&shapes)?;
        let text = function.explain(which, &sizes)?;
        Ok((function.composition(which).cloned(), text))
    })?;
    let made = made.ok_or_else(|| Class::Error.error(py, "nothing was bound"))?;
    let plan = Plan::new(this.signature.clone(), sizes, made, this.gpu());
    let arguments = (function, plan, text, PyList::new(py, tensors)?, local.start);
    let keywords = PyDict::new(py);
    keywords.set_item("rounds", rounds)?;
    keywords.set_item("tolerance", tolerance)?;
    py.import("mk._explain")?.getattr("compare")?.call(arguments, Some(&keywords))
}
