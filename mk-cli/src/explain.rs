//! `mk explain`.

use crate::{
    failure::Failure,
    options::PipelineArgs,
    output::say,
    pipeline::{self, Pipeline},
    tune::model,
};
use mk::{
    cost::Prediction,
    tune::{self, Facts},
};
use std::path::PathBuf;

/// Options of `mk explain`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Figures of the machine, as `mk probe` writes them [default: those of an H200]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
}

/// Says what is predicted, and why.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = model(args.model.as_deref())?;
    let Pipeline { program, bound } = pipeline::bind(&args.pipeline)?;
    let config = pipeline::config(&args.pipeline)?;
    let facts = Facts::new(&program, &bound, config.ranks);
    let p = tune::predict(&program, &bound, &config, &model).map_err(Failure::new)?;
    say!("config     {}", tune::write(&config, &facts))?;
    describe(&p)
}

fn describe(p: &Prediction) -> Result<(), Failure> {
    say!("predicted  {:.1} us, bound by {}", 1e6 * p.total_s, p.bound)?;
    for (what, s) in &p.shares {
        say!("  {:<22} {:>8.1} us", what.to_string(), 1e6 * s)?;
    }
    for r in &p.roles {
        say!(
            "  {:<12} {:>3} CTAs: at work {:.1} us, waiting {:.1}, done {:.1}",
            r.role,
            r.ctas,
            1e6 * r.busy_s,
            1e6 * r.wait_s,
            1e6 * r.idle_s
        )?;
    }
    for c in p.chain.iter().take(12) {
        say!(
            "    {:>8.1} .. {:>8.1} us  rank {} CTA {:>3}  {} {}{}",
            1e6 * c.begin_s,
            1e6 * c.end_s,
            c.rank,
            c.cta,
            c.family,
            c.task,
            if c.by_post { "  (waited for a post)" } else { "" }
        )?;
    }
    Ok(())
}
