//! The CUDA compiler as a library, from its Python wheels: no CUDA installation and no GPU are needed.

use crate::run::{self, Result, root, step};
use std::{path::Path, process::Command};

/// Wheel, version, and a file that shows that it is there.
const WHEELS: &[(&str, &str, &str)] = &[
    ("nvidia-cuda-nvrtc", "13.0.88", "nvidia/cu13/lib/libnvrtc.so.13"),
    ("nvidia-cuda-nvdisasm", "13.5.37", "nvidia/cu13/bin/nvdisasm"),
];

/// The versions, as one word.
pub fn versions() -> String {
    let versions: Vec<_> = WHEELS.iter().map(|(_, version, _)| *version).collect();
    versions.join("-")
}

/// Installs what is missing into `.nvrtc`.
pub fn setup() -> Result<()> {
    let target = root().join(".nvrtc");
    let missing: Vec<_> = WHEELS.iter().filter(|(.., file)| !target.join(file).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    run::install(&target, install)
}

fn install(staging: &Path) -> Result<()> {
    let mut pip = pip(staging)?;
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"])
        .arg(staging);
    for (name, version, _) in WHEELS {
        pip.arg(format!("{name}=={version}"));
    }
    step("installing NVRTC and nvdisasm from PyPI (about 100 MB)", &mut pip)?;
    for (name, _, file) in WHEELS {
        if !staging.join(file).exists() {
            return Err(format!("{name} was installed, but has no {file}"));
        }
    }
    Ok(())
}

/// A pip that works: the interpreter's own, or that of a fresh virtual environment.
fn pip(staging: &Path) -> Result<Command> {
    let works = |python: &Path| {
        Command::new(python)
            .args(["-m", "pip", "--version"])
            .output()
            .is_ok_and(|o| o.status.success())
    };
    let with = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-m", "pip"]);
        command
    };
    let python = Path::new("python3");
    if works(python) {
        return Ok(with(python));
    }
    let venv = staging.join("venv");
    let made = Command::new(python).args(["-m", "venv"]).arg(&venv).output();
    let inner = venv.join("bin/python3");
    match made {
        Ok(output) if output.status.success() && works(&inner) => Ok(with(&inner)),
        Ok(output) => Err(format!(
            "python3 has neither pip nor venv (install python3-pip or python3-venv): {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(e) => Err(format!("python3 is needed to install NVRTC, and cannot be run: {e}")),
    }
}
