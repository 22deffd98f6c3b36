//! `mk check`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::say,
    pipeline::{Loaded, load, note_on_stderr, say_on_stderr},
};
use mk::valid;
use std::path::{Path, PathBuf};

/// Options of `mk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Draw the first counterexample, if there is one, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Prints what was proved. A counterexample is a failure.
pub fn run(args: &Args) -> Result<(), Failure> {
    let loaded = load(&args.pipeline)?;
    let (proof, time) = match loaded.verify() {
        Ok(verified) => verified,
        Err(failure) => {
            // What was found is said in any case.
            match args.svg.as_deref().map(|path| (path, draw(&loaded, path))) {
                Some((path, Ok(()))) => note_on_stderr(format!("drew it into {}", path.display())),
                Some((_, Err(not_drawn))) => say_on_stderr(not_drawn.text()),
                None => {}
            }
            return Err(failure);
        }
    };
    let made = if loaded.pipeline.is_some() { "lowered" } else { "read" };
    say!("{}", proof.to_string().trim_end())?;
    say!("  {made} in {:.1?}, verified in {time:.1?}", loaded.time)?;
    say!("OK")
}

fn draw(loaded: &Loaded, path: &Path) -> Result<(), Failure> {
    let Err(failure) = valid::verify(&loaded.plan) else { return Ok(()) };
    std::fs::write(path, valid::timeline(&failure.plan_at(&loaded.plan), &failure))
        .map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display())))
}
