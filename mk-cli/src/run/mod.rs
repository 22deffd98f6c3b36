//! `mk run`.

mod cpu;
mod cuda;
mod verdict;

pub use verdict::Verdict;

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::say,
    pipeline::{Loaded, load, load_with_reference},
};
use clap::ValueEnum;
use mk::{
    runtime::{Error, World},
    sim::Schedule,
};
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
    /// Launches in a row, each with other inputs
    #[arg(long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    launches: u32,
    #[command(flatten)]
    gpu: GpuArgs,
}

/// What only GPUs have.
#[derive(clap::Args)]
#[command(next_help_heading = "Only on GPUs")]
struct GpuArgs {
    /// GPU of each rank, for instance 0,1,2,3 (the default); with few CTAs a role several ranks may share one
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Vec<i32>,
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
            ("--gpus", !self.gpus.is_empty()),
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
    let loaded = match &args.reference {
        None => load(&args.pipeline)?,
        Some(reference) => load_with_reference(&args.pipeline, reference)?,
    };
    let ranks = loaded.plan.mesh.size();
    match choose(args, &loaded)? {
        Choice::Cuda(world) => {
            say!("device    cuda: {}", describe(&world))?;
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
                return Err(Failure::with_help(what, "leave the option out"));
            }
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            say!("device    cpu, {ranks} ranks on the CPU executor{why}")?;
            cpu::run(args, &loaded)
        }
    }
}

/// Why the CPU executor runs it, after its name.
const A_PLAN: &str = "a plan runs there";
const ITS_STEPS: &str = "`--schedule` orders its steps";

enum Choice {
    Cuda(World),
    /// With the reason, if it was not asked for.
    Cpu(Option<String>),
}

fn choose(args: &Args, loaded: &Loaded) -> Result<Choice, Failure> {
    let ranks = loaded.plan.mesh.size();
    match args.device {
        Device::Cpu => return Ok(Choice::Cpu(None)),
        Device::Cuda => {
            if loaded.pipeline.is_none() {
                return Err(Failure::with_help(
                    "a plan does not say what it computes, so that results of GPUs cannot be judged",
                    "say what it computes by `--reference PIPELINE`, or use `--device cpu`",
                ));
            }
            if let Some(schedule) = args.schedule {
                return Err(Failure::with_help(
                    format!(
                        "`--schedule {schedule}` orders the steps of the CPU executor; GPUs order theirs"
                    ),
                    "use `--device cpu`, or `--chaos-us` for random delays",
                ));
            }
        }
        Device::Auto => {
            if loaded.pipeline.is_none() {
                return Ok(Choice::Cpu(Some(A_PLAN.into())));
            }
            if args.schedule.is_some() {
                return Ok(Choice::Cpu(Some(ITS_STEPS.into())));
            }
        }
    }
    let help =
        "use `--device cpu`, or give `--ranks` a number of GPUs; `mk doctor` says what there is";
    match find(ranks, &args.gpu.gpus) {
        Ok(world) => Ok(Choice::Cuda(world)),
        Err(Unusable { why, absent: true }) if args.device == Device::Auto => {
            Ok(Choice::Cpu(Some(why)))
        }
        Err(Unusable { why, .. }) => Err(Failure::with_help(why, help)),
    }
}

/// Why GPUs cannot be used.
struct Unusable {
    why: String,
    /// Whether there are none that fit, as opposed to some that fail.
    absent: bool,
}

/// A world of that many GPUs of this machine. `without` says what can be done without any.
pub fn gpus(ranks: u32, without: &str) -> Result<World, Failure> {
    find(ranks, &[]).map_err(|unusable| {
        let help = match World::local(1) {
            Ok(_) => "give `--ranks` a number of GPUs; `mk doctor` says what there is",
            Err(_) => without,
        };
        Failure::with_help(unusable.why, help)
    })
}

/// On the GPUs named, or on the first ones.
fn find(ranks: u32, gpus: &[i32]) -> Result<World, Unusable> {
    if !gpus.is_empty() && gpus.len() != ranks as usize {
        let why = format!("`--gpus` names {} GPUs for {ranks} ranks", gpus.len());
        return Err(Unusable { why, absent: false });
    }
    let world =
        if gpus.is_empty() { World::local(ranks as usize) } else { World::on_devices(gpus) };
    let error = match world {
        Ok(world) => match unfit(&world) {
            None => return Ok(world),
            Some(why) => return Err(Unusable { why, absent: true }),
        },
        Err(error) => error,
    };
    let why = match &error {
        Error::NoSuchDevice { count, .. } if gpus.is_empty() => {
            format!("this machine has {count} GPUs for {ranks} ranks")
        }
        Error::DriverMissing => "this machine has no CUDA driver".into(),
        other => other.to_string(),
    };
    // Who names GPUs means them.
    Err(Unusable { why, absent: error.is_no_device() && gpus.is_empty() })
}

/// Why a world cannot run the kernels of this version.
fn unfit(world: &World) -> Option<String> {
    world.local_ranks().find_map(|rank| match world.device(rank) {
        Ok(device) if device.capability == (9, 0) => None,
        Ok(device) => Some(format!(
            "GPU {} has compute capability {}.{}, and kernels are made for 9.0",
            device.ordinal, device.capability.0, device.capability.1
        )),
        Err(error) => Some(error.to_string()),
    })
}

/// Its ranks and their GPUs.
pub fn describe(world: &World) -> String {
    let devices = world.local_ranks().filter_map(|r| Some((r, world.device(r).ok()?)));
    let list: Vec<_> =
        devices.map(|(rank, d)| format!("rank {rank} on GPU {}", d.ordinal)).collect();
    list.join(", ")
}
