//! `mk run` on the CPU executor.

use super::{
    args::Args,
    link::{self, Link, Transport},
    verdict::{Verdict, launches},
};
use crate::{
    failure::{Failure, Kind, Result},
    output::{self, detail},
    pipeline::Loaded,
    progress::Progress,
};
use mk::{
    abi::count,
    plan::Plan,
    sim::{RunReport, Schedule},
};
use mk_harness::{
    Case, CpuOptions, CpuRun, HarnessError, Inputs, Wire, check_work, dropped, repeat_on_cpu,
    run_on_cpu, run_over_network,
};
use serde_json::{Value, json};

pub fn run(args: &Args, loaded: &Loaded) -> Result<()> {
    let schedule = args.schedule.unwrap_or(Schedule::Random);
    let (seed, launches, keep) = (args.seed, args.launches, args.out.is_some());
    let options = CpuOptions { schedule, seed, launches, keep, routing: args.routing() };
    let plan = &loaded.plan;
    let Some(pipeline) = &loaded.pipeline else {
        if args.transport.is_some() {
            let what = "`--transport` runs pipelines, and this is a plan without one";
            let help = "name the pipeline by `--reference PIPELINE`";
            return Err(Failure::usage(what, help));
        }
        loaded.verify()?;
        return without_reference(args, plan, &options);
    };
    let (places, ranks) = (pipeline.places(plan)?, plan.mesh.size() as usize);
    let case = Case { program: &pipeline.program, bound: &pipeline.bound, ranks: places.count() };
    check_work(case, args.launches).map_err(failure)?;
    loaded.verify()?;
    let run = {
        let ranks = count(ranks, "rank");
        let _progress = Progress::new(format!("running {ranks} on the CPU"));
        match &args.transport {
            None => run_on_cpu(case, plan, &options).map_err(failure)?,
            Some(transport) => over(case, plan, &options, transport, args.shape_link.as_ref())?,
        }
    };
    said(plan, &options, &run.report)?;
    let mut verdict = Verdict::new(case, places, ranks);
    let inputs = Inputs::new(case, args.seed).routed(args.routing());
    for (judged, launch) in run.judged.iter().zip(1..) {
        verdict.launch(judged)?;
        if let Some(rows) = dropped(&inputs, launch.into()) {
            verdict.dropped(launch, &rows)?;
        }
    }
    let files = args.export(run.held.into_iter().map(Ok))?;
    verdict.finish(report(plan, &options, &run.report, files))
}

/// Runs with a network between the nodes, and says what it carried.
fn over(
    case: Case<'_>,
    plan: &Plan,
    options: &CpuOptions,
    transport: &Transport,
    link: Option<&Link>,
) -> Result<CpuRun> {
    let net = link::network(transport, link);
    let run = run_over_network(case, plan, options, &net, None).map_err(failure)?;
    let commands: u64 = run.counts.iter().map(|c| c.commands).sum();
    let bytes: u64 = run.counts.iter().map(|c| c.bytes).sum();
    let name = match &net.wire {
        Wire::Ofi { provider, .. } => format!("ofi ({provider})"),
        _ => "loopback".into(),
    };
    detail!("network   {name}: {} of {bytes} bytes in all", count(commands, "message"))?;
    Ok(run.run)
}

fn said(plan: &Plan, options: &CpuOptions, ran: &RunReport) -> Result<()> {
    detail!("plan      {:?}, verified", plan.name)?;
    detail!("schedule  {}, seed {}: {}", options.schedule, options.seed, figures(ran))
}

fn report(plan: &Plan, options: &CpuOptions, ran: &RunReport, files: Vec<Value>) -> Value {
    json!({
        "device": "cpu",
        "plan": plan.name,
        "ranks": plan.mesh.size(),
        "seed": options.seed,
        "schedule": options.schedule.to_string(),
        "tasks": ran.tasks,
        "steps": ran.steps,
        "out": files,
    })
}

/// A plan by itself does not say what it computes, so that nothing says whether the numbers are right; two runs in
/// different orders must at least agree.
fn without_reference(args: &Args, plan: &Plan, options: &CpuOptions) -> Result<()> {
    let run = {
        let _progress = Progress::new("running the plan twice on the CPU");
        repeat_on_cpu(plan, options).map_err(failure)?
    };
    said(plan, options, &run.report)?;
    detail!(
        "no reference is known (`--reference PIPELINE` names one): run again in another order"
    )?;
    let figures = launches(options.launches as usize, plan.mesh.size() as usize);
    let files = args.export(run.held.into_iter().map(Ok))?;
    let mut report = report(plan, options, &run.report, files);
    report["not_finite"] = run.nonfinite.into();
    report["differ"] = run.differ.into();
    if run.nonfinite == 0 && run.differ == 0 {
        report["verdict"] = "RAN".into();
        output::report(|| report)?;
        return output::verdict(
            true,
            format_args!(
                "RAN (no reference): {figures}, all results finite, the same bits in both orders; \
                 whether the numbers are right is not known"
            ),
        );
    }
    report["verdict"] = "FAIL".into();
    let (bad, differ) = (run.nonfinite, run.differ);
    let text = format!("{} not finite, {differ} differ between the orders", count(bad, "element"));
    output::verdict(false, format_args!("FAIL: {figures}, {text}"))?;
    let what = "the results are wrong, or depend on the order";
    Err(Failure::new(Kind::Wrong, what).with_report(report))
}

fn figures(report: &RunReport) -> String {
    let apart = match report.max_drift {
        0 => "ranks in the same launch".into(),
        n => format!("ranks up to {} apart", count(n, "launch")),
    };
    format!("{} in {}, {apart}", count(report.tasks, "task"), count(report.steps, "step"))
}

fn failure(error: HarnessError) -> Failure {
    match &error {
        HarnessError::TooLarge { .. } | HarnessError::Sim(mk::sim::SimError::TooLarge { .. }) => {
            Failure::with_help(
                Kind::TooLarge,
                error,
                "use smaller numbers (`--dim`, `--shape`) or fewer `--launches`, or run on GPUs",
            )
        }
        _ => error.into(),
    }
}
