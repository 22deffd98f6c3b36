//! Developer commands: `cargo xtask setup | demo | test | tidy | wheel | torch | site | mutants | sweep | bless | sass
//! | softroce`.

mod checks;
mod counts;
mod decisions;
mod demo;
mod documents;
mod fabric;
mod features;
mod help;
mod imports;
mod python;
mod run;
mod sass;
mod setup;
mod site;
mod softroce;
mod strata;
mod tests;
mod words;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of mk")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs the CUDA compiler (NVRTC) and disassembler into .nvrtc, and libfabric into .fabric, unless they are
    /// there.
    Setup,
    /// Compiles a pipeline, shows plan, verification and kernel, and runs it: on GPUs if there are some, else on the
    /// CPU.
    Demo,
    /// Everything that a machine without a GPU can test.
    Test,
    /// Formatting, lints, documentation without warnings, and `tidy`.
    Lint,
    /// The part of `lint` that reads sources and documents: directions of imports, words, links, paths, lengths.
    Tidy,
    /// Builds the Python wheel into target/wheels, installs it into an environment of its own, and tests it there.
    Wheel,
    /// Installs torch into target/torch-venv, unless it is there, and runs the tests that need it and no GPU.
    Torch {
        /// Also transformers, torchtitan, megatron-core and nbclient, of the versions that docs/integrations.md names,
        /// and their tests.
        #[arg(long)]
        all: bool,
    },
    /// The reference as pages, of Rust and of Python: target/site/index.html.
    Site,
    /// All mutants of all plans, and 10,000 random cases, before the verifier, the explorer and the executor.
    Mutants,
    /// A full grid of sizes, of which tests take a part at random: prints how many there are, and how long they took.
    Sweep {
        /// Which one: attention, experts, nodes.
        name: String,
    },
    /// Takes the present output of snapshot and ui tests as right, and writes the list of decisions.
    Bless {
        /// Only writes the list of decisions.
        #[arg(long)]
        decisions: bool,
    },
    /// Compares the machine code of two revisions' kernels, without a GPU.
    Sass(sass::SassArgs),
    /// Runs the RDMA transport's tests in a VM with a software RDMA device: packages are unpacked into .softroce,
    /// nothing is installed.
    Softroce(softroce::SoftroceArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Setup => setup::setup().and_then(|()| fabric::setup()),
        Command::Demo => demo::demo(),
        Command::Test => checks::test(),
        Command::Lint => checks::lint(),
        Command::Tidy => checks::tidy(),
        Command::Wheel => python::wheel(),
        Command::Torch { all } => python::torch(all),
        Command::Site => site::site(),
        Command::Mutants => checks::mutants(),
        Command::Sweep { name } => checks::sweep(&name),
        Command::Bless { decisions } => checks::bless(decisions),
        Command::Sass(args) => sass::sass(&args),
        Command::Softroce(args) => softroce::softroce(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
