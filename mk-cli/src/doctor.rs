//! `mk doctor`.

use crate::{failure::Failure, output::say};
use mk::runtime::{doctor::Doctor, jit::JitOptions};

/// Options of `mk doctor`.
#[derive(clap::Args)]
pub struct Args {}

/// A machine that lacks something is no failure: saying so is the command's purpose.
pub fn run(_: &Args) -> Result<(), Failure> {
    let doctor = Doctor::examine(&JitOptions::default());
    say!("{}", doctor.to_string().trim_end())?;
    let verdict = match (doctor.can_run(), doctor.nvrtc.is_ok()) {
        (true, _) => "kernels can be compiled and run here",
        (false, true) => "kernels can be compiled here; `mk run` uses the CPU executor",
        (false, false) => "plans can be checked and emitted here; `mk run` uses the CPU executor",
    };
    say!("\n{verdict}")
}
