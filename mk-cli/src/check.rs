//! `mk check`.

use crate::{
    failure::{Failure, Result},
    options::PipelineArgs,
    output::{self, detail, write_file},
    pipeline::{Loaded, each, open},
    terminal::{note_on_stderr, say_on_stderr},
};
use mk::{emit::Options, equivalence::Evaluation, passes::Shown, valid};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options of `mk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Pipeline that a plan shall compute: the two are evaluated over finite fields. Its sizes are given by --dim and
    /// --shape
    #[arg(long, value_name = "PIPELINE")]
    against: Option<String>,
    /// Draw the first counterexample, if there is one, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prints what was proved. A counterexample is a failure, and so is a plan that no kernel carries out: what is accepted
/// is emitted.
pub fn run(args: &Args) -> Result<()> {
    let each = each(&args.pipeline)?;
    if each.len() > 1 && args.json {
        let what = format!("the text has {} pipelines, and `--json` prints one object", each.len());
        return Err(Failure::usage(what, "give each a file of its own"));
    }
    each.iter().try_for_each(|pipeline| one(args, pipeline))
}

fn one(args: &Args, pipeline: &PipelineArgs) -> Result<()> {
    let opened = open(pipeline, "--against", args.against.as_deref())?;
    let loaded = opened.lower(pipeline, None)?;
    let checked = match loaded.check(Options::default()) {
        Ok(checked) => checked,
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
    let shown = &checked.shown;
    detail!("{}", shown.proof.to_string().trim_end())?;
    let mut times = format!("verified in {:.1?}", shown.verify_time);
    if let Some(found) = &shown.evaluation {
        detail!("  {}", said(found))?;
        times += &format!(", evaluated in {:.1?}", shown.evaluate_time);
    }
    detail!("  {} in {:.1?}, {times}", made(&loaded), loaded.time)?;
    let mut all = report(&loaded, shown);
    all["kernel"] = checked.kernel.is_ok().into();
    if let Err(error) = checked.into_kernel() {
        return Err(loaded.refused(error).with_report(all));
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

fn report(loaded: &Loaded, shown: &Shown) -> Value {
    let Shown { proof, evaluation, verify_time, evaluate_time } = shown;
    let edges = |list: &[mk::plan::EdgeId]| list.iter().map(|e| e.to_string()).collect::<Vec<_>>();
    let values = proof.values.as_ref();
    json!({
        "plan": proof.plan,
        "ranks": loaded.plan.mesh.size(),
        "made": made(loaded),
        "made_s": loaded.time.as_secs_f64(),
        "verified_s": verify_time.as_secs_f64(),
        "tasks": proof.tasks,
        "accesses": proof.accesses,
        "epochs": proof.epochs,
        "period": proof.period,
        "pairs": proof.pairs,
        "pairs_by_signals": proof.searched,
        "waits_used": edges(&proof.waits_used),
        "waits_unused": edges(&proof.waits_unused),
        "computes": evaluation.as_ref().map(|found| json!({
            "elements": found.elements,
            "of": found.of,
            "values": found.values,
            "evaluated_s": evaluate_time.as_secs_f64(),
        })),
        "for_every": values.map(|v| json!({ "dim": v.name, "max": v.max })),
    })
}

fn draw(loaded: &Loaded, path: &Path) -> Result<()> {
    let Err(failure) = valid::verify(&loaded.plan) else { return Ok(()) };
    let picture = valid::timeline(&failure.plan_at(&loaded.plan), &failure);
    write_file(path, picture.as_bytes())
}
