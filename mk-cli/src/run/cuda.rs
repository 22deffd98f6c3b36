//! `mk run` on GPUs.

use super::{args::Args, link, verdict::Verdict};
use crate::{
    build::compile,
    failure::{Failure, Result},
    gpus::loopback,
    output::detail,
    pipeline::Loaded,
    progress::Progress,
};
use mk::{
    abi::count,
    emit::Options,
    runtime::{InstanceOptions, World},
};
use mk_harness::{Case, Inputs, dropped, gpu::Session};
use serde_json::json;
use std::time::Duration;

/// Rows of each result of which every element is judged, in f64.
const SAMPLED_ROWS: usize = 8;

pub fn run(args: &Args, loaded: Loaded, world: &World) -> Result<()> {
    let Some(pipeline) = &loaded.pipeline else {
        return Err(Failure::usage(
            "a plan does not say what it computes",
            "say it by `--reference PIPELINE`",
        ));
    };
    let kernel = loaded.kernel(Options::default())?;
    let compiled = compile(&kernel, &args.pipeline, true)?;
    let from = if compiled.from_cache { "from the cache" } else { "compiled" };
    detail!("plan      {:?}, verified; {from} in {:.1?}", kernel.name, compiled.compile_time)?;
    let ranks = world.size() as usize;
    let places = pipeline.places(&loaded.plan)?;
    let of = places.count();
    let case = Case { program: &pipeline.program, bound: &pipeline.bound, ranks: of };
    let progress = Progress::new(format!("running {} on GPUs", count(ranks, "rank")));
    let net = loopback(world, &kernel, link::shape(args.shape_link.as_ref()), 1)?;
    let options = InstanceOptions { net, ..instance_options(args) };
    let session = Session::bind(world, case, &kernel, &compiled, &options, args.seed)?;
    let mut session = session.over(&loaded.plan.mesh)?;
    session.route(args.routing());
    let mut verdict = Verdict::new(case, places, ranks);
    let inputs = Inputs::new(case, args.seed).routed(args.routing());
    let tolerance = session.tolerance()?;
    for launch in 1..=args.launches {
        session.fill(launch.into())?;
        // The first launch is a plain one: only what is warm is captured.
        if args.gpu.graph && launch == 2 {
            session.capture()?;
        }
        session.launch()?;
        verdict.norms(&session.norms()?, &tolerance)?;
        if let Some(rows) = dropped(&inputs, launch.into()) {
            verdict.dropped(launch, &rows)?;
        }
        if launch == 1 || launch == args.launches {
            let rows = session.sampled_rows(launch.into(), SAMPLED_ROWS);
            verdict.rows(rows?)?;
        }
    }
    let files = match &args.out {
        None => Vec::new(),
        Some(_) => args.export(session.held().map(|held| Ok(held?)))?,
    };
    let timing = if args.gpu.time { Some(session.time()?) } else { None };
    drop(progress);
    if let Some(t) = &timing {
        let (median, least) = (1e3 * t.median_ms, 1e3 * t.least_ms);
        detail!(
            "time      {median:.1} us median, {least:.1} us least of {}",
            count(t.launches, "launch")
        )?;
    }
    verdict.finish(json!({
        "device": "cuda",
        "plan": kernel.name,
        "ranks": ranks,
        "seed": args.seed,
        "from_cache": compiled.from_cache,
        "time": timing.map(|t| json!({
            "median_ms": t.median_ms,
            "least_ms": t.least_ms,
            "launches": t.launches,
        })),
        "out": files,
    }))
}

fn instance_options(args: &Args) -> InstanceOptions {
    let chaos = args.gpu.chaos_us;
    InstanceOptions {
        wait_limit: args.gpu.wait_limit(),
        // All ranks are launched from here, one after the other.
        entry_limit: args.gpu.wait_limit(),
        // 0 means none.
        chaos_seed: if chaos.is_some() { args.seed as u32 | 1 } else { 0 },
        chaos_max: Duration::from_micros(chaos.unwrap_or(0).into()),
        poison: Some(0xFF),
        ..InstanceOptions::default()
    }
}
