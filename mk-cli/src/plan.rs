//! `mk plan`.

use crate::{
    failure::{Failure, Kind},
    options::PipelineArgs,
    output::say,
    pipeline::load,
    terminal::note_on_stderr,
};
use clap::ValueEnum;
use mk::{draw, emit, ir::Plan};

/// Options of `mk plan`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
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
}

/// Prints the plan as the passes leave it. It is not verified here, so that a wrong plan can be looked at.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = load(&args.pipeline)?.plan;
    if let Some(room) = room(&plan) {
        note_on_stderr(room);
    }
    match args.format {
        Format::Text => say!("{}", plan.to_string().trim_end()),
        Format::Json => {
            let json = plan.to_json().map_err(|e| Failure::new(Kind::Internal, e))?;
            say!("{json}")
        }
        Format::Dot => say!("{}", draw::dot(&plan).trim_end()),
        Format::Svg => say!("{}", draw::svg(&plan).trim_end()),
    }
}

/// Memory for the most rows that a rank has room for, because the routing is known in the launch only. `None` for plans without a routing.
fn room(plan: &Plan) -> Option<String> {
    plan.tables.values().find_map(|t| t.routed)?;
    let rows = plan.tables.values().find(|t| t.name == "sources").and_then(|t| t.shape.first())?;
    let memory = emit::emit(plan).ok()?.workspace;
    Some(format!(
        "room for {rows} dispatched rows on each rank; workspace {} bytes symmetric, {} bytes scratch a rank",
        memory.symmetric_bytes, memory.scratch_bytes
    ))
}
