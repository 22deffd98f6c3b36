//! `mk probe`.

mod table;

use crate::{
    failure::{Failure, Kind, Result},
    gpus::gpus,
    output::{print, say, writable, write_file},
    pipeline::{self, Pipeline},
    progress::Progress,
    terminal::say_on_stderr,
    tune::{list, measured, model},
};
use mk::{
    cost::{self, RawFigures, Sample},
    passes,
    runtime::{jit::JitOptions, probe},
    tune::{self, Limits},
};
use mk_harness::{Case, gpu};
use std::path::PathBuf;
use table::Tables;

/// Options of `mk probe`.
#[derive(clap::Args)]
pub struct Args {
    /// Number of GPUs
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=mk::abi::device::MAX_RANKS as i64))]
    ranks: u32,
    /// Where to write the figures as JSON [default: stdout; with --raw, nowhere]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep the figures where `mk tune`, `--tuned` and functions look for them
    #[arg(long)]
    install: bool,
    /// Figures to begin with [default: those of this GPU, or of an H200]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Fit to what `mk tune --json` wrote, and measure nothing (repeatable)
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Passes over all figures
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Measure links, memory, flags, launches and tensor cores only, with no plans and no model
    #[arg(long, conflicts_with_all = ["install", "model", "from", "rounds"])]
    raw: bool,
    /// Launches that make up each raw figure, the median of them
    #[arg(long, default_value_t = 5, value_name = "N", conflicts_with = "from", value_parser = clap::value_parser!(u32).range(RAW_ROUNDS))]
    raw_rounds: u32,
}

/// What the runtime takes, as the parser of arguments wants it.
const RAW_ROUNDS: std::ops::RangeInclusive<i64> =
    *probe::ROUNDS.start() as i64..=*probe::ROUNDS.end() as i64;

/// Measures the machine raw; then measures plans, and fits the figures of the cost model to their times.
pub fn run(args: &Args) -> Result<()> {
    args.output.as_deref().map_or(Ok(()), writable)?;
    if args.raw {
        return raw_only(args);
    }
    let start = model(args.model.as_deref())?;
    let mut samples = Vec::new();
    let (mut gpu, mut what) = (start.gpu.clone(), start.measured.clone());
    let mut raw = start.raw.clone();
    if args.from.is_empty() {
        let figures = measure_raw(args)?;
        // Figures of the model go to stdout where no file is named.
        match args.output.is_some() || args.install {
            true => say!("{}", Tables(&figures))?,
            false => say_on_stderr(Tables(&figures)),
        }
        raw = Some(figures);
        samples = measure(args)?;
        gpu = pipeline::gpu().name;
        what = format!("mk {} probe, {} ranks", env!("CARGO_PKG_VERSION"), args.ranks);
    }
    for path in &args.from {
        for (line, config, ms) in measured(path)? {
            let Pipeline { program, bound } = pipeline::bind(&line)?;
            let plan = passes::lower(&program, &bound, &config)?;
            samples.push(Sample { plan, seconds: ms / 1e3 });
        }
    }
    if samples.is_empty() {
        return Err(Failure::usage(
            "there is no measured plan to fit figures to",
            "measure some: `mk tune --json FILE`, without `--device model`",
        ));
    }
    let before = cost::error(&start, &samples);
    let progress = Progress::new(format!("fitting to {} plans", samples.len()));
    let mut fitted = cost::fit(&start, &samples, args.rounds.into());
    drop(progress);
    let after = cost::error(&fitted, &samples);
    (fitted.gpu, fitted.measured, fitted.raw) = (gpu, what, raw);
    let n = samples.len();
    let words = format!(
        "mean error over {n} plans: {:.1} % before, {:.1} % after",
        100.0 * before,
        100.0 * after
    );
    if args.install {
        let cache = tune::Cache::new(&JitOptions::default())
            .ok_or_else(|| Failure::new(Kind::Machine, "there is no cache directory"))?;
        let path = cache.store_model(&fitted).map_err(|e| Failure::new(Kind::File, e))?;
        say!("{}: {words}", path.display())?;
    }
    match &args.output {
        None if args.install => Ok(()),
        Some(path) => {
            write_file(path, fitted.to_json().as_bytes())?;
            say!("{}: {words}", path.display())
        }
        None => print(format_args!("{}", fitted.to_json())),
    }
}

/// `--raw`.
fn raw_only(args: &Args) -> Result<()> {
    let raw = measure_raw(args)?;
    print(format_args!("{}", Tables(&raw)))?;
    match &args.output {
        Some(path) => write_file(path, raw.to_json().as_bytes()),
        None => Ok(()),
    }
}

/// What to do without a GPU.
const WITHOUT: &str =
    "`mk doctor` says what is missing; predictions need no figures of this machine";

fn measure_raw(args: &Args) -> Result<RawFigures> {
    let world = gpus(args.ranks, WITHOUT)?;
    let _progress = Progress::new("measuring links, memory, flags, launches and tensor cores");
    Ok(tune::measure_raw(&world, &JitOptions::default(), args.raw_rounds)?)
}

/// A line of mk's own that does not read.
fn internal(what: String) -> Failure {
    Failure::new(Kind::Internal, format!("internal error in the list of plans: {what}"))
}

fn measure(args: &Args) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let (alone, all) = (gpus(1, WITHOUT)?, gpus(args.ranks, WITHOUT)?);
    let limits = Limits { finalists: 1, final_rounds: 5, ..Limits::default() };
    for text in tune::probe_list(args.ranks) {
        let line =
            list::parse(&text).map_err(internal)?.ok_or_else(|| internal("no line".into()))?;
        let Pipeline { program, bound } = pipeline::bind(&line.pipeline)?;
        let ranks = pipeline::config(&line.pipeline)?.ranks;
        let only = crate::options::once("try", &line.tries).map_err(internal)?;
        let configs = tune::candidates(&program, &bound, ranks, &only);
        let _progress = Progress::new(format!("measuring {text}"));
        let world = if ranks == 1 { &alone } else { &all };
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let trials = gpu::measure(world, case, &configs, &JitOptions::default(), &limits, 0)?;
        for trial in trials {
            let Some(ms) = trial.ms() else { continue };
            let plan = passes::lower(&program, &bound, &trial.config)?;
            samples.push(Sample { plan, seconds: f64::from(ms) / 1e3 });
        }
    }
    Ok(samples)
}
