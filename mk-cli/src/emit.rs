//! `mk emit`.

use crate::{
    failure::Result,
    options::PipelineArgs,
    output::{all_writable, print, say, write_file},
    pipeline::load,
};
use mk::{abi::count, emit::Options};
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
pub fn run(args: &Args) -> Result<()> {
    all_writable([&args.output])?;
    let options = Options { trace: args.trace };
    let kernel = load(&args.pipeline)?.kernel(options)?;
    match &args.output {
        None => print(format_args!("{}", kernel.cuda)),
        Some(path) => {
            write_file(path, kernel.cuda.as_bytes())?;
            let lines = count(kernel.cuda.lines().count(), "line");
            say!("{}: {lines}, verified", path.display())
        }
    }
}
