//! The parts of a pipeline, measured as pipelines of their own.

use super::{
    args::Args,
    best::{fit, store},
};
use crate::{failure::Result, output::say, progress::Progress, terminal::note_on_stderr};
use mk::{
    Bound, Program,
    cost::DeviceModel,
    runtime::{World, jit::JitOptions},
    tune::{self, Indivisible, Part, Times, Trial},
};
use mk_harness::{Case, gpu};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Measures candidates of each part, keeps the best, and says whether functions will be one kernel, of which the best
/// takes `fused_ms`. Nothing for what does not come apart.
pub fn measure(
    args: &Args,
    program: &Program,
    bound: &Bound,
    world: &World,
    model: &DeviceModel,
    fused_ms: Option<f64>,
) -> Result<Option<Value>> {
    let parts = match tune::parts(program, bound) {
        Ok(parts) => parts,
        Err(Indivisible::Single) => return Ok(None),
        Err(why) => {
            say!("  it does not come apart: {why}\n")?;
            return Ok(None);
        }
    };
    let (mut times, mut list) = (Vec::new(), Vec::new());
    for part in &parts {
        let Some(trial) = best(args, part, world, model)? else {
            say!("  it does not come apart: `{}` could not be measured by itself\n", part.name)?;
            return Ok(None);
        };
        let measured_ms = trial.ms().map(f64::from);
        let facts = tune::facts(&part.program, &part.bound, world.size());
        let config = mk::settings::write(&trial.config, &facts);
        let ms = measured_ms.unwrap_or(f64::NAN);
        say!("  {ms:>9.4}  {:<24}  {config}", part.name)?;
        list.push(json!({ "part": part.name, "config": config, "median_ms": ms }));
        times.push(Times { measured_ms, predicted_ms: None });
    }
    let fused = Times { measured_ms: fused_ms, predicted_ms: None };
    let verdict = tune::verdict(Some(fused), Some(&times), world.size());
    say!("  {verdict}\n")?;
    Ok(Some(json!({ "parts": list, "verdict": verdict.to_string() })))
}

/// The best candidate of a part, where one could be measured.
fn best(args: &Args, part: &Part, world: &World, model: &DeviceModel) -> Result<Option<Trial>> {
    let (program, bound, ranks) = (&part.program, &part.bound, world.size());
    let mut configs = tune::candidates(program, bound, ranks, &BTreeMap::new());
    fit(&mut configs, world);
    if let Some(top) = args.top {
        let progress =
            Progress::of(format!("predicting candidates of {}", part.name), configs.len());
        let predicted = tune::predict_each(program, bound, &configs, model, &|| progress.tick());
        drop(progress);
        let ms = predicted.into_iter().map(|p| p.map_or(f64::INFINITY, |p| p.ms()));
        let all: Vec<_> = configs.into_iter().zip(ms).collect();
        let places = tune::worth_measuring(&all, top as usize);
        configs = places.into_iter().map(|i| all[i].0.clone()).collect();
    }
    let _progress =
        Progress::new(format!("measuring {} candidates of {}", configs.len(), part.name));
    let case = Case { program, bound, ranks: ranks as usize };
    let trials = match gpu::measure(
        world,
        case,
        &configs,
        &JitOptions::default(),
        &args.limits(),
        args.seed,
    ) {
        Ok(trials) => trials,
        // The pipeline itself has been measured.
        Err(error) => {
            note_on_stderr(format!("{}: {error}", part.name));
            return Ok(None);
        }
    };
    if !world.shares_gpus() {
        store(world, case, &trials)?;
    }
    Ok(trials.into_iter().find(|t| t.ms().is_some()))
}
