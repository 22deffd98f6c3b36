//! The `mk` command: checks, prints, emits, builds, runs and tunes pipelines. `main.rs` and the Python module call
//! [`run`].
//!
//! Results go to stdout, errors and progress to stderr. The exit status is 0 only for success, 2 for a command line
//! that cannot be read, and 1 for everything else that fails.

mod build;
mod check;
mod doctor;
mod emit;
mod end;
mod environment;
mod explain;
mod failure;
mod gpus;
mod grad;
mod log;
mod manual;
mod options;
mod output;
mod pipeline;
mod plan;
mod probe;
mod progress;
mod run;
mod source;
mod terminal;
mod trace;
mod tune;

use clap::{CommandFactory, Parser, Subcommand};
use std::{ffi::OsString, io::Write};

pub use log::Log;

/// A plan compiler for fused communication + compute GPU kernels.
#[derive(Parser)]
#[command(name = "mk", version, arg_required_else_help = true, after_help = environment::help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    terminal: terminal::Args,
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
    /// Print the pipelines of its forward and backward, derived
    Grad(grad::Args),
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
    /// Measure strategies and settings of a pipeline on GPUs, and say which are best
    Tune(tune::Args),
    /// Print a script that completes this command's options in a shell
    Completions(manual::Completions),
    /// Print the manual page, or write one for every command into a folder
    Man(manual::Man),
}

impl Command {
    /// Its name, where its report is to be one object.
    fn json(&self) -> Option<&'static str> {
        let (json, name) = match self {
            Command::Doctor(args) => (args.json, "doctor"),
            Command::Check(args) => (args.json, "check"),
            Command::Build(args) => (args.json, "build"),
            Command::Run(args) => (args.json, "run"),
            Command::Explain(args) => (args.json, "explain"),
            _ => return None,
        };
        json.then_some(name)
    }
}

/// Commands with `--json`.
const WITH_JSON: [&str; 5] = ["doctor", "check", "build", "run", "explain"];

/// The command of words that are no command line, where its report was to be one object.
fn asks_for_json(words: &[String]) -> Option<&'static str> {
    let mut before = words.iter().take_while(|w| *w != "--");
    let command = before.find_map(|w| WITH_JSON.into_iter().find(|name| w == name))?;
    before.any(|w| w == "--json").then_some(command)
}

/// Runs the command that `words` (without the program's name) ask for, once in a process, and returns its exit status.
/// `listen` has the log take the events of the libraries.
pub fn run(words: Vec<OsString>, listen: impl FnOnce(Log)) -> u8 {
    let status = ended(words, listen);
    // A host that is no Rust program does not flush it. Without stdout there is nobody left to tell.
    let _ = std::io::stdout().flush();
    status
}

fn ended(words: Vec<OsString>, listen: impl FnOnce(Log)) -> u8 {
    let texts: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    terminal::color_from(&texts);
    let cli = match Cli::try_parse_from([OsString::from("mk")].into_iter().chain(words)) {
        Ok(cli) => cli,
        Err(error) => return end::usage(&error, asks_for_json(&texts)),
    };
    terminal::set(cli.terminal, cli.command.json());
    listen(Log::new());
    let done = match cli.command {
        Command::Doctor(_) => doctor::run(),
        Command::Check(args) => check::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Emit(args) => emit::run(&args),
        Command::Grad(args) => grad::run(&args),
        Command::Build(args) => build::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Man(args) => manual::man(&args, Cli::command()),
    };
    match done {
        Ok(()) => 0,
        Err(failure) => end::failed(failure),
    }
}
