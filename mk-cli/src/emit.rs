//! `mk emit`.

use crate::{
    failure::{Failure, Kind},
    options::PipelineArgs,
    output::{all_writable, print, say, write_file},
    pipeline::{Loaded, load_verified},
};
use mk::{
    abi::{KernelSource, count},
    emit::Options,
};
use std::path::PathBuf;

/// Options of `mk emit`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// With records of what agents do, as `mk trace` runs it
    #[arg(long)]
    trace: bool,
    /// Where to write the CUDA source [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What is emitted is what was verified.
pub fn run(args: &Args) -> Result<(), Failure> {
    all_writable([&args.output])?;
    let options = Options { trace: args.trace };
    let kernel = emit_with(&load_verified(&args.pipeline)?, options)?;
    match &args.output {
        None => print(format_args!("{}", kernel.cuda)),
        Some(path) => {
            write_file(path, kernel.cuda.as_bytes())?;
            let lines = count(kernel.cuda.lines().count(), "line");
            say!("{}: {lines}, verified", path.display())
        }
    }
}

/// The kernel of a plan that was verified.
pub fn emit(loaded: &Loaded) -> Result<KernelSource, Failure> {
    emit_with(loaded, Options::default())
}

/// [`emit`], with options.
pub fn emit_with(loaded: &Loaded, options: Options) -> Result<KernelSource, Failure> {
    mk::emit::emit_with(&loaded.plan, options).map_err(|error| match error {
        mk::emit::EmitError::Unsupported { .. } => Failure::with_help(
            Kind::Unsupported,
            format!("no kernel can be emitted for this plan: {error}"),
            "it still runs on the CPU executor: `mk run --device cpu`",
        ),
        other => other.into(),
    })
}
