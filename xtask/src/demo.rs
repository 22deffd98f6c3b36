//! `cargo xtask demo`: the README's pipeline from source to a verified kernel and its result.

use crate::{
    run::{Result, cargo, read, root, step, target},
    setup::setup,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PIPELINE: &str = "examples/gather_gemm.mk";
/// Lines of a kernel's own part that are shown.
const EXCERPT: usize = 60;

/// Sizes that keep GPUs busy; on the CPU those of the file's header are used.
const ON_GPUS: &[&str] = &["--dim", "M=8192", "--dim", "K=8192", "--dim", "N=8192", "--time"];
/// Ranks on the CPU, and most GPUs that are used.
const RANKS: usize = 4;

/// Runs the demo.
pub fn demo() -> Result<()> {
    setup()?;
    step("building mk", &mut cargo(&["build", "--quiet", "--package", "mk-command"]))?;
    let folder = folder()?;
    let kernel = folder.join("kernel.cu");
    let gpus = gpus()?;
    // One GPU has nobody to communicate with: all ranks on the CPU show more.
    let (device, ranks) = if gpus > 1 { ("cuda", gpus) } else { ("cpu", RANKS) };
    let ranks = ranks.to_string();
    let run = |title: &str, args: &[&str]| step(title, mk(args).args(["--ranks", &ranks]));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    println!(
        "{}",
        fs::read_to_string(root().join(PIPELINE)).map_err(|e| format!("{PIPELINE}: {e}"))?
    );
    run("the tile plan", &["plan", PIPELINE])?;
    run("verification", &["check", PIPELINE])?;
    run("the kernel", &["emit", PIPELINE, "-o", &text(&kernel)])?;
    let cuda = read(&kernel)?;
    let own =
        cuda.split_once("// ==== end of the device library ====").map_or(cuda.as_str(), |x| x.1);
    let begin = own.find("// The ring of stages").unwrap_or(0);
    for line in own[begin..].lines().take(EXCERPT) {
        println!("    {line}");
    }
    println!("    … all of it: {}", kernel.display());
    let cubin = folder.join("kernel.cubin");
    run("compiling it for sm_90a", &["build", PIPELINE, "-o", &text(&cubin)])?;
    let sizes = if device == "cuda" { ON_GPUS } else { &[] };
    let args = [&["run", PIPELINE, "--device", device, "--launches", "3"], sizes].concat();
    run(if device == "cuda" { "running it on GPUs" } else { "running it on the CPU" }, &args)
}

/// The command that was built, wherever cargo puts it.
fn mk(args: &[&str]) -> Command {
    cargo(&[&["run", "--quiet", "--package", "mk-command", "--"], args].concat())
}

/// GPUs that run generated kernels, at most [`RANKS`].
fn gpus() -> Result<usize> {
    let output = mk(&["doctor"]).output().map_err(|e| format!("mk doctor does not start: {e}"))?;
    if !output.status.success() {
        return Err(format!("mk doctor failed ({})", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let fit = text.lines().filter(|l| l.starts_with("GPU ") && l.contains("capability 9.0"));
    Ok(fit.count().min(RANKS))
}

/// Where the demo leaves its files.
fn folder() -> Result<PathBuf> {
    let folder = target().join("demo");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    Ok(folder)
}
