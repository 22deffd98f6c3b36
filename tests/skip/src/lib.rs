//! Tests that a machine cannot run: they say so, are counted, and fail where the machine was promised.
//!
//! A test that lacks something calls [`skip`] and returns. `SKIPPED <test>: <reason>` goes to stdout, and to the file
//! that `MK_SKIPPED` names, if it is set: libtest hides the output of tests that pass, and `cargo xtask test` counts the
//! lines of that file.
//!
//! `MK_REQUIRE_GPU=N` promises N GPUs: a test that skips for want of N or fewer panics. `MK_REQUIRE_RDMA=1` promises an RDMA device.

use std::{
    env,
    fmt::{Display, Formatter, Result},
    fs::OpenOptions,
    io::Write,
    path::PathBuf,
    thread,
};

/// What a test cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// So many GPUs.
    Gpus(usize),
    /// The CUDA compiler as a library, which `cargo xtask setup` installs.
    Nvrtc,
    /// libfabric, which `cargo xtask setup` unpacks.
    Fabric,
    /// An RDMA device, and libibverbs.
    Rdma,
    /// A program, by its name.
    Program(&'static str),
    /// Minutes: `cargo xtask sweep` of this name.
    Sweep(&'static str),
}

impl Display for Need {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Need::Gpus(1) => f.write_str("a GPU"),
            Need::Gpus(n) => write!(f, "{n} GPUs"),
            Need::Nvrtc => f.write_str("NVRTC (`cargo xtask setup`)"),
            Need::Fabric => f.write_str("libfabric (`cargo xtask setup`)"),
            Need::Rdma => f.write_str("an RDMA device (`cargo xtask softroce` has one)"),
            Need::Program(name) => write!(f, "`{name}`"),
            Need::Sweep(name) => write!(f, "`cargo xtask sweep {name}`"),
        }
    }
}

/// Says that the calling test is skipped; the test returns afterwards.
///
/// # Panics
/// Where `MK_REQUIRE_GPU` or `MK_REQUIRE_RDMA` promises what is missing.
pub fn skip(need: Need, why: impl Display) {
    let why = why.to_string();
    let why = why.lines().next().unwrap_or_default();
    let reason = match why {
        "" => format!("needs {need}"),
        why => format!("needs {need}: {why}"),
    };
    let [gpus, rdma] =
        ["MK_REQUIRE_GPU", "MK_REQUIRE_RDMA"].map(|name| promised(env::var(name).ok().as_deref()));
    if let Need::Gpus(n) = need {
        assert!(n > gpus, "{reason} (MK_REQUIRE_GPU promises {gpus})");
    }
    assert!(need != Need::Rdma || rdma == 0, "{reason} (MK_REQUIRE_RDMA promises one)");
    let line = format!("SKIPPED {}: {reason}\n", test());
    print!("{line}");
    if let Some(file) = env::var_os("MK_SKIPPED") {
        let file = PathBuf::from(file);
        let opened = OpenOptions::new().append(true).create(true).open(&file);
        // One write of a short line to a file opened for appending is whole, whichever process wrote it.
        let written = opened.and_then(|mut f| f.write_all(line.as_bytes()));
        written.unwrap_or_else(|e| panic!("MK_SKIPPED={}: {e}", file.display()));
    }
}

/// How many `MK_REQUIRE_GPU` or `MK_REQUIRE_RDMA` promises.
fn promised(text: Option<&str>) -> usize {
    match text {
        None | Some("") => 0,
        Some(n) => n.parse().unwrap_or_else(|_| panic!("a promise of {n}: use a number")),
    }
}

/// The test that runs, with the binary that it is in.
fn test() -> String {
    let binary = env::current_exe().ok();
    let stem = binary.as_ref().and_then(|b| b.file_stem()).unwrap_or_default().to_string_lossy();
    // cargo puts a hash behind the name.
    let binary = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    format!("{binary}::{}", thread::current().name().unwrap_or("main"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_gpus_is_promised() {
        assert_eq!([promised(None), promised(Some("")), promised(Some("0"))], [0; 3]);
        assert_eq!([promised(Some("1")), promised(Some("8"))], [1, 8]);
        let wrong = std::panic::catch_unwind(|| promised(Some("yes")));
        assert!(wrong.is_err());
    }

    #[test]
    fn tests_have_names() {
        assert_eq!(test(), "mk_skip::tests::tests_have_names");
        let needs =
            [Need::Gpus(1), Need::Gpus(4), Need::Nvrtc, Need::Program("c++"), Need::Sweep("ui")];
        let text = needs.map(|n| n.to_string());
        assert_eq!(
            text,
            ["a GPU", "4 GPUs", "NVRTC (`cargo xtask setup`)", "`c++`", "`cargo xtask sweep ui`"]
        );
    }
}
