//! `mk trace`.

use crate::{
    build::compile,
    failure::{Failure, Kind, Result},
    gpus::{GpuList, describe, loopback},
    options::PipelineArgs,
    output::{all_writable, detail, print, say, write_file},
    pipeline::{Loaded, no_mesh, open},
    progress::Progress,
    run::{Link, Verdict, shape},
    tune::model,
};
use mk::{
    abi::KernelSource,
    abi::count,
    check,
    emit::Options,
    runtime::{InstanceOptions, World, bench, net::Net},
    trace::{self, Trace},
    tune::timeline,
};
use mk_harness::{
    Case,
    gpu::{Session, Timing},
};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// A picture of a trace, above it that of its prediction.
type Draw = fn(&Trace, Option<&Trace>) -> String;

/// Options of `mk trace`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Where to run; the CPU executor has no time to show
    #[arg(long, value_enum, default_value_t = Device::Cuda)]
    device: Device,
    #[command(flatten)]
    gpus: GpuList,
    /// Where to write the timeline as JSON, for ui.perfetto.dev [default: nowhere]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where to write the timeline as a picture, the predicted one above it [default: nowhere]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where to write the timeline as a page that zooms and needs nothing else, the predicted one above it [default:
    /// nowhere]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Figures of the machine for the prediction, as `mk probe` writes them [default: those of this GPU, or of an H200]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Slow the network between nodes down to a rate, a latency, or both: 50GB/s,5us
    #[arg(long, value_name = "RATE,LATENCY")]
    shape_link: Option<Link>,
    /// Also time the kernel without tracing, in N rounds with each in turn
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    cost: Option<u32>,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Bound on every wait inside the kernel
    #[arg(
        long,
        value_name = "N",
        default_value_t = 30_000,
        value_parser = clap::value_parser!(u64).range(1..=86_400_000)
    )]
    wait_limit_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    Cuda,
}

/// Launches with tracing on whose results are judged.
const JUDGED: u64 = 2;

/// Runs, judges, times, and shows the last launch that was timed.
pub fn run(args: &Args) -> Result<()> {
    all_writable([&args.output, &args.svg, &args.html])?;
    let options = args.gpus.ranked(&args.pipeline)?;
    no_mesh(&options)?;
    let opened = open(&options, "", None)?;
    let Device::Cuda = args.device;
    if opened.is_unknown() {
        return Err(Failure::usage(
            "a plan does not say what it computes, so that results of GPUs cannot be judged",
            "give the pipeline that it was made from",
        ));
    }
    if args.shape_link.is_some() && opened.nodes(&options) < 2 {
        return Err(Failure::usage(
            "`--shape-link` is of the network between nodes, and there is one",
            "say how many by `--nodes N`",
        ));
    }
    let ranks = opened.ranks(&options);
    let without = "`mk explain --svg FILE` draws what is predicted, without a GPU";
    let world = args.gpus.nodes(ranks, options.nodes.unwrap_or(1), without)?;
    let loaded = opened.lower(&options, Some(&world))?;
    let Some(pipeline) = &loaded.pipeline else {
        return Err(Failure::new(
            Kind::Internal,
            "internal error: a pipeline was lowered and is gone",
        ));
    };
    detail!("device    cuda: {}", describe(&world))?;
    let case = Case { program: &pipeline.program, bound: &pipeline.bound, ranks: ranks as usize };
    let kernel = loaded.kernel(Options { trace: true })?;
    // With `--cost` a second kernel is bound beside this one.
    let net = loopback(&world, &kernel, shape(args.shape_link.as_ref()), 2)?;
    let mut traced = bind(args, &world, case, &kernel, &net)?;
    let progress = Progress::new(format!("running {} on GPUs", count(ranks, "rank")));
    let mut verdict = Verdict::new(case, pipeline.places(&loaded.plan)?, ranks as usize);
    let tolerance = traced.tolerance()?;
    for launch in 1..=JUDGED {
        traced.fill(launch)?;
        traced.launch()?;
        verdict.norms(&traced.norms()?, &tolerance)?;
    }
    match args.cost {
        None => {
            let timing = traced.time()?;
            time("on", &timing)?;
        }
        Some(rounds) => cost(args, &world, case, &loaded, (&mut traced, &net), rounds)?,
    }
    let trace = traced.trace()?;
    drop(progress);
    print(format_args!("{}", trace::summary(&trace)))?;
    if let Some(path) = &args.output {
        write_file(path, trace::json(&trace).as_bytes())?;
        say!("{}: {} events; open it in ui.perfetto.dev", path.display(), trace.spans.len())?;
    }
    let pictures: [(_, Draw); 2] = [(&args.svg, trace::svg), (&args.html, trace::html)];
    for (path, draw) in pictures {
        let Some(path) = path else { continue };
        let model = model(args.model.as_deref())?;
        let prediction = mk::cost::predict(&loaded.plan, &model).ok();
        let predicted = prediction.and_then(|p| timeline(&loaded.plan, &kernel, &p));
        write_file(path, draw(&trace, predicted.as_ref()).as_bytes())?;
        say!("{}", path.display())?;
    }
    verdict.finish(json!({}))
}

fn bind<'a>(
    args: &Args,
    world: &World,
    case: Case<'a>,
    kernel: &'a KernelSource,
    net: &Option<Net>,
) -> Result<Session<'a>> {
    let compiled = compile(kernel, &args.pipeline, true)?;
    let limit = Duration::from_millis(args.wait_limit_ms);
    let options = InstanceOptions {
        wait_limit: limit,
        entry_limit: limit,
        net: net.clone(),
        ..InstanceOptions::default()
    };
    Ok(Session::bind(world, case, kernel, &compiled, &options, args.seed)?)
}

fn time(what: &str, timing: &Timing) -> Result<()> {
    let (median, least) = (1e3 * timing.median_ms, 1e3 * timing.least_ms);
    let n = count(timing.launches, "launch");
    detail!("time      tracing {what}: {median:.1} us median, {least:.1} us least of {n}")
}

/// Times the traced kernel and the plain one in turn. The traced one comes last.
fn cost(
    args: &Args,
    world: &World,
    case: Case<'_>,
    loaded: &Loaded,
    (traced, net): (&mut Session<'_>, &Option<Net>),
    rounds: u32,
) -> Result<()> {
    let kernel = check::kernel(&loaded.plan, Options::default());
    let kernel = kernel.map_err(|error| loaded.refused(error))?;
    let mut plain = bind(args, world, case, &kernel, net)?;
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let timing = plain.time()?;
        time("off", &timing)?;
        off.push(timing.median_ms);
        let timing = traced.time()?;
        time("on", &timing)?;
        on.push(timing.median_ms);
    }
    let [off, on] = [&mut off, &mut on].map(|times| bench::median(times));
    detail!(
        "cost      {:+.2}% ({:.1} us with tracing, {:.1} us without; medians of {})",
        100.0 * (on / off - 1.0),
        1e3 * on,
        1e3 * off,
        count(rounds, "round")
    )
}
