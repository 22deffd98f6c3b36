//! `mk tune`.

mod apart;
mod args;
mod best;
pub mod list;
mod report;

pub use args::Args;

use crate::{
    failure::{Failure, Kind, Result},
    options::{PipelineArgs, once},
    output::{say, writable, write_file},
    pipeline::{self, Pipeline},
    progress::Progress,
    source::{self, STDIN},
    terminal::{note_on_stderr, say_on_stderr},
};
use args::Device;
use best::{fit, store, winner};
use list::Line;
use mk::{
    cost::DeviceModel,
    runtime::{World, jit::JitOptions},
    settings::{self, Config},
    tune::{self, Cache, Trial},
};
use mk_harness::{Case, gpu};
use report::{Entry, Errors, Measured};
use serde_json::{Value, json};
use std::collections::{BTreeMap, btree_map};
use std::time::Instant;

/// What is asked for one pipeline.
struct Row {
    line: Line,
    /// Candidates with their times, where they were measured before.
    known: Option<Vec<Entry>>,
}

/// Measures candidates and says which is best, and whether the pipeline is faster apart.
pub fn run(args: &Args) -> Result<()> {
    // A search takes minutes: that its result can be written is certain before.
    args.json.as_deref().map_or(Ok(()), writable)?;
    let model = model(args.model.as_deref())?;
    let rows = rows(args)?;
    if args.gpus.given() && (args.from.is_some() || args.device == Device::Model) {
        let what = "`--gpus` says where times are measured, and here they are predicted";
        return Err(Failure::usage(what, "leave the option out"));
    }
    let mut worlds: BTreeMap<u32, World> = BTreeMap::new();
    let (mut failed, mut report, mut errors) = (0, Vec::new(), Errors::default());
    for row in &rows {
        match one(args, row, &model, &mut worlds, &mut errors) {
            Ok(value) => {
                report.push(value);
                // A later row may end the process, so a file is written after each. A pipe gets the report once, at the
                // end.
                if let Some(path) =
                    args.json.as_deref().filter(|path| !path.exists() || path.is_file())
                {
                    write_report(path, &report)?;
                }
            }
            Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
            Err(failure) if rows.len() == 1 => return Err(failure),
            Err(failure) => {
                let line = describe(&row.line.pipeline, row.line.pipeline.ranks());
                say_on_stderr(format_args!("{line}\n{}", failure.text()));
                failed += 1;
            }
        }
    }
    errors.say()?;
    if let Some(path) = &args.json {
        write_report(path, &report)?;
    }
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(
            Kind::Run,
            format!("{n} of {} pipelines could not be tuned", rows.len()),
        )),
    }
}

fn write_report(path: &std::path::Path, rows: &[Value]) -> Result<()> {
    let text = serde_json::to_string_pretty(rows).map_err(|e| Failure::new(Kind::Internal, e))?;
    write_file(path, text.as_bytes())
}

/// Most combinations of settings, before those are left out that others make void: all are held in memory.
const MAX_COMBINATIONS: u64 = 1 << 23;

/// The figures of a file; else those installed for this machine's GPU, or those that ship with mk.
pub fn model(path: Option<&std::path::Path>) -> Result<DeviceModel> {
    let Some(path) = path else {
        let cache = Cache::new(&JitOptions::default());
        let (model, note) = tune::model_of(&pipeline::gpu(), cache.as_ref());
        if let Some(note) = note {
            note_on_stderr(note);
        }
        return Ok(model.unwrap_or_else(|| DeviceModel::h200().clone()));
    };
    let text = source::read(path)?;
    DeviceModel::parse(&text)
        .map_err(|e| Failure::new(Kind::File, format!("{}: {e}", path.display())))
}

/// The pipelines asked for.
fn rows(args: &Args) -> Result<Vec<Row>> {
    let new = |line| Row { line, known: None };
    if let Some(path) = &args.from {
        return known(path);
    }
    match (&args.list, &args.pipeline) {
        (Some(path), _) => {
            let lines = list::read(path)?;
            if lines.is_empty() {
                return Err(Failure::new(
                    Kind::CommandLine,
                    format!("{} names no pipeline", path.display()),
                ));
            }
            Ok(lines.into_iter().map(new).collect())
        }
        (None, Some(pipeline)) => {
            Ok(vec![new(Line { pipeline: pipeline.clone(), tries: Vec::new() })])
        }
        (None, None) => {
            Err(Failure::usage("there is no pipeline to tune", "give one, or --list FILE"))
        }
    }
}

/// Every candidate that was measured in a file that `--json` wrote, with its median in milliseconds.
pub fn measured(path: &std::path::Path) -> Result<Vec<(PipelineArgs, Config, f64)>> {
    let mut out = Vec::new();
    for row in known(path)? {
        let ranks = pipeline::config(&row.line.pipeline)?.ranks;
        for entry in row.known.iter().flatten() {
            let Some(Measured { median_ms, .. }) = entry.measured else { continue };
            let config = tune::read(&entry.config, ranks).map_err(|w| {
                Failure::new(Kind::File, format!("{}: `{w}` is no setting", path.display()))
            })?;
            out.push((row.line.pipeline.clone(), config, median_ms));
        }
    }
    Ok(out)
}

/// The pipelines of a file that `--json` wrote.
fn known(path: &std::path::Path) -> Result<Vec<Row>> {
    let failed = |what: String| Failure::new(Kind::File, format!("{}: {what}", path.display()));
    let text = source::read(path)?;
    let value: Value = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
    let row = |value: &Value| {
        let line = list::parse(value.get("pipeline")?.as_str()?).ok()??;
        let trials = value.get("trials")?.as_array()?.iter();
        Some(Row { line, known: Some(trials.map(Entry::from_json).collect::<Option<_>>()?) })
    };
    let rows: Option<Vec<Row>> = value.as_array().and_then(|a| a.iter().map(row).collect());
    rows.ok_or_else(|| failed("it is not what `mk tune --json` writes".into()))
}

fn one(
    args: &Args,
    row: &Row,
    model: &DeviceModel,
    worlds: &mut BTreeMap<u32, World>,
    errors: &mut Errors,
) -> Result<Value> {
    let line = args.gpus.ranked(&row.line.pipeline)?;
    pipeline::unmeasured(&line)?;
    let Pipeline { program, bound } = pipeline::bind(&line)?;
    let config = pipeline::config(&line)?;
    let ranks = config.ranks;
    let facts = tune::facts(&program, &bound, ranks);
    let begin = Instant::now();
    let only = only(args, &row.line, &config)?;
    let free = only.is_empty() && row.known.is_none();
    let values = tune::choices(&facts, &only).into_iter().map(|(_, values)| values.len() as u64);
    let combinations = values.fold(1u64, u64::saturating_mul);
    if combinations > MAX_COMBINATIONS && row.known.is_none() {
        return Err(Failure::with_help(
            Kind::TooLarge,
            format!("{combinations} combinations of settings are more than {MAX_COMBINATIONS}"),
            "give fewer values to `--try`",
        ));
    }
    let mut configs = match &row.known {
        Some(known) => {
            let read = |e: &Entry| Ok(tune::read(&e.config, ranks)?);
            known.iter().map(read).collect::<Result<Vec<_>>>()?
        }
        None => fixed(tune::candidates(&program, &bound, ranks, &only), &only, &row.line, &config)?,
    };
    let measured = row.known.is_none() && args.device == Device::Cuda;
    if measured && let btree_map::Entry::Vacant(place) = worlds.entry(ranks) {
        place.insert(args.gpus.world(ranks, "`--device model` predicts, without a GPU")?);
    }
    if let Some(world) = worlds.get(&ranks) {
        fit(&mut configs, world);
    }
    // The winner so far takes part: what is kept is never slower, side by side.
    let so_far = match worlds.get(&ranks) {
        Some(world) if measured && !world.shares_gpus() => winner(world, &program, &bound, &config),
        _ => None,
    };
    configs.extend(so_far.iter().filter(|w| !configs.contains(w)).cloned().collect::<Vec<_>>());
    let progress = Progress::of("predicting candidates", configs.len());
    let predicted = tune::predict_each(&program, &bound, &configs, model, &|| progress.tick());
    drop(progress);
    let mut entries: Vec<Entry> = Vec::new();
    for (i, (config, predicted)) in configs.iter().zip(predicted).enumerate() {
        let known = row.known.as_ref().and_then(|k| k.get(i)).cloned();
        let mut entry = known.unwrap_or_default();
        entry.config = settings::write(config, &facts);
        match predicted {
            Ok(p) => entry.predicted_ms = Some(p.ms()),
            Err(why) if !measured => entry.refused = Some(why.to_string()),
            Err(_) => {}
        }
        entries.push(entry);
    }
    let mut to_measure: Vec<usize> = (0..entries.len()).collect();
    if let Some(top) = args.top {
        let ms = entries.iter().map(|e| e.predicted_ms.unwrap_or(f64::INFINITY));
        let all: Vec<_> = configs.iter().cloned().zip(ms).collect();
        to_measure = tune::worth_measuring(&all, top as usize);
        let known = configs.iter().position(|c| so_far.as_ref() == Some(c));
        to_measure.extend(known.filter(|i| !to_measure.contains(i)));
    }
    let mut best_ms = None;
    if measured {
        let world = worlds
            .get(&ranks)
            .ok_or_else(|| Failure::new(Kind::Internal, "internal error: no world"))?;
        let _progress = Progress::new(format!("measuring {} candidates", to_measure.len()));
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let list: Vec<Config> = to_measure.iter().map(|i| configs[*i].clone()).collect();
        let measure = |list: &[Config]| {
            gpu::measure(world, case, list, &JitOptions::default(), &args.limits(), args.seed)
        };
        let mut trials = measure(&list)?;
        // The winner beside what is near it, and those behind it in the other schedule, where nothing was fixed by
        // hand.
        let mut timed = trials.iter().filter(|t| free && t.ms().is_some()).map(|t| &t.config);
        let winner = timed.next().cloned();
        let near = winner.iter().flat_map(|w| tune::neighbours(w, &program, &bound));
        let mut near: Vec<Config> = near.filter(|c| !list.contains(c)).collect();
        for config in tune::runners_up(timed, &program, &bound) {
            if !list.contains(&config) && !near.contains(&config) {
                near.push(config);
            }
        }
        if let (Some(winner), false) = (winner, near.is_empty()) {
            let predicted = tune::predict_each(&program, &bound, &near, model, &|| ());
            for (config, predicted) in near.iter().zip(predicted) {
                if !configs.contains(config) {
                    let predicted_ms = predicted.ok().map(|p| p.ms());
                    let config = (config.clone(), settings::write(config, &facts));
                    configs.push(config.0);
                    entries.push(Entry { config: config.1, predicted_ms, ..Entry::default() });
                }
            }
            trials.retain(|t| t.config != winner);
            let beside = measure(&[vec![winner], near].concat())?;
            trials = beside.into_iter().chain(trials).collect();
        }
        // The best of ranks that share a GPU says nothing of ranks with GPUs of their own.
        if !world.shares_gpus() {
            store(world, case, &trials)?;
        }
        best_ms = trials.iter().find_map(Trial::ms).map(f64::from);
        let mut order = Vec::new();
        for trial in trials {
            let Some(i) = configs.iter().position(|c| *c == trial.config) else { continue };
            let mut entry = std::mem::take(&mut entries[i]);
            match trial.outcome {
                Ok(t) => {
                    entry.measured = Some(Measured {
                        median_ms: t.median_ms.into(),
                        least_ms: t.least_ms.into(),
                        rounds: t.rounds as u64,
                    });
                    entry.error = Some(t.norms.global);
                }
                Err(why) => entry.refused = Some(why.to_string()),
            }
            order.push(entry);
        }
        entries = order;
    } else {
        let ms = |e: &Entry| e.ms().unwrap_or(f64::INFINITY);
        entries.sort_by(|a, b| ms(a).total_cmp(&ms(b)));
    }
    let timed = entries.iter().filter(|e| e.ms().is_some()).count();
    if let (Device::Model, None, Some(top)) = (args.device, &row.known, args.top) {
        entries.truncate(top as usize);
    }
    if entries.iter().all(|e| e.ms().is_none()) {
        let why = entries.iter().find_map(|e| e.refused.clone());
        let why = why.unwrap_or_else(|| "there is no candidate".into());
        return Err(Failure::new(
            Kind::Unsupported,
            format!("none of {} candidates has a time: {why}", entries.len()),
        ));
    }
    errors.add(&entries);
    let name = describe(&row.line.pipeline, ranks);
    say!("{name}")?;
    let seconds = begin.elapsed().as_secs_f32();
    report::table(&entries, args.all)?;
    let what =
        if args.device == Device::Model || row.known.is_some() { "predicted" } else { "timed" };
    say!("  {timed} of {} candidates {what} in {seconds:.1} s\n", configs.len())?;
    let mut value =
        json!({ "pipeline": name, "ranks": ranks, "seconds": seconds, "trials": entries });
    // Where settings are tried by hand, the question is not whether to fuse.
    if let (Some(world), true) = (worlds.get(&ranks), free && best_ms.is_some()) {
        let apart = apart::measure(args, &program, &bound, world, model, best_ms)?;
        if let (Some(map), Some(apart)) = (value.as_object_mut(), apart) {
            map.insert("apart".into(), apart);
        }
    }
    Ok(value)
}

/// The line as it could be given again.
fn describe(row: &PipelineArgs, ranks: u32) -> String {
    // As a shell would have it: in its quotes everything is as it is but they.
    let source = match row.pipeline.as_str() {
        // What cannot be read was refused before.
        STDIN => source::stdin().unwrap_or(STDIN),
        pipeline => pipeline,
    };
    let mut text = format!("'{}'", source.replace('\'', "'\"'\"'"));
    for (name, value) in &row.dims {
        text += &format!(" --dim {name}={value}");
    }
    for (name, shape) in &row.shapes {
        let extents: Vec<_> = shape.iter().map(u64::to_string).collect();
        text += &format!(" --shape {name}={}", extents.join("x"));
    }
    format!("{text} --ranks {ranks}")
}

fn usage(what: String) -> Failure {
    Failure::new(Kind::CommandLine, what)
}

/// The values of settings that are fixed: by `--try`, or by `--set`.
fn only(args: &Args, line: &Line, config: &Config) -> Result<BTreeMap<String, Vec<String>>> {
    let mut only = once("try", &args.tries).map_err(usage)?;
    only.extend(once("try", &line.tries).map_err(usage)?);
    for (name, values) in &only {
        let set = |value: &String| settings::set(&mut config.clone(), name, value);
        values.iter().try_for_each(set)?;
    }
    for (setting, _) in line.pipeline.settings() {
        if only.insert(setting.name.into(), vec![(setting.get)(config)]).is_some() {
            let what = format!("`{}` is fixed by `--set`, and to be tried", setting.name);
            return Err(Failure::usage(what, "leave either out"));
        }
    }
    Ok(only)
}

/// The candidates that have the settings of the options.
fn fixed(
    mut candidates: Vec<Config>,
    only: &BTreeMap<String, Vec<String>>,
    line: &Line,
    config: &Config,
) -> Result<Vec<Config>> {
    if line.pipeline.tuned {
        let what = "`--tuned` takes what was measured, and this measures";
        return Err(Failure::usage(what, "leave it out"));
    }
    let given: Vec<_> = line.pipeline.settings().map(|(setting, _)| setting).collect();
    candidates.retain(|c| given.iter().all(|s| (s.get)(c) == (s.get)(config)));
    if candidates.is_empty() {
        let names: Vec<_> = only.keys().map(String::as_str).collect();
        let what = format!("no candidate can have {} as the options say", names.join(", "));
        return Err(Failure::usage(what, "`mk check` with these settings says why"));
    }
    Ok(candidates)
}
