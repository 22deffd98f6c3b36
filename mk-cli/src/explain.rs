//! `mk explain`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::{print, say, write_file},
    pipeline::{self, Pipeline},
    progress::Progress,
    tune::model,
};
use mk::{
    build,
    emit::Options,
    runtime::jit::JitOptions,
    trace,
    tune::{self, Cache, Sources, Subject},
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
    #[arg(long, default_value_t = tune::CHAIN, value_name = "N")]
    chain: usize,
}

/// Says what is predicted, and why.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = model(args.model.as_deref())?;
    let Pipeline { program, bound } = &pipeline::bind(&args.pipeline)?;
    let given = pipeline::config(&args.pipeline)?;
    let subject = match pipeline::searched(&args.pipeline)? {
        true => Subject::Searched,
        false => Subject::Options(&given),
    };
    let cache = Cache::new(&JitOptions::default());
    let sources = Sources { model: &model, cache: cache.as_ref(), chain: args.chain };
    let progress = Progress::new("predicting");
    let explained = tune::explain(program, bound, given.ranks, subject, &sources);
    drop(progress);
    let explained = explained.map_err(Failure::new)?;
    explained.notes.iter().for_each(pipeline::note_on_stderr);
    print(format_args!("{explained}"))?;
    let Some(path) = &args.svg else { return Ok(()) };
    let planned = build::plan_with(program, bound, &explained.config, Options { trace: true })
        .map_err(Failure::new)?;
    let timeline = tune::timeline(&planned.plan, &planned.source, &explained.prediction);
    let picture = timeline.map(|t| trace::svg(&t, None)).unwrap_or_default();
    write_file(path, picture.as_bytes())?;
    say!("{}", path.display())
}
