//! `mk run` on the CPU executor.

use super::{Args, verdict::Verdict};
use crate::{failure::Failure, output::say, pipeline::Loaded, progress::Progress};
use mk::{
    ir::Plan,
    sim::{RunReport, Schedule},
};
use mk_harness::{Case, CpuOptions, HarnessError, check_work, repeat_on_cpu, run_on_cpu};

pub fn run(args: &Args, loaded: &Loaded) -> Result<(), Failure> {
    let schedule = args.schedule.unwrap_or(Schedule::Random);
    let options = CpuOptions { schedule, seed: args.seed, launches: args.launches };
    let plan = &loaded.plan;
    let Some(pipeline) = &loaded.pipeline else {
        loaded.verify()?;
        return without_reference(plan, &options);
    };
    let ranks = plan.mesh.size() as usize;
    let case = Case { program: &pipeline.program, bound: &pipeline.bound, ranks };
    check_work(case, args.launches).map_err(failure)?;
    loaded.verify()?;
    let run = {
        let _progress = Progress::new(format!("running {ranks} ranks on the CPU"));
        run_on_cpu(case, plan, &options).map_err(failure)?
    };
    say!("plan      {:?}, verified", plan.name)?;
    say!("schedule  {schedule}, seed {}: {}", args.seed, figures(&run.report))?;
    let mut verdict = Verdict::new(case);
    for judged in &run.judged {
        verdict.launch(judged)?;
    }
    verdict.finish()
}

/// A plan by itself does not say what it computes, so that nothing says whether the numbers are right; two runs in different orders must at
/// least agree.
fn without_reference(plan: &Plan, options: &CpuOptions) -> Result<(), Failure> {
    let (report, nonfinite, differ) = {
        let _progress = Progress::new("running the plan twice on the CPU");
        repeat_on_cpu(plan, options).map_err(failure)?
    };
    let ranks = plan.mesh.size();
    say!("plan      {:?}, verified", plan.name)?;
    say!("schedule  {}, seed {}: {}", options.schedule, options.seed, figures(&report))?;
    say!("no reference is known (`--reference PIPELINE` names one): run again in another order")?;
    let figures = format!("{} launches on {ranks} ranks", options.launches);
    if nonfinite == 0 && differ == 0 {
        return say!(
            "RAN (no reference): {figures}, all results finite, the same bits in both orders; \
             whether the numbers are right is not known"
        );
    }
    say!("FAIL: {figures}, {nonfinite} elements not finite, {differ} differ between the orders")?;
    Err(Failure::new("the results are wrong, or depend on the order"))
}

fn figures(report: &RunReport) -> String {
    format!(
        "{} tasks in {} steps, ranks up to {} launches apart",
        report.tasks, report.steps, report.max_drift
    )
}

fn failure(error: HarnessError) -> Failure {
    match &error {
        HarnessError::TooLarge { .. } | HarnessError::Sim(mk::sim::SimError::TooLarge { .. }) => {
            Failure::with_help(
                error,
                "use smaller numbers (`--dim`, `--shape`) or fewer `--launches`, or run on GPUs",
            )
        }
        _ => Failure::new(error),
    }
}
