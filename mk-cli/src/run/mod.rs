//! `mk run`.

mod cpu;
mod cuda;
mod link;
mod npy;
mod verdict;

pub use verdict::Verdict;

use crate::{
    failure::{Failure, Kind},
    gpus::{GpuList, Unusable, describe, share_one},
    options::PipelineArgs,
    output::{detail, writable_folder},
    pipeline::{Opened, open},
};
use clap::ValueEnum;
use mk::{abi::count, runtime::World, sim::Schedule};
use mk_harness::{Held, Routing};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `mk run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Where to run: auto takes the GPUs if there are enough of them, else the CPU executor
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Pipeline that a plan shall compute: without one nothing says whether its results are right. Its sizes are given by --dim and --shape
    #[arg(long, value_name = "PIPELINE")]
    reference: Option<String>,
    /// Seed of the inputs, and of what the schedule leaves to chance
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Order of steps on the CPU executor: random, reversed, starve:RANK, epoch_apart or srd [default: random]
    #[arg(long)]
    schedule: Option<Schedule>,
    /// How many rows experts have: uniform, skew:N (every eighth expert has N times as many as the others), one (all rows have the same),
    /// empty (every other expert has none) or random [default: uniform]
    #[arg(long, value_name = "FORM")]
    routing: Option<Routing>,
    /// Launches in a row, each with other inputs
    #[arg(long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    launches: u32,
    /// Let a real network carry what goes between nodes, in place of the executor's: loopback, ofi (libfabric over tcp), or ofi:PROVIDER
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<link::Transport>,
    /// Slow that network down to a rate, a latency, or both: 50GB/s,5us
    #[arg(long, value_name = "RATE,LATENCY", requires = "transport")]
    shape_link: Option<link::Link>,
    /// Write what every rank holds after the last launch into this folder, as NAME.rankR.npy, and its inputs into `inputs`;
    /// bf16 as float32, which holds it exactly
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    gpu: GpuArgs,
}

impl Args {
    /// Refuses a routing where nothing is routed.
    fn routed(&self, opened: &Opened) -> Result<(), Failure> {
        let (Some(routing), Some(false)) = (self.routing, opened.is_routed()) else {
            return Ok(());
        };
        let what = format!(
            "`--routing {routing}` says which experts rows go to, and no rows have experts"
        );
        let help = "leave the option out, or run a pipeline with `ragged` or `dispatch`";
        Err(Failure::with_help(Kind::CommandLine, what, help))
    }

    fn routing(&self) -> Routing {
        self.routing.unwrap_or_default()
    }

    /// Writes tensors where `--out` says, and lists them for `--json`.
    fn export(
        &self,
        tensors: impl Iterator<Item = Result<Held, Failure>>,
    ) -> Result<Vec<Value>, Failure> {
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
struct GpuArgs {
    #[command(flatten)]
    gpus: GpuList,
    /// Let agents sleep up to N microseconds before each task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    chaos_us: Option<u32>,
    /// Bound on every wait inside the kernel [default: 30000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    wait_limit_ms: Option<u64>,
    /// Measure a launch: median of 20, caches flushed, inputs rotated, the slowest rank counts
    #[arg(long)]
    time: bool,
    /// Capture the second launch into CUDA graphs and replay them
    #[arg(long)]
    graph: bool,
}

impl GpuArgs {
    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--gpus", self.gpus.given()),
            ("--chaos-us", self.chaos_us.is_some()),
            ("--wait-limit-ms", self.wait_limit_ms.is_some()),
            ("--time", self.time),
            ("--graph", self.graph),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    fn wait_limit(&self) -> Duration {
        Duration::from_millis(self.wait_limit_ms.unwrap_or(30_000))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    Auto,
    Cpu,
    Cuda,
}

/// Runs and judges.
pub fn run(args: &Args) -> Result<(), Failure> {
    let pipeline = args.gpu.gpus.ranked(&args.pipeline)?;
    let opened = open(&pipeline, "--reference", args.reference.as_deref())?;
    args.routed(&opened)?;
    args.out.as_deref().map_or(Ok(()), writable_folder)?;
    let ranks = opened.ranks(&pipeline);
    if args.transport.is_some() && opened.nodes(&pipeline) < 2 {
        let (what, help) = match args.pipeline.is_plan() {
            true => ("this plan has one", "make one for several by `mk plan --nodes N`"),
            false => ("there is one", "say how many by `--nodes N`"),
        };
        let what = format!("`--transport` joins nodes, and {what}");
        return Err(Failure::with_help(Kind::CommandLine, what, help));
    }
    match choose(args, &opened, ranks)? {
        Choice::Cuda(world) => {
            let loaded = opened.lower(&pipeline, Some(&world))?;
            detail!("device    cuda: {}", describe(&world))?;
            cuda::run(args, loaded, &world)
        }
        Choice::Cpu(why) => {
            if let Some(option) = args.gpu.given() {
                let why = match why.as_deref() {
                    None => "the device is cpu",
                    Some(A_PLAN) => "a plan runs on the CPU executor",
                    Some(ITS_STEPS) => "`--schedule` orders the steps of the CPU executor",
                    Some(other) => other,
                };
                let what = format!("`{option}` needs GPUs, and {why}");
                return Err(Failure::with_help(Kind::CommandLine, what, "leave the option out"));
            }
            let loaded = opened.lower(&pipeline, None)?;
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let ranks = count(ranks, "rank");
            detail!("device    cpu, {ranks} on the CPU executor{why}")?;
            cpu::run(args, &loaded)
        }
    }
}

/// Why the CPU executor runs it, after its name.
const A_PLAN: &str = "a plan runs there";
const ITS_STEPS: &str = "`--schedule` orders its steps";
const ONE_AXIS: &str = "ranks on GPUs are along one axis";
const NODES_ASK: &str = "several nodes run on GPUs where `--device cuda` asks for them";

enum Choice {
    Cuda(World),
    /// With the reason, if it was not asked for.
    Cpu(Option<String>),
}

fn choose(args: &Args, opened: &Opened, ranks: u32) -> Result<Choice, Failure> {
    let nodes = opened.nodes(&args.pipeline);
    if opened.has_axes(&args.pipeline) {
        return match args.device {
            Device::Cuda => Err(Failure::with_help(
                Kind::CommandLine,
                "results of a mesh of several axes are not judged on GPUs yet",
                "use `--device cpu`, or one axis",
            )),
            Device::Cpu => Ok(Choice::Cpu(None)),
            Device::Auto => Ok(Choice::Cpu(Some(ONE_AXIS.into()))),
        };
    }
    if nodes > 1 && args.device == Device::Auto {
        return Ok(Choice::Cpu(Some(NODES_ASK.into())));
    }
    match args.device {
        Device::Cpu => return Ok(Choice::Cpu(None)),
        Device::Cuda => {
            if args.transport.as_ref().is_some_and(|t| !t.is_loopback()) {
                return Err(Failure::with_help(
                    Kind::CommandLine,
                    "GPUs of one process are joined by `loopback`; `--transport ofi` joins ranks of the CPU executor",
                    "use `--transport loopback`, or `--device cpu`; processes choose by `MK_NET`",
                ));
            }
            if opened.is_unknown() {
                return Err(Failure::with_help(
                    Kind::CommandLine,
                    "a plan does not say what it computes, so that results of GPUs cannot be judged",
                    "say what it computes by `--reference PIPELINE`, or use `--device cpu`",
                ));
            }
            if let Some(schedule) = args.schedule {
                return Err(Failure::with_help(
                    Kind::CommandLine,
                    format!(
                        "`--schedule {schedule}` orders the steps of the CPU executor; GPUs order theirs"
                    ),
                    "use `--device cpu`, or `--chaos-us` for random delays",
                ));
            }
        }
        Device::Auto => {
            if opened.is_unknown() {
                return Ok(Choice::Cpu(Some(A_PLAN.into())));
            }
            if args.schedule.is_some() {
                return Ok(Choice::Cpu(Some(ITS_STEPS.into())));
            }
        }
    }
    match args.gpu.gpus.find(ranks, nodes) {
        Ok(world) => Ok(Choice::Cuda(world)),
        Err(Unusable { why, absent: true }) if args.device == Device::Auto => {
            let share = World::local(1).map_or_else(|_| String::new(), |_| share_one(ranks));
            let why = [why, share].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
            Ok(Choice::Cpu(Some(why.join("; "))))
        }
        Err(Unusable { why, .. }) => {
            let share = match args.gpu.gpus.given() {
                true => String::new(),
                false => format!("; {}", share_one(ranks)),
            };
            let help = format!("use `--device cpu`{share}; `mk doctor` says what there is");
            Err(Failure::with_help(Kind::Machine, why, help))
        }
    }
}
