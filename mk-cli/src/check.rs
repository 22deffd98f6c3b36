//! `mk check`.

use crate::{
    emit::emit,
    failure::{Failure, Kind},
    options::PipelineArgs,
    output::{self, detail, write_file},
    pipeline::{Loaded, each, open},
    terminal::{note_on_stderr, say_on_stderr},
};
use mk::{
    equivalence::Evaluation,
    valid::{self, Proof},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `mk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Pipeline that a plan shall compute: the two are evaluated over finite fields. Its sizes are given by --dim and --shape
    #[arg(long, value_name = "PIPELINE")]
    against: Option<String>,
    /// Draw the first counterexample, if there is one, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prints what was proved. A counterexample is a failure, and so is a plan that no kernel carries out: what is accepted is emitted.
pub fn run(args: &Args) -> Result<(), Failure> {
    let each = each(&args.pipeline)?;
    if each.len() > 1 && args.json {
        let what = format!("the text has {} pipelines, and `--json` prints one object", each.len());
        return Err(Failure::with_help(Kind::CommandLine, what, "give each a file of its own"));
    }
    each.iter().try_for_each(|pipeline| one(args, pipeline))
}

fn one(args: &Args, pipeline: &PipelineArgs) -> Result<(), Failure> {
    let opened = open(pipeline, "--against", args.against.as_deref())?;
    let loaded = opened.lower(pipeline, None)?;
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
    let evaluated = loaded.evaluate(&proof)?;
    detail!("{}", proof.to_string().trim_end())?;
    if let Some((found, _)) = &evaluated {
        detail!("  {}", said(found))?;
    }
    let times = match &evaluated {
        Some((_, evaluated)) => format!("verified in {time:.1?}, evaluated in {evaluated:.1?}"),
        None => format!("verified in {time:.1?}"),
    };
    detail!("  {} in {:.1?}, {times}", made(&loaded), loaded.time)?;
    let kernel = emit(&loaded);
    let mut all = report(&loaded, &proof, time, evaluated);
    all["kernel"] = kernel.is_ok().into();
    if let Err(failure) = kernel {
        return Err(failure.with_report(all));
    }
    output::report(|| all)?;
    output::verdict(true, "OK")
}

/// What was compared, in words.
fn said(found: &Evaluation) -> String {
    let Evaluation { elements, of, values } = found;
    let values: Vec<_> = values.iter().map(i32::to_string).collect();
    let with = match values.is_empty() {
        true => String::new(),
        false => format!(" at the values {}", values.join(", ")),
    };
    format!("computes its pipeline{with}: {elements} elements compared, which stand for {of}")
}

fn made(loaded: &Loaded) -> &'static str {
    if loaded.is_read { "read" } else { "lowered" }
}

fn report(
    loaded: &Loaded,
    proof: &Proof,
    time: Duration,
    evaluated: Option<(Evaluation, Duration)>,
) -> Value {
    let edges = |list: &[mk::plan::EdgeId]| list.iter().map(|e| e.to_string()).collect::<Vec<_>>();
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
        "computes": evaluated.map(|(found, time)| json!({
            "elements": found.elements,
            "of": found.of,
            "values": found.values,
            "evaluated_s": time.as_secs_f64(),
        })),
        "for_every": values.map(|v| json!({ "dim": v.name, "max": v.max })),
    })
}

fn draw(loaded: &Loaded, path: &Path) -> Result<(), Failure> {
    let Err(failure) = valid::verify(&loaded.plan) else { return Ok(()) };
    let picture = valid::timeline(&failure.plan_at(&loaded.plan), &failure);
    write_file(path, picture.as_bytes())
}
