//! `cargo xtask softroce`: tests of RDMA on a machine without an RDMA device.
//!
//! Debian's kernel has `rdma_rxe`, which makes an RDMA device of any network interface (soft-RoCE), and QEMU boots that
//! kernel in a few seconds without KVM. Packages are downloaded and unpacked below `.softroce`; nothing is installed
//! and no root is needed. The test binaries are ordinary ones of this workspace, with feature `verbs`, packed into the
//! VM's memory beside their libraries. Their log and their exit status come out. Correctness only: it moves 50 to 70
//! MB/s.

mod image;
mod packages;
mod suite;
mod vm;

use crate::run::{Result, root};
use std::{path::PathBuf, time::Instant};

/// What the command takes.
#[derive(clap::Args)]
pub struct SoftroceArgs {
    /// Only tests whose names contain one of these.
    filter: Vec<String>,
    /// Seconds that the VM may take.
    #[arg(long, default_value_t = 175)]
    limit: u64,
}

/// Builds what is needed once, boots the VM, and runs the tests in it.
pub fn softroce(args: &SoftroceArgs) -> Result<()> {
    let unpacked = packages::unpack(&folder())?;
    let base = image::base(&unpacked)?;
    let binaries = suite::build(&unpacked)?;
    let begin = Instant::now();
    let script = suite::script(&binaries, &args.filter);
    let image = image::with_tests(&unpacked, &base, &binaries, &script)?;
    let log = folder().join("log");
    let outcome = vm::run(&unpacked, &image, args.limit, &log)?;
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("    softroce: {seconds:.1} s, log in {}", log.display());
    suite::judge(&outcome, &binaries, args.filter.is_empty())
}

/// What is unpacked and built; git ignores it.
fn folder() -> PathBuf {
    root().join(".softroce")
}
