//! `mk check`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::{self, detail, write_file},
    pipeline::{Loaded, load},
    terminal::{note_on_stderr, say_on_stderr},
};
use mk::valid::{self, Proof};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `mk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Draw the first counterexample, if there is one, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
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
    detail!("{}", proof.to_string().trim_end())?;
    detail!("  {} in {:.1?}, verified in {time:.1?}", made(&loaded), loaded.time)?;
    output::report(|| report(&loaded, &proof, time))?;
    output::verdict(true, "OK")
}

fn made(loaded: &Loaded) -> &'static str {
    if loaded.pipeline.is_some() { "lowered" } else { "read" }
}

fn report(loaded: &Loaded, proof: &Proof, time: Duration) -> Value {
    let edges = |list: &[mk::ir::EdgeId]| list.iter().map(|e| e.to_string()).collect::<Vec<_>>();
    let values = proof.values.as_ref();
    json!({
        "plan": proof.plan,
        "ranks": loaded.plan.mesh.size(),
        "made": made(loaded),
        "made_s": loaded.time.as_secs_f64(),
        "verified_s": time.as_secs_f64(),
        "tasks": proof.tasks,
        "accesses": proof.accesses,
        "epochs": proof.epochs,
        "period": proof.period,
        "pairs": proof.pairs,
        "pairs_by_signals": proof.searched,
        "waits_used": edges(&proof.waits_used),
        "waits_unused": edges(&proof.waits_unused),
        "for_every": values.map(|v| json!({ "dim": v.name, "max": v.max })),
    })
}

fn draw(loaded: &Loaded, path: &Path) -> Result<(), Failure> {
    let Err(failure) = valid::verify(&loaded.plan) else { return Ok(()) };
    let picture = valid::timeline(&failure.plan_at(&loaded.plan), &failure);
    write_file(path, picture.as_bytes())
}
