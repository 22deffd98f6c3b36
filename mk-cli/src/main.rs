//! The `mk` command: checks, prints, emits, builds, runs and tunes pipelines.
//!
//! Results go to stdout, errors and progress to stderr. The exit status is 0 only for success, 2 for a command line
//! that cannot be read, and 1 for everything else that fails.

mod build;
mod check;
mod doctor;
mod emit;
mod explain;
mod failure;
mod gpus;
mod options;
mod output;
mod pipeline;
mod plan;
mod probe;
mod progress;
mod run;
mod trace;
mod tune;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A plan compiler for fused communication + compute GPU kernels.
#[derive(Parser)]
#[command(name = "mk", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what this machine has, what is missing, and how to get it
    Doctor(doctor::Args),
    /// Lower a pipeline (or read a plan) and verify it
    Check(check::Args),
    /// Print or draw the tile plan
    Plan(plan::Args),
    /// Print the CUDA kernel of a verified plan
    Emit(emit::Args),
    /// Compile the kernel to a CUBIN and report its resources
    Build(build::Args),
    /// Run all ranks in this process with random inputs, and compare with a reference
    Run(run::Args),
    /// Run on GPUs with tracing on, and show what every CTA did and waited for
    Trace(trace::Args),
    /// Say how long a pipeline should take, what bounds it, and what else was considered
    Explain(explain::Args),
    /// Measure this machine for the cost model
    Probe(probe::Args),
    /// Measure ways of lowering a pipeline on GPUs, and say which is best
    Tune(tune::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Emit(args) => emit::run(&args),
        Command::Build(args) => build::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Tune(args) => tune::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
