//! `mk explain`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::{say, write_file},
    pipeline::{self, Pipeline},
    tune::model,
};
use mk::{
    Bound, Program, build,
    cost::{DeviceModel, Prediction},
    emit::Options,
    passes::Config,
    runtime::jit::JitOptions,
    trace,
    tune::{self, Cache, Facts, Key, Made, Times, Whole, Why, Winner},
};
use std::path::PathBuf;

/// Options of `mk explain`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Figures of the machine, as `mk probe` writes them [default: those of this GPU, or of an H200]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Where to write the predicted timeline as a picture [default: nowhere]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Tasks of the critical chain that are printed
    #[arg(long, default_value_t = 8, value_name = "N")]
    chain: usize,
}

/// How many other candidates are printed.
const OTHERS: usize = 5;

/// Says what is predicted, and why.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = model(args.model.as_deref())?;
    let pipeline = pipeline::bind(&args.pipeline)?;
    let Pipeline { program, bound } = &pipeline;
    let given = pipeline::config(&args.pipeline)?;
    let facts = Facts::new(program, bound, given.ranks);
    let winner = recall(program, bound, &given, &model);
    let default = Config { ranks: given.ranks, ..Config::default() };
    let (config, why) = match &winner {
        _ if given != default => (given.clone(), "as the options say"),
        Some(w) => (w.config.clone(), "measured by `mk tune` to be the best"),
        None => match tune::choose(program, bound, given.ranks, &model) {
            Some((config, _)) => (config, "the best by prediction; `mk tune` would measure"),
            None => (default, "the default"),
        },
    };
    let p = tune::predict(program, bound, &config, &model).map_err(Failure::new)?;
    say!("machine    {} ranks of {} ({})", given.ranks, model.gpu, model.measured)?;
    say!("settings   {}", tune::write(&config, &facts))?;
    say!("           {why}")?;
    let measured = winner.filter(|w| w.config == config).map(|w| w.ms);
    match measured {
        Some(ms) => {
            say!("time       {:.1} us predicted, {:.1} us measured", 1e3 * p.ms(), 1e3 * ms)?
        }
        None => say!("time       {:.1} us predicted, not measured", 1e3 * p.ms())?,
    }
    bounds(&p, args.chain)?;
    if let Some(path) = &args.svg {
        let planned = build::plan_with(program, bound, &config, Options { trace: true })
            .map_err(Failure::new)?;
        let timeline = tune::timeline(&planned.plan, &planned.source, &p);
        let picture = timeline.map(|t| trace::svg(&t, None)).unwrap_or_default();
        write_file(path, picture.as_bytes())?;
        say!("{}", path.display())?;
    }
    others(program, bound, &config, &facts, &model)?;
    let times = Times { measured_ms: measured, predicted_ms: Some(p.ms()) };
    unfused(program, bound, &given, &model, times)
}

fn recall(program: &Program, bound: &Bound, given: &Config, model: &DeviceModel) -> Option<Winner> {
    let cache = Cache::new(&JitOptions::default())?;
    let key = Key::new(program, bound, given.ranks, &given.target, &model.gpu);
    cache.recall(&key).unwrap_or_else(|damaged| {
        pipeline::note_on_stderr(damaged);
        None
    })
}

fn bounds(p: &Prediction, chain: usize) -> Result<(), Failure> {
    say!("bound by   {}: of the chain of tasks that the end waits for,", p.bound)?;
    let shares = p.shares.iter().filter(|(_, s)| *s > 0.0005 * p.total_s);
    for (what, s) in shares {
        let percent = 100.0 * s / p.total_s;
        say!("           {percent:>5.1} %  {:>9.1} us  {what}", 1e6 * s)?;
    }
    say!("roles")?;
    for r in &p.roles {
        say!(
            "           {:<12} {:>3} CTAs: {:.1} us at work, {:.1} us waiting, {:.1} us done before the end",
            r.role,
            r.ctas,
            1e6 * r.busy_s,
            1e6 * r.wait_s,
            1e6 * r.idle_s
        )?;
    }
    if chain > 0 {
        say!("chain, from its end")?;
    }
    for c in p.chain.iter().take(chain) {
        say!(
            "           {:>8.1} to {:>8.1} us  rank {} CTA {:<3}  {} {}{}",
            1e6 * c.begin_s,
            1e6 * c.end_s,
            c.rank,
            c.cta,
            c.family,
            c.task,
            if c.by_post { ", when its data had come" } else { "" }
        )?;
    }
    Ok(())
}

/// Neighbours of the config: what one setting changes.
fn others(
    program: &Program,
    bound: &Bound,
    config: &Config,
    facts: &Facts,
    model: &DeviceModel,
) -> Result<(), Failure> {
    let mut configs = Vec::new();
    for (knob, values) in tune::choices(facts, &Default::default()) {
        for value in values {
            let mut other = config.clone();
            if (knob.set)(&mut other, &value).is_some() && other != *config {
                configs.push(other);
            }
        }
    }
    let predicted = tune::predict_all(program, bound, &configs, model);
    let mut list: Vec<_> =
        configs.iter().zip(predicted).filter_map(|(c, p)| Some((c, p.ok()?.ms()))).collect();
    list.sort_by(|a, b| a.1.total_cmp(&b.1));
    if !list.is_empty() {
        say!("other settings")?;
    }
    for (config, ms) in list.into_iter().take(OTHERS) {
        say!("           {:>8.1} us predicted  {}", 1e3 * ms, tune::write(config, facts))?;
    }
    Ok(())
}

/// The same as one kernel for each operation, and which of the two functions take.
fn unfused(
    program: &Program,
    bound: &Bound,
    given: &Config,
    model: &DeviceModel,
    fused: Times,
) -> Result<(), Failure> {
    let parts = match tune::parts(program, bound) {
        Ok(parts) => parts,
        Err(Whole::Single) => return Ok(()),
        Err(why) => return say!("apart      it does not come apart: {why}"),
    };
    let mut times = Vec::new();
    for part in &parts {
        let (program, bound) = (&part.program, &part.bound);
        let Some((_, p)) = tune::choose(program, bound, given.ranks, model) else {
            return say!("apart      no prediction: `{}` has no kernel by itself", part.name);
        };
        let measured_ms = recall(program, bound, given, model).map(|w| w.ms);
        times.push(Times { measured_ms, predicted_ms: Some(p.ms()) });
    }
    let verdict = tune::verdict(Some(fused), Some(&times));
    let ms = |t: &Times| match verdict.why {
        Why::Measured => t.measured_ms,
        _ => t.predicted_ms,
    };
    let (Some(one), Some(sum)) = (verdict.fused_ms, verdict.apart_ms) else { return Ok(()) };
    let list = parts.iter().zip(times.iter().filter_map(ms));
    let list: Vec<_> = list.map(|(p, ms)| format!("{} {:.1} us", p.name, 1e3 * ms)).collect();
    say!("apart      {}: {:.1} us together, {}", list.join(", "), 1e3 * sum, verdict.why)?;
    match verdict.made {
        Made::Fused if sum >= one => {
            say!("verdict    one kernel is {:.2} times as fast as separate ones", sum / one)
        }
        Made::Fused => say!(
            "verdict    separate kernels would be {:.2} times as fast, which is within the model's error: one kernel",
            one / sum
        ),
        Made::Apart => {
            let default = Config { ranks: given.ranks, ..Config::default() };
            let then = match *given == default {
                true => "functions launch those",
                false => "functions do not, with these settings given",
            };
            say!(
                "verdict    separate kernels are {:.2} times as fast as this one: {then}",
                one / sum
            )
        }
    }
}
