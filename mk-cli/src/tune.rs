//! `mk tune`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::{say, write_file},
    pipeline::{self, Pipeline},
    progress::Progress,
    run::gpus,
};
use clap::Parser;
use mk::{
    harness::Case,
    runtime::{World, jit::JitOptions},
    tune::{self, Facts, Limits, Trial},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Options of `mk tune`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: Option<PipelineArgs>,
    /// File of which each line holds the arguments of one pipeline, as on this command line; # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "pipeline")]
    list: Option<PathBuf>,
    /// Values of a setting to try instead of the usual ones, for instance intra_comm=8,16 (repeatable)
    #[arg(long = "try", value_name = "SETTING=A,B", value_parser = values)]
    tries: Vec<(String, Vec<String>)>,
    /// Print every candidate, also those that were refused, with the reason
    #[arg(long)]
    all: bool,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds in which every candidate is timed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Rounds in which the best are timed again
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    final_rounds: u16,
    /// How many of the best are timed again
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    finalists: u16,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// One line of a list.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// As on the command line, for this pipeline alone.
    #[arg(long = "try", value_name = "SETTING=A,B", value_parser = values)]
    tries: Vec<(String, Vec<String>)>,
}

/// How many candidates are printed without `--all`.
const SHOWN: usize = 8;

/// Measures candidates and says which is best.
pub fn run(args: &Args) -> Result<(), Failure> {
    let rows = rows(args)?;
    let mut worlds: BTreeMap<u32, World> = BTreeMap::new();
    let (mut failures, mut report) = (Vec::new(), Vec::new());
    for row in &rows {
        match one(args, row, &mut worlds) {
            Ok(value) => report.push(value),
            Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
            Err(failure) if rows.len() == 1 => return Err(failure),
            Err(failure) => {
                say!("{}\n", failure.text())?;
                failures.push(());
            }
        }
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&Value::Array(report)).map_err(Failure::new)?;
        write_file(path, text.as_bytes())?;
    }
    match failures.len() {
        0 => Ok(()),
        n => Err(Failure::new(format!("{n} of {} pipelines could not be tuned", rows.len()))),
    }
}

/// The pipelines asked for.
fn rows(args: &Args) -> Result<Vec<Line>, Failure> {
    let Some(path) = &args.list else {
        let help = "give one, or --list FILE";
        return match &args.pipeline {
            Some(pipeline) => Ok(vec![Line { pipeline: pipeline.clone(), tries: Vec::new() }]),
            None => Err(Failure::with_help("there is no pipeline to tune", help)),
        };
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display())))?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = split(line)
            .map_err(|e| Failure::new(format!("{}, line {}: {e}", path.display(), number + 1)))?;
        if words.is_empty() {
            continue;
        }
        let line = Line::try_parse_from(words).map_err(|e| {
            let text = e.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Failure::new(format!("{}, line {}: {first}", path.display(), number + 1))
        })?;
        rows.push(line);
    }
    Ok(rows)
}

/// Words of a line, as a shell would see them: quotes keep blanks, # begins a comment.
fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match quote {
        None => Ok(words),
        Some(q) => Err(format!("a {q} is not closed")),
    }
}

fn one(args: &Args, line: &Line, worlds: &mut BTreeMap<u32, World>) -> Result<Value, Failure> {
    let row = &line.pipeline;
    let Pipeline { program, bound } = pipeline::bind(row)?;
    let config = pipeline::config(row)?;
    let ranks = config.ranks;
    let facts = Facts::new(&program, &bound, ranks);
    let only = only(args, line, &config)?;
    let configs = tune::candidates(&program, &bound, ranks, &only);
    if let std::collections::btree_map::Entry::Vacant(place) = worlds.entry(ranks) {
        place.insert(gpus(ranks)?);
    }
    let world = worlds.get(&ranks).ok_or_else(|| Failure::new("no world"))?;
    let limits = Limits {
        rounds: args.rounds.into(),
        finalists: args.finalists.into(),
        final_rounds: args.final_rounds.into(),
        seed: args.seed,
        ..Limits::default()
    };
    let progress = Progress::new(format!("measuring {} candidates", configs.len()));
    let begin = Instant::now();
    let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
    let trials = tune::measure(world, case, &configs, &JitOptions::default(), &limits)
        .map_err(Failure::new)?;
    drop(progress);
    let name = describe(row, ranks);
    say!("{name}")?;
    let seconds = begin.elapsed().as_secs_f32();
    table(&trials, &facts, args.all)?;
    let timed = trials.iter().filter(|t| t.ms().is_some()).count();
    say!("  {timed} of {} candidates timed in {seconds:.1} s\n", trials.len())?;
    let list: Vec<Value> = trials.iter().map(|t| trial(t, &facts)).collect();
    Ok(json!({ "pipeline": name, "ranks": ranks, "seconds": seconds, "trials": list }))
}

/// The line as it could be given again.
fn describe(row: &PipelineArgs, ranks: u32) -> String {
    let mut text = format!("{:?}", row.pipeline);
    for (name, value) in &row.dims {
        text += &format!(" --dim {name}={value}");
    }
    for (name, shape) in &row.shapes {
        let extents: Vec<_> = shape.iter().map(u64::to_string).collect();
        text += &format!(" --shape {name}={}", extents.join("x"));
    }
    format!("{text} --ranks {ranks}")
}

/// What is fixed: by `--try`, or by an option that says how to lower.
fn only(
    args: &Args,
    line: &Line,
    config: &mk::passes::Config,
) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let mut only = crate::options::once("try", &args.tries).map_err(Failure::new)?;
    only.extend(crate::options::once("try", &line.tries).map_err(Failure::new)?);
    let given = line.pipeline.given();
    let fixed = [("--block", "block"), ("--sms", "intra_comm"), ("--all-reduce", "all_reduce")];
    for (_, name) in fixed.iter().filter(|(flag, _)| given.contains(flag)) {
        let value = tune::KNOBS.iter().find(|k| k.name == *name).and_then(|k| (k.get)(config));
        only.insert((*name).into(), value.into_iter().collect());
    }
    for name in only.keys() {
        if !tune::KNOBS.iter().any(|k| k.name == name) {
            let known: Vec<_> = tune::KNOBS.iter().map(|k| k.name).collect();
            let help = format!("settings are {}", known.join(", "));
            return Err(Failure::with_help(format!("there is no setting `{name}` to try"), help));
        }
    }
    Ok(only)
}

fn table(trials: &[Trial], facts: &Facts, all: bool) -> Result<(), Failure> {
    let best = trials.iter().find_map(Trial::ms).unwrap_or(f32::NAN);
    let timed = trials.iter().filter_map(|t| Some((t, t.outcome.as_ref().ok()?)));
    say!("  {:>9}  {:>9}  {:>6}  rounds  config", "ms", "least", "/best")?;
    for (trial, t) in timed.take(if all { usize::MAX } else { SHOWN }) {
        say!(
            "  {:>9.4}  {:>9.4}  {:>6.3}  {:>6}  {}",
            t.median_ms,
            t.least_ms,
            t.median_ms / best,
            t.rounds,
            tune::write(&trial.config, facts)
        )?;
    }
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for trial in trials {
        if let Err(why) = &trial.outcome {
            let why = why.to_string().replace('\n', " ");
            reasons.entry(why).or_default().push(tune::write(&trial.config, facts));
        }
    }
    for (why, configs) in reasons {
        match all {
            true => say!("  refused: {why}\n    {}", configs.join("\n    "))?,
            false if why.starts_with("the same kernel") => {}
            false => say!("  {} refused: {why}", configs.len())?,
        }
    }
    Ok(())
}

fn trial(trial: &Trial, facts: &Facts) -> Value {
    let config = tune::write(&trial.config, facts);
    match &trial.outcome {
        Ok(t) => json!({
            "config": config,
            "median_ms": t.median_ms,
            "least_ms": t.least_ms,
            "rounds": t.rounds,
            "error": t.norms.global,
        }),
        Err(why) => json!({ "config": config, "refused": why.to_string() }),
    }
}

fn values(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, list) = text.split_once('=').ok_or("write it as intra_comm=8,16")?;
    let values: Vec<String> = list.split(',').map(|v| v.trim().to_string()).collect();
    match name.trim() {
        "" => Err("write it as intra_comm=8,16".into()),
        name if values.iter().all(|v| !v.is_empty()) => Ok((name.into(), values)),
        name => Err(format!("`{name}` has an empty value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words() {
        let line = r#"  "gather(a) -> gemm(b)" --shape a=8x4 'x y'  # a comment"#;
        let words = split(line).unwrap();
        assert_eq!(words, ["gather(a) -> gemm(b)", "--shape", "a=8x4", "x y"]);
        assert_eq!(split("# nothing").unwrap(), Vec::<String>::new());
        assert!(split("\"open").is_err());
        assert!(Line::try_parse_from(words).is_err());
        assert!(values("block=128x128x64,128x256x64").is_ok_and(|(_, v)| v.len() == 2));
        assert!(values("block=").is_err() && values("block").is_err());
    }
}
