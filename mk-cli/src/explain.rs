//! `mk explain`.

use crate::{
    failure::Result,
    options::PipelineArgs,
    output::{self, all_writable, print, say, write_file},
    pipeline::{self, Pipeline},
    progress::Progress,
    terminal::note_on_stderr,
    tune::model,
};
use mk::{
    Bound, Program, build,
    emit::Options,
    runtime::jit::JitOptions,
    trace::{self, Trace},
    tune::{self, Apart, Cache, Explanation, Fusion, Indivisible, Origin, Sources, Subject},
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A picture of a trace, above it that of its prediction.
type Draw = fn(&Trace, Option<&Trace>) -> String;

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
    /// Where to write the predicted timeline as a page that zooms and needs nothing else [default: nowhere]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Tasks of the critical chain that are printed
    #[arg(long, default_value_t = tune::CHAIN, value_name = "N")]
    chain: usize,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Says what is predicted, and why.
pub fn run(args: &Args) -> Result<()> {
    all_writable([&args.svg, &args.html])?;
    let model = model(args.model.as_deref())?;
    let Pipeline { program, bound } = &pipeline::bind(&args.pipeline)?;
    let given = pipeline::config(&args.pipeline)?;
    let (line, on_mesh) = (&args.pipeline, !given.mesh.is_empty());
    let is_given = on_mesh && !line.tuned;
    let is_searched = !is_given && pipeline::searched(line)?;
    let subject = if is_searched { Subject::Searched(&given) } else { Subject::Options(&given) };
    let cache = Cache::new(&JitOptions::default());
    let sources = Sources { model: &model, cache: cache.as_ref(), chain: args.chain };
    let progress = Progress::new("predicting");
    let explained = tune::explain(program, bound, given.ranks, subject, &sources);
    drop(progress);
    let explained = explained?;
    explained.notes.iter().for_each(note_on_stderr);
    print(format_args!("{explained}"))?;
    let pictures: [(_, Draw); 2] = [(&args.svg, trace::svg), (&args.html, trace::html)];
    for (path, draw) in pictures {
        let Some(path) = path else { continue };
        let timeline = predicted(program, bound, &explained)?;
        let picture = timeline.map(|t| draw(&t, None)).unwrap_or_default();
        write_file(path, picture.as_bytes())?;
        say!("{}", path.display())?;
    }
    output::report(|| report(&explained, args.chain))
}

/// The predicted timeline.
fn predicted(program: &Program, bound: &Bound, explained: &Explanation) -> Result<Option<Trace>> {
    let planned = build::plan_with(program, bound, &explained.config, Options { trace: true })?;
    Ok(tune::timeline(&planned.plan, &planned.source, &explained.prediction))
}

/// Times are in milliseconds, but those of the prediction, which are in seconds.
fn report(e: &Explanation, chain: usize) -> Value {
    let origin = match e.origin {
        Origin::Given => "given",
        Origin::Measured => "measured",
        Origin::Predicted => "predicted",
        Origin::Default => "default",
    };
    let others =
        e.others.iter().map(|(ms, settings)| json!({ "predicted_ms": ms, "settings": settings }));
    let mut prediction = serde_json::to_value(&e.prediction).unwrap_or_default();
    if let Some(list) = prediction["chain"].as_array_mut() {
        list.truncate(chain);
    }
    prediction["shares"] =
        e.prediction.shares.iter().map(|(what, s)| (what.to_string(), json!(s))).collect();
    json!({
        "machine": e.machine,
        "ranks": e.ranks,
        "settings": e.settings,
        "origin": origin,
        "predicted_ms": e.prediction.ms(),
        "measured_ms": e.measured_ms,
        "prediction": prediction,
        "others": others.collect::<Vec<_>>(),
        "apart": apart(&e.apart),
    })
}

/// The same as one kernel for each operation; null for what is one operation.
fn apart(apart: &Apart) -> Value {
    let (parts, verdict) = match apart {
        Apart::Indivisible(Indivisible::Single) => return Value::Null,
        Apart::Indivisible(why) => return json!({ "parts": [], "why": why.to_string() }),
        Apart::NoPart(name) => {
            return json!({ "parts": [], "why": format!("`{name}` has no kernel by itself") });
        }
        Apart::Parts { parts, verdict } => (parts, verdict),
    };
    let parts = parts.iter().map(|(name, times)| {
        json!({
            "name": name,
            "predicted_ms": times.predicted_ms,
            "measured_ms": times.measured_ms,
        })
    });
    json!({
        "parts": parts.collect::<Vec<_>>(),
        "together_ms": verdict.apart_ms,
        "one_kernel_ms": verdict.fused_ms,
        "taken": match verdict.made {
            Fusion::Fused => "one kernel",
            Fusion::Apart => "separate kernels",
        },
        "why": verdict.why.to_string(),
    })
}
