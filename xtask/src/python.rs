//! The Python module: built, laid out as a package, tested; as a wheel.

use crate::counts::Counts;
use crate::run::{Result, cargo, entries, root, step, target};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What builds the wheel, from PyPI: zig links against a C library that is as old as torch's wheels take
/// (manylinux_2_28), whatever this machine has.
const BUILDERS: &[&str] = &["maturin==1.16.0", "ziglang==0.14.1"];
const GLIBC: &str = "2.28";

/// Tests that need neither torch nor a GPU.
const MODULE_TESTS: &str = "mk-python/tests";
const BENCH_TESTS: &str = "benches/torch_peers";
const SHAPES_TESTS: &str = "benches/random_shapes";
const STEP_TESTS: &str = "benches/step";

/// Builds the module and runs its tests and those of what uses it, without torch and without a GPU.
pub fn test(counts: &mut Counts) -> Result<()> {
    let path = package()?;
    for (name, folder) in [
        ("Python tests", MODULE_TESTS),
        ("tests of the comparison", BENCH_TESTS),
        ("tests of random shapes", SHAPES_TESTS),
        ("tests of the step's kernels", STEP_TESTS),
    ] {
        counts.run_python(name, tests(Path::new("python3"), folder).env("PYTHONPATH", &path))?;
    }
    Ok(())
}

/// Builds the module and lays it out as a package, in the folder that is returned.
pub fn package() -> Result<PathBuf> {
    step(
        "building the Python module",
        &mut cargo(&["build", "--quiet", "--package", "mk-python"]),
    )?;
    let package = target().join("python/mk");
    fresh(&package)?;
    copy(&root().join("mk-python/python/mk"), &package)?;
    let library = target().join("debug/lib_mk.so");
    fs::copy(&library, package.join("_mk.abi3.so"))
        .map_err(|e| format!("{}: {e}", library.display()))?;
    Ok(target().join("python"))
}

/// torch, from PyPI: 5.4 GB installed, for CUDA although nothing here needs it.
const TORCH: &[&str] = &["torch==2.15.0", "numpy"];

/// What tests of integrations need beside it; `mk-python/tests` skips them without.
const OTHERS: &[&str] = &[
    "transformers==5.24.0",
    "torchtitan==0.3.0",
    "megatron-core==0.16.1",
    "nbclient==0.11.0",
    "nbformat",
    "ipykernel",
];

/// Installs torch into an environment of its own, and runs with it the tests that skip without, and the training
/// example on CPU tensors. With `all`, packages that mk is put into are installed, too; without, tests of those that
/// are not there may be skipped.
pub fn torch(all: bool) -> Result<()> {
    let venv = target().join("torch-venv");
    let python = venv.join("bin/python3");
    let install = |what: &str, packages: &[&str], mark: &str| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]).args(packages);
        step(&format!("installing {what} from PyPI"), &mut pip)?;
        let mark = venv.join(mark);
        fs::write(&mark, packages.join(" ")).map_err(|e| format!("{}: {e}", mark.display()))
    };
    if !venv.join("installed").exists() {
        let mut make = Command::new("python3");
        step("making a Python environment", make.args(["-m", "venv", "--clear"]).arg(&venv))?;
        install("torch (5.4 GB)", TORCH, "installed")?;
    }
    if all && !venv.join("others").exists() {
        install("what mk is put into (1 GB)", OTHERS, "others")?;
    }
    let path = package()?;
    // By themselves: beside them, others put a torch of their own in its place.
    let mut tests = tests(&python, MODULE_TESTS);
    tests.args(["--pattern", "test_torch*.py"]);
    let mut counts = Counts::default();
    counts.run_python("Python tests with torch", tests.env("PYTHONPATH", &path))?;
    counts.all_ran(if all { &[] } else { OPTIONAL })?;
    for example in ["examples/tp_llama.py", "examples/moe_train.py"] {
        let mut train = Command::new(&python);
        train.arg(root().join(example));
        train.args(["--device", "cpu", "--layers", "2", "--steps", "5"]).env("PYTHONPATH", &path);
        step("training on CPU tensors", &mut train)?;
    }
    Ok(())
}

/// How tests say that a package of [`OTHERS`] is missing.
const OPTIONAL: &[&str] = &[
    "transformers is not installed",
    "torchtitan is not installed",
    "megatron-core is not installed",
    "nbclient is not installed",
];

/// Builds the wheel into `target/wheels`, installs it into an environment of its own, and tests it there.
pub fn wheel() -> Result<()> {
    let venv = target().join("wheel-venv");
    let python = venv.join("bin/python3");
    if !python.exists() {
        let mut make = Command::new("python3");
        step("making a Python environment", make.args(["-m", "venv", "--clear"]).arg(&venv))?;
    }
    let pip = |args: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args);
        command
    };
    step("installing maturin and zig", pip(&["install"]).args(BUILDERS))?;
    // The wheel is built of the source distribution, so that this builds, too. Files get the time of unpacking, by
    // which cargo knows that they are new.
    let sources = target().join("sdist");
    fresh(&sources)?;
    let maturin = || {
        let mut command = Command::new(venv.join("bin/maturin"));
        // It calls zig by the Python whose package it is.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", venv.join("bin").display())).current_dir(root());
        command
    };
    let mut pack = maturin();
    pack.args(["sdist", "--manifest-path"]).arg(root().join("mk-python/Cargo.toml"));
    step("packing the sources", pack.arg("--out").arg(&sources))?;
    let packed = only_file(&sources)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzmf").arg(&packed).args(["--strip-components", "1", "--directory"]);
    step("unpacking them", unpack.arg(&sources))?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = maturin();
    build.current_dir(&sources).env("CARGO_TARGET_DIR", target());
    let wheels = target().join("wheels");
    fresh(&wheels)?;
    build.args(["build", "--release", "--quiet", "--zig", "--target", &triple]);
    build.arg("--compatibility").arg(format!("manylinux_{}", GLIBC.replace('.', "_")));
    build.arg("--out").arg(&wheels);
    step("building the wheel", build.arg("--interpreter").arg(&python))?;
    let wheel = only_file(&wheels)?;
    let text = wheel.to_string_lossy().into_owned();
    step("installing it", &mut pip(&["install", "--force-reinstall", "--no-deps", &text]))?;
    step("Python tests of the wheel", &mut tests(&python, MODULE_TESTS))?;
    step("its command", Command::new(venv.join("bin/mk")).arg("--version"))?;
    println!("{text}");
    Ok(())
}

fn tests(python: &Path, folder: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "discover", "--verbose", "--start-directory"]);
    command.arg(root().join(folder)).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(root());
    command
}

/// An empty folder.
pub fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// Copies the files of a folder, and those of folders in it, but what Python made of them.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in entries(from)? {
        let name = entry.file_name().unwrap_or_default();
        if entry.is_file() {
            copy_file(&entry, &to.join(name))?;
        } else if name != "__pycache__" {
            fresh(&to.join(name))?;
            copy(&entry, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(|_| ()).map_err(|e| format!("{}: {e}", from.display()))
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    match entries(folder)?.as_slice() {
        [file] => Ok(file.clone()),
        all => Err(format!("{} has {} files, and one was built", folder.display(), all.len())),
    }
}
