//! `cargo xtask demo`: the README's pipeline from source to a verified kernel and its result.

use crate::{
    run::{Result, cargo, root, step},
    setup::setup,
};
use std::{fs, process::Command};

const PIPELINE: &str = "examples/gather_gemm.mk";
/// Lines of a kernel's own part that are shown.
const EXCERPT: usize = 60;

/// Runs the demo.
pub fn demo() -> Result<()> {
    setup()?;
    step("building mk", &mut cargo(&["build", "--quiet", "--package", "mk-cli"]))?;
    let mk = root().join("target/debug/mk");
    let out = root().join("target/demo");
    fs::create_dir_all(&out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    let kernel = out.join("kernel.cu");
    let run = |title: &str, args: &[&str]| {
        step(title, Command::new(&mk).args(args).args(["--ranks", "4"]).current_dir(root()))
    };
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    println!(
        "{}",
        fs::read_to_string(root().join(PIPELINE)).map_err(|e| format!("{PIPELINE}: {e}"))?
    );
    run("the tile plan", &["plan", PIPELINE])?;
    run("verification", &["check", PIPELINE])?;
    run("the kernel", &["emit", PIPELINE, "-o", &text(&kernel)])?;
    let cuda = fs::read_to_string(&kernel).map_err(|e| format!("{}: {e}", kernel.display()))?;
    let own =
        cuda.split_once("// ==== end of the device library ====").map_or(cuda.as_str(), |x| x.1);
    let begin = own.find("// The ring of stages").unwrap_or(0);
    for line in own[begin..].lines().take(EXCERPT) {
        println!("    {line}");
    }
    println!("    … all of it: {}", kernel.display());
    run("compiling it for sm_90a", &["build", PIPELINE, "-o", &text(&out.join("kernel.cubin"))])?;
    run("running it", &["run", PIPELINE, "--device", "auto", "--launches", "3"])
}
