//! `mk run`.

mod args;
mod cpu;
mod cuda;
mod link;
mod npy;
mod verdict;

pub use args::Args;
pub use link::{Link, shape};
pub use verdict::Verdict;

use crate::{
    failure::{Failure, Kind, Result},
    gpus::{Unusable, describe, share_one},
    output::{detail, writable_folder},
    pipeline::{Opened, open},
};
use args::Device;
use mk::{abi::count, runtime::World};

/// Runs and judges.
pub fn run(args: &Args) -> Result<()> {
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
        return Err(Failure::usage(what, help));
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
                return Err(Failure::usage(what, "leave the option out"));
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
const NODES_ASK: &str = "several nodes run on GPUs where `--device cuda` asks for them";

enum Choice {
    Cuda(World),
    /// With the reason, if it was not asked for.
    Cpu(Option<String>),
}

fn choose(args: &Args, opened: &Opened, ranks: u32) -> Result<Choice> {
    let nodes = opened.nodes(&args.pipeline);
    if nodes > 1 && args.device == Device::Auto {
        return Ok(Choice::Cpu(Some(NODES_ASK.into())));
    }
    match args.device {
        Device::Cpu => return Ok(Choice::Cpu(None)),
        Device::Cuda => {
            if args.transport.as_ref().is_some_and(|t| !t.is_loopback()) {
                return Err(Failure::usage(
                    "GPUs of one process are joined by `loopback`; `--transport ofi` joins ranks of the CPU executor",
                    "use `--transport loopback`, or `--device cpu`; processes choose by `MK_NET`",
                ));
            }
            if opened.is_unknown() {
                return Err(Failure::usage(
                    "a plan does not say what it computes, so that results of GPUs cannot be judged",
                    "say what it computes by `--reference PIPELINE`, or use `--device cpu`",
                ));
            }
            if let Some(schedule) = args.schedule {
                return Err(Failure::usage(
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
