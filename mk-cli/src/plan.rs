//! `mk plan`.

use crate::{
    failure::{Failure, Kind, Result},
    options::PipelineArgs,
    output::{all_writable, say, write_file},
    pipeline::load,
    terminal::note_on_stderr,
};
use clap::ValueEnum;
use mk::{draw, emit, plan::Plan};
use std::path::PathBuf;

/// Options of `mk plan`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Where to write it [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The text format, which `mk check x.plan` reads
    Text,
    /// The same as JSON, which `mk check x.json` reads
    Json,
    /// A graph for Graphviz
    Dot,
    /// A picture
    Svg,
    /// A page that needs nothing else: the picture, which zooms, and the text
    Html,
}

/// Prints the plan as the passes leave it. It is not verified here, so that a wrong plan can be looked at.
pub fn run(args: &Args) -> Result<()> {
    all_writable([&args.output])?;
    let plan = load(&args.pipeline)?.plan;
    if let Some(room) = room(&plan) {
        note_on_stderr(room);
    }
    let text = match args.format {
        Format::Text => plan.to_string(),
        Format::Json => plan.to_json().map_err(|e| Failure::new(Kind::Internal, e))?,
        Format::Dot => draw::dot(&plan),
        Format::Svg => draw::svg(&plan),
        Format::Html => draw::html(&[&plan]),
    };
    let text = text.trim_end();
    match &args.output {
        None => say!("{text}"),
        Some(path) => {
            write_file(path, format!("{text}\n").as_bytes())?;
            say!("{}: not verified", path.display())
        }
    }
}

/// Memory for the largest number of rows of a rank, because the routing is known in the launch only. `None` for plans
/// without a routing.
fn room(plan: &Plan) -> Option<String> {
    plan.tables.values().find_map(|t| t.routed)?;
    let rows = plan.tables.values().find(|t| t.name == "sources").and_then(|t| t.shape.first())?;
    let memory = emit::emit(plan).ok()?.workspace;
    Some(format!(
        "capacity of {rows} dispatched rows on each rank; workspace {} bytes symmetric, {} bytes scratch a rank",
        memory.symmetric_bytes, memory.scratch_bytes
    ))
}
