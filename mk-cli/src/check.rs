//! `mk check`.

use crate::{failure::Failure, options::PipelineArgs, output::say, pipeline::load_verified};

/// Options of `mk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
}

/// Prints what was proved. A counterexample is a failure.
pub fn run(args: &Args) -> Result<(), Failure> {
    let verified = load_verified(&args.pipeline)?;
    let made = if verified.loaded.pipeline.is_some() { "lowered" } else { "read" };
    say!("{}", verified.proof.to_string().trim_end())?;
    say!("  {made} in {:.1?}, verified in {:.1?}", verified.loaded.time, verified.time)?;
    say!("OK")
}
