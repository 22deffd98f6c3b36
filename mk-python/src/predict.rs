//! What the cost model says of a pipeline, without a plan of it.

use crate::{
    errors,
    errors::Class,
    options::{self, Ranks},
    plan::parse,
};
use mk::{
    Bound, Program,
    cost::{DeviceModel, Gpu},
    function::Signature,
    runtime::jit::JitOptions,
    settings::{self, Config},
    tune::{self, Cache},
};
use pyo3::{prelude::*, types::PyDict};

/// The figures that a name stands for: ``h100`` and ``h200`` are those that ship; another is the name of a GPU.
fn figures(py: Python<'_>, gpu: &str) -> PyResult<DeviceModel> {
    let gpu: Gpu = match gpu.to_ascii_lowercase().as_str() {
        "h100" => DeviceModel::h100().gpu.as_str().into(),
        "h200" => DeviceModel::h200().gpu.as_str().into(),
        _ => gpu.into(),
    };
    let cache = Cache::new(&JitOptions::default());
    tune::model_of(&gpu, cache.as_ref()).0.ok_or_else(|| {
        let what = format!(
            "there are no figures of `{}`\n  help: \"h100\" or \"h200\", whose figures ship; `mk probe --install` \
             measures this machine's",
            gpu.name
        );
        Class::Argument.error(py, what)
    })
}

/// Predicted microseconds with the settings that a function would choose, and the settings.
fn best(
    program: &Program,
    bound: &Bound,
    on: &Ranks,
    model: &DeviceModel,
) -> Option<(f64, String)> {
    let Ranks { ranks, mesh } = on.clone();
    let (config, prediction) = match mesh.is_empty() {
        true => tune::choose(program, bound, ranks, model)?,
        false => {
            // Settings are not searched over several axes.
            let config = Config { ranks, mesh, ..Config::default() };
            let prediction = tune::predict(program, bound, &config, model).ok()?;
            (config, prediction)
        }
    };
    let facts = tune::facts_of(program, bound, &config);
    Some((1e3 * prediction.ms(), settings::write(&config, &facts)))
}

/// One kernel's microseconds and settings, or None; and those of each part as a kernel of its own, each None where it
/// has none; no parts where it does not come apart; and the machine of the figures.
#[pyfunction]
#[pyo3(name = "_predict", signature = (pipeline, *, ranks, shapes=None, dims=None, gpu="h200"))]
pub fn predict(
    py: Python<'_>,
    pipeline: &str,
    ranks: &Any<'_>,
    shapes: Option<&pyo3::Bound<'_, PyDict>>,
    dims: Option<&pyo3::Bound<'_, PyDict>>,
    gpu: &str,
) -> PyResult<Predicted> {
    let program = parse(py, pipeline)?;
    let on = Ranks::new(ranks)?;
    let given = options::sizes(py, shapes, dims)?;
    let signature =
        Signature::on(program, on.ranks, &on.mesh, given).map_err(|e| errors::argument(py, &e))?;
    let sizes = signature.bind(&Default::default()).map_err(|e| errors::argument(py, &e))?;
    let model = figures(py, gpu)?;
    Ok(py.detach(|| {
        let program = signature.program();
        let (whole, settings) = match best(program, &sizes, &on, &model) {
            Some((us, settings)) => (Some(us), settings),
            None => (None, String::new()),
        };
        let parts = match on.mesh.is_empty() {
            true => tune::parts(program, &sizes).unwrap_or_default(),
            false => Vec::new(),
        };
        let parts = parts.into_iter().map(|part| {
            let us = best(&part.program, &part.bound, &on, &model).map(|(us, _)| us);
            (part.name, us)
        });
        (whole, settings, parts.collect(), model.gpu.clone())
    }))
}

/// Microseconds and settings of one kernel, microseconds of each part, and the machine.
type Predicted = (Option<f64>, String, Vec<(String, Option<f64>)>, String);
type Any<'py> = pyo3::Bound<'py, PyAny>;
