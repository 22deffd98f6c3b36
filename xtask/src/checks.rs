//! `cargo xtask test` and `cargo xtask lint`: tests; formatting, lints, documentation, and what reviewers would
//! otherwise repeat.

use crate::{
    counts::Counts,
    decisions, documents, fabric, features, help, python,
    run::{self, Result, below, cargo, quiet, read, root, step, target},
    setup::setup,
    strata, tests, words,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// Lines at which a file is too long to be one idea.
const MAX_LINES: usize = 1000;
/// Lines at which a file is worth a second thought.
const MANY_LINES: usize = 600;
/// Words that unfinished code has.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "#[ignore"];

/// What a run from a clean clone takes: minutes on two free cores, and gigabytes in `target`.
const MINUTES: u32 = 26;
const GIGABYTES: f64 = 11.0;

/// Says how long it takes, and how much disk, before anything is built.
fn announce() {
    let built = if target().join("debug").exists() { ", less where much is built" } else { "" };
    eprintln!(
        "about {MINUTES} minutes on two free cores and {GIGABYTES} GB in {}, from a clean clone{built}",
        target().display()
    );
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next().map(|n| format!(", load {n}")));
    let free = free_gigabytes().map_or(String::new(), |n| format!(", {n:.1} GB free"));
    eprintln!("    here: {cores} cores{}{free}", load.unwrap_or_default());
}

/// What `df` says of the disk of the checkout.
fn free_gigabytes() -> Option<f64> {
    let text = quiet(Command::new("df").args(["-Pk", "."]).current_dir(root())).ok()?;
    let kib: f64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib * 1024.0 / 1e9)
}

/// Runs all tests.
pub fn test() -> Result<()> {
    announce();
    setup()?;
    fabric::setup()?;
    let mut counts = Counts::default();
    tests::run(&mut counts)?;
    python::test(&mut counts)?;
    counts.finish()
}

/// Formatting, lints, documentation, and the rules of sources.
pub fn lint() -> Result<()> {
    tidy()?;
    step("formatting", &mut cargo(&["fmt", "--all", "--check"]))?;
    step(
        "lints",
        &mut cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    let mut doc = cargo(&["doc", "--quiet", "--workspace", "--no-deps"]);
    step("documentation", doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// What a reviewer would otherwise repeat about sources and documents, which takes a second.
pub fn tidy() -> Result<()> {
    eprintln!("==> source rules");
    source_rules()
}

/// What `cargo test` takes a part of: see `docs/verification.md`.
pub fn mutants() -> Result<()> {
    let tests = [("mk-codegen", "mutants"), ("mk-codegen", "scaled"), ("mk-harness", "random")];
    for (package, test) in tests {
        let args = ["test", "--release", "-p", package, "--test", test, "--", "--nocapture"];
        let mut tests = cargo(&args);
        step(test, tests.env("MK_SWEEP", "all").env("MK_RANDOM_CASES", "10000"))?;
    }
    Ok(())
}

/// Grids, with the package and the tests that take a part of them.
const GRIDS: [(&str, &str, &[&str]); 16] = [
    ("attention", "mk-harness", &["attention", "attention_grad", "sweep_attention", "ulysses"]),
    ("documents", "mk-harness", &["sweep_documents"]),
    ("experts", "mk-harness", &["experts_backward", "few_tokens", "sweep_experts"]),
    ("experts_nodes", "mk-harness", &["sweep_experts_nodes"]),
    ("gemms_nodes", "mk-harness", &["sweep_gemms_nodes"]),
    ("kernels", "mk-kernels", &["nvrtc"]),
    ("fp8", "mk-harness", &["scaled_experts", "sweep_fp8"]),
    ("meshes", "mk-harness", &["experts_meshes", "meshes", "meshes_nodes", "sweep_meshes"]),
    ("messages", "mk-command", &["cli"]),
    ("network", "mk-harness", &["network"]),
    ("nodes", "mk-harness", &["sweep_nodes"]),
    ("pipelines", "mk-kernels", &["pipelines", "grad", "tune"]),
    ("placements", "mk-syntax", &["placements"]),
    (
        "plans",
        "mk-codegen",
        &[
            "emission",
            "equivalence",
            "executor",
            "grouped",
            "hostile",
            "lowering",
            "refusals",
            "scaled",
            "scaled_experts",
        ],
    ),
    ("tokens", "mk-codegen", &["dispatch", "tables_on_host"]),
    ("ui", "mk-kernels", &["ui"]),
];

/// A full grid of sizes.
pub fn sweep(name: &str) -> Result<()> {
    let Some((_, package, tests)) = GRIDS.iter().find(|grid| grid.0 == name) else {
        let names = GRIDS.map(|grid| grid.0).join(", ");
        return Err(format!("there is no grid `{name}`: {names}"));
    };
    let mut grid = cargo(&["test", "--release", "-p", package]);
    for test in *tests {
        grid.args(["--test", test]);
    }
    step(name, grid.args(["--", "--nocapture"]).env("MK_SWEEP", "all"))
}

/// Writes the list of decisions, and re-blesses snapshot and ui tests unless only that list is asked for.
pub fn bless(only_decisions: bool) -> Result<()> {
    decisions::bless()?;
    if only_decisions {
        return Ok(());
    }
    setup()?;
    let mut tests = cargo(&["test", "--workspace"]);
    step(
        "tests, taking their output",
        tests.env("INSTA_UPDATE", "always").env("TRYBUILD", "overwrite"),
    )
}

fn source_rules() -> Result<()> {
    let mut wrong = Vec::new();
    strata::check(&mut wrong)?;
    documents::check(&mut wrong)?;
    decisions::check(&mut wrong)?;
    features::check(&mut wrong)?;
    for file in files(&root())? {
        let text = read(&file)?;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        words::check(&file, &text, &mut wrong);
        if name.ends_with(".md") {
            continue;
        }
        help::check(&name, &text, &mut wrong);
        if name.ends_with(".py") || name.ends_with(".pyi") {
            continue;
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{name} has {lines} lines: split it"));
        } else if lines > MANY_LINES {
            eprintln!("    note: {name} has {lines} lines");
        }
        // This file names them.
        if !name.starts_with("xtask") {
            let code = without_comments(&text);
            let found = UNFINISHED.iter().filter(|w| code.contains(**w));
            wrong.extend(found.map(|w| format!("{name} contains `{w}`")));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n       ")) }
}

/// Rust, CUDA, template and Python files and documents below a folder, without build output and what a link leads to.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = below(folder, &|name| !name.starts_with('.') && !name.starts_with("target"))?;
    files.retain(|path| words::has_words(&run::name(path)));
    Ok(files)
}

/// The text with line comments blanked; lines keep their numbers. A `//` in a string ends its line, too, which hides
/// nothing that is looked for.
fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    code.collect::<Vec<_>>().join("\n")
}
