//! libfabric for tests and for machines without it: Debian's packages, downloaded and unpacked into `.fabric/lib`.
//! Nothing is installed, and no root is needed.

use crate::run::{Result, below, entries, install, quiet, root};
use std::{fs, path::Path, process::Command};

/// Packages (Debian and Ubuntu), and of each the libraries that libfabric needs.
const PACKAGES: &[(&str, &[&str])] = &[
    ("libfabric1", &["libfabric.so.1"]),
    ("libpsm-infinipath1", &["libpsm_infinipath.so.1", "libinfinipath.so.4"]),
    ("libpsm2-2", &["libpsm2.so.2"]),
    ("librdmacm1", &["librdmacm.so.1"]),
    ("libibverbs1", &["libibverbs.so.1"]),
    ("ibverbs-providers", &["libefa.so.1"]),
    ("libnl-3-200", &["libnl-3.so.200"]),
    ("libnl-route-3-200", &["libnl-route-3.so.200"]),
    ("libnuma1", &["libnuma.so.1"]),
    ("libuuid1", &["libuuid.so.1"]),
    ("libatomic1", &["libatomic.so.1"]),
];

/// Unpacks it, unless it is there. A machine that cannot goes without, and tests that need it say so.
pub fn setup() -> Result<()> {
    let target = root().join(".fabric");
    if target.join("lib/libfabric.so.1").exists() {
        return Ok(());
    }
    eprintln!("==> unpacking libfabric from the system's package archive (5 MB)");
    if let Err(why) = install(&target, unpack) {
        eprintln!("    note: no libfabric, tests of it will be skipped: {why}");
    }
    Ok(())
}

fn unpack(staging: &Path) -> Result<()> {
    let (packages, lib) = (staging.join("packages"), staging.join("lib"));
    for dir in [&packages, &lib] {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let names = PACKAGES.iter().map(|(name, _)| *name);
    let get = |state| apt("apt-get", &packages, state);
    if let Err(first) = quiet(get(None).arg("download").args(names.clone())) {
        // Without lists, or with old ones: fetch them into the staging folder.
        quiet(get(Some(staging)).arg("update")).map_err(|e| format!("{first}; {e}"))?;
        quiet(get(Some(staging)).arg("download").args(names))?;
    }
    let files = packages.join("files");
    for package in entries(&packages)?.iter().filter(|p| p.extension().is_some_and(|e| e == "deb"))
    {
        quiet(Command::new("dpkg").arg("-x").arg(package).arg(&files))?;
    }
    let found = below(&files, &|_| true)?;
    for soname in PACKAGES.iter().flat_map(|(_, sonames)| *sonames) {
        let file = found.iter().find(|p| is_version_of(p, soname));
        let file = file.ok_or_else(|| format!("no package has {soname}"))?;
        fs::copy(file, lib.join(soname)).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    fs::remove_dir_all(&packages).map_err(|e| format!("{}: {e}", packages.display()))
}

/// A program of apt in a folder; with lists of its own below `state`.
pub fn apt(program: &str, folder: &Path, state: Option<&Path>) -> Command {
    let mut apt = Command::new(program);
    apt.arg("-q").arg("-q").current_dir(folder);
    if let Some(state) = state {
        let (lists, cache) = (state.join("packages/lists"), state.join("packages/cache"));
        apt.arg("-o").arg(format!("Dir::State::lists={}", lists.display()));
        apt.arg("-o").arg(format!("Dir::Cache={}", cache.display()));
        // Making them is apt's own affair, but for the folders that it expects.
        let _ = fs::create_dir_all(lists.join("partial"));
        let _ = fs::create_dir_all(cache.join("archives/partial"));
    }
    apt
}

/// `libnl-3.so.200.26.0` is one of `libnl-3.so.200`: a file, not a link.
fn is_version_of(path: &Path, soname: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let rest = name.strip_prefix(soname);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && !path.is_symlink()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_library() {
        for (file, is) in
            [("libnl-3.so.200.26.0", true), ("libnl-3.so.200", true), ("libnl-3.so.2000", false)]
        {
            assert_eq!(is_version_of(Path::new(file), "libnl-3.so.200"), is, "{file}");
        }
    }
}
