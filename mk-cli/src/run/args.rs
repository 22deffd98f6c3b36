//! The command line of `mk run`.

use super::{link, npy};
use crate::{
    failure::{Failure, Result},
    gpus::GpuList,
    options::PipelineArgs,
    output::detail,
    pipeline::Opened,
};
use clap::ValueEnum;
use mk::{abi::count, sim::Schedule};
use mk_harness::{Held, Routing};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `mk run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    /// Where to run: auto takes the GPUs if there are enough of them, else the CPU executor
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(super) device: Device,
    /// Pipeline that a plan shall compute: without one nothing says whether its results are right. Its sizes are given
    /// by --dim and --shape
    #[arg(long, value_name = "PIPELINE")]
    pub(super) reference: Option<String>,
    /// Seed of the inputs, and of what the schedule leaves to chance
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Order of steps on the CPU executor: random, reversed, starve:RANK, epoch_apart or srd [default: random]
    #[arg(long)]
    pub(super) schedule: Option<Schedule>,
    /// How many rows experts have, or tokens documents: uniform, skew:N (every eighth expert has N times as many as the
    /// others), one (all rows have the same), empty (every other expert has none), random, or padded (random, and some
    /// slots go to no expert: -1) [default: uniform]
    #[arg(long, value_name = "FORM")]
    pub(super) routing: Option<Routing>,
    /// Launches in a row, each with other inputs
    #[arg(long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) launches: u32,
    /// Let a real network carry what goes between nodes, in place of the executor's: loopback, ofi (libfabric over
    /// tcp), or ofi:PROVIDER
    #[arg(long, value_name = "TRANSPORT")]
    pub(super) transport: Option<link::Transport>,
    /// Slow that network down to a rate, a latency, or both: 50GB/s,5us
    #[arg(long, value_name = "RATE,LATENCY", requires = "transport")]
    pub(super) shape_link: Option<link::Link>,
    /// Write what every rank holds after the last launch into this folder, as NAME.rankR.npy, and its inputs into
    /// `inputs`; bf16 as float32, which holds it exactly
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub(super) gpu: GpuArgs,
}

impl Args {
    /// Refuses a routing where nothing is routed.
    pub(super) fn routed(&self, opened: &Opened) -> Result<()> {
        let (Some(routing), Some(false)) = (self.routing, opened.is_routed()) else {
            return Ok(());
        };
        let what = format!(
            "`--routing {routing}` says which experts rows go to, or which documents tokens are in, and there are none"
        );
        let help =
            "leave the option out, or run a pipeline with `ragged`, `dispatch` or `cu_seqlens`";
        Err(Failure::usage(what, help))
    }

    pub(super) fn routing(&self) -> Routing {
        self.routing.unwrap_or_default()
    }

    /// Writes tensors where `--out` says, and lists them for `--json`.
    pub(super) fn export(&self, tensors: impl Iterator<Item = Result<Held>>) -> Result<Vec<Value>> {
        let Some(dir) = &self.out else { return Ok(Vec::new()) };
        let files = npy::write(dir, tensors)?;
        let results = files.iter().filter(|f| f["input"] == false).count();
        detail!(
            "out       {}: {}, {}",
            dir.display(),
            count(results, "result"),
            count(files.len() - results, "input")
        )?;
        Ok(files)
    }
}

/// What only GPUs have.
#[derive(clap::Args)]
#[command(next_help_heading = "Only on GPUs")]
pub(super) struct GpuArgs {
    #[command(flatten)]
    pub(super) gpus: GpuList,
    /// Let agents sleep up to N microseconds before each task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(super) chaos_us: Option<u32>,
    /// Bound on every wait inside the kernel [default: 30000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    wait_limit_ms: Option<u64>,
    /// Measure a launch: median of 20, caches flushed, inputs rotated, the slowest rank counts
    #[arg(long)]
    pub(super) time: bool,
    /// Capture the second launch into CUDA graphs and replay them
    #[arg(long)]
    pub(super) graph: bool,
}

impl GpuArgs {
    pub(super) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--gpus", self.gpus.given()),
            ("--chaos-us", self.chaos_us.is_some()),
            ("--wait-limit-ms", self.wait_limit_ms.is_some()),
            ("--time", self.time),
            ("--graph", self.graph),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    pub(super) fn wait_limit(&self) -> Duration {
        Duration::from_millis(self.wait_limit_ms.unwrap_or(30_000))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    Auto,
    Cpu,
    Cuda,
}
