//! `cargo xtask test`: formatting, lints, tests, documentation, and what reviewers would otherwise repeat.

use crate::{
    imports::{siblings, without_comments},
    python,
    run::{Result, cargo, root, step},
    setup::setup,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lines at which a file is too long to be one idea.
const MAX_LINES: usize = 1000;
/// Lines at which a file is worth a second thought.
const MANY_LINES: usize = 600;
/// Words that unfinished code has.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "#[ignore"];

/// Which crates of ours a crate may use.
const CRATES: &[(&str, &[&str])] = &[
    ("mk-abi", &[]),
    ("mk-dsl/syntax", &[]),
    ("mk-dsl", &["mk-syntax"]),
    ("mk-codegen", &["mk-abi", "mk-syntax"]),
    ("mk-runtime", &["mk-abi"]),
    ("mk-function", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime"]),
    ("mk-tune", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime", "mk-function"]),
    ("mk-harness", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime", "mk-function", "mk-tune"]),
    (".", &["mk-abi", "mk-syntax", "mk-dsl", "mk-codegen", "mk-runtime", "mk-function", "mk-tune"]),
    ("mk-cli", &["mk", "mk-harness"]),
    ("mk-python", &["mk"]),
];

/// Which modules of `mk-codegen` a module may use.
const MODULES: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("target", &[]),
    ("graph", &["ir"]),
    ("valid", &["ir", "target"]),
    ("sim", &["ir"]),
    ("draw", &["ir"]),
    ("settings", &["ir", "target"]),
    ("passes", &["graph", "ir", "settings", "target", "valid"]),
    ("emit", &["ir", "target"]),
    ("trace", &[]),
    ("cost", &["ir"]),
];

/// Runs everything.
pub fn test() -> Result<()> {
    setup()?;
    eprintln!("==> source rules");
    source_rules()?;
    step("formatting", &mut cargo(&["fmt", "--all", "--check"]))?;
    step(
        "lints",
        &mut cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    step("tests", &mut cargo(&["test", "--workspace"]))?;
    python::test()?;
    let mut doc = cargo(&["doc", "--quiet", "--workspace", "--no-deps"]);
    step("documentation", doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// What `cargo test` takes a part of: see `docs/verification.md`.
pub fn mutants() -> Result<()> {
    let args = ["test", "-p", "mk-codegen", "--test", "mutants", "--", "--nocapture"];
    let mut tests = cargo(&args);
    step("mutants", tests.env("MK_MUTANTS", "all").env("MK_RANDOM_CASES", "10000"))
}

/// Re-blesses snapshot and ui tests.
pub fn bless() -> Result<()> {
    setup()?;
    let mut tests = cargo(&["test", "--workspace"]);
    step(
        "tests, taking their output",
        tests.env("INSTA_UPDATE", "always").env("TRYBUILD", "overwrite"),
    )
}

fn source_rules() -> Result<()> {
    let mut wrong = Vec::new();
    crates(&mut wrong)?;
    modules(&mut wrong)?;
    for file in files(&root())? {
        let text = read(&file)?;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
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

fn crates(wrong: &mut Vec<String>) -> Result<()> {
    for (folder, allowed) in CRATES {
        let text = read(&root().join(folder).join("Cargo.toml"))?;
        let dependencies = text.split("\n[dependencies]").nth(1).unwrap_or("");
        let own = dependencies.split("\n[").next().unwrap_or("").lines();
        for line in own.filter(|l| l.starts_with("mk")) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or(line);
            if !allowed.contains(&name) {
                wrong.push(format!("{folder} may use {allowed:?} of ours, and uses {name}"));
            }
        }
    }
    Ok(())
}

fn modules(wrong: &mut Vec<String>) -> Result<()> {
    let source = root().join("mk-codegen/src");
    for file in files(&source)? {
        let inner = file.strip_prefix(&source).unwrap_or(&file).to_string_lossy().into_owned();
        // Tests take what they test from end to end.
        if inner.contains("/tests/") {
            continue;
        }
        let module = inner.split(['/', '.']).next().unwrap_or(&inner);
        let name = format!("mk-codegen/src/{inner}");
        let Some((_, allowed)) = MODULES.iter().find(|(m, _)| *m == module) else {
            if module != "lib" {
                wrong.push(format!("{name}: module `{module}` is not in xtask's list"));
            }
            continue;
        };
        for (line, other) in siblings(&read(&file)?) {
            if other != module && !allowed.contains(&other.as_str()) {
                wrong.push(format!(
                    "{name}:{line}: `{module}` may use {allowed:?}, and uses `{other}`"
                ));
            }
        }
    }
    Ok(())
}

/// Rust, CUDA and template files below a folder, without build output.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let list = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in list {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !name.starts_with("target") {
                out.extend(files(&path)?);
            }
        } else if [".rs", ".cuh", ".cu", ".j2"].iter().any(|e| name.ends_with(e)) {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}
