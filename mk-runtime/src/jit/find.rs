//! Where NVRTC is. First match wins:
//!
//! 1. `JitOptions::nvrtc_dir`; 2. `MK_NVRTC_DIR` (a directory named explicitly must hold it: no fall-back);
//! 3. `.nvrtc/nvidia/cu13/lib` in the current directory, the program's directory, or a parent of either;
//! 4. `LD_LIBRARY_PATH`; 5. `nvidia/cu13/lib` in the site-packages of the active Python environment, of the one in
//!    whose `bin` the program is, of the `python3` on `PATH`, and of the system; 6. CUDA toolkits (`CUDA_HOME`,
//!    `CUDA_PATH`, `/usr/local/cuda*`); 7. the loader.

use super::JitOptions;
use super::nvrtc::{Library, NvrtcVersion};
use crate::{Error, Result, env, store::Store};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The library's file name: NVRTC keeps its interface within a major version.
const SONAME: &str = "libnvrtc.so.13";
/// Where the wheel puts it below site-packages.
const WHEEL_LIB: &str = "nvidia/cu13/lib";

/// An NVRTC library that was found, and perhaps not loaded yet.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    path: PathBuf,
}

impl Nvrtc {
    /// The library file, or its bare name where only the loader knows.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads the library and asks it.
    ///
    /// # Errors
    /// [`Error::NvrtcUnusable`].
    pub fn version(&self) -> Result<NvrtcVersion> {
        Ok(self.load()?.version())
    }

    pub(super) fn load(&self) -> Result<&'static Library> {
        Library::open(&self.path)
    }

    /// What tells this compiler from others in a cache key. A file that was asked before is not loaded again.
    pub(super) fn build_id(&self, store: &Store) -> Result<String> {
        let Some(stamp) = self.stamp() else {
            return Ok(self.load()?.build_id());
        };
        if let Some(known) = store.recall(&stamp) {
            return Ok(known);
        }
        let id = self.load()?.build_id();
        store.remember(&stamp, &id);
        Ok(id)
    }

    /// Path, size and modification time.
    fn stamp(&self) -> Option<String> {
        let path = self.path.canonicalize().ok()?;
        let meta = path.metadata().ok()?;
        let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{}\n{}\n{}", path.display(), meta.len(), modified.as_nanos()))
    }
}

/// Finds NVRTC without loading it.
///
/// # Errors
/// [`Error::NvrtcMissing`] lists the directories that were searched.
pub fn find_nvrtc(options: &JitOptions) -> Result<Nvrtc> {
    if let Some(dir) = options.nvrtc_dir.clone().or_else(env::nvrtc_dir) {
        return in_dir(&dir).ok_or(Error::NvrtcMissing { searched: vec![dir] });
    }
    let mut searched = Vec::new();
    for dir in candidates() {
        if let Some(found) = in_dir(&dir) {
            return Ok(found);
        }
        searched.push(dir);
    }
    let bare = Nvrtc { path: SONAME.into() };
    if bare.load().is_ok() {
        return Ok(bare);
    }
    searched.push("the system loader".into());
    Err(Error::NvrtcMissing { searched })
}

fn in_dir(dir: &Path) -> Option<Nvrtc> {
    [dir.join(SONAME), dir.join(WHEEL_LIB).join(SONAME)]
        .into_iter()
        .find(|p| p.is_file())
        .map(|path| Nvrtc { path: std::path::absolute(&path).unwrap_or(path) })
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    // Lazily: a warm start must not walk directories that it does not need.
    std::iter::once_with(project_dirs)
        .chain(std::iter::once_with(env::library_path))
        .chain(std::iter::once_with(python_dirs))
        .chain(std::iter::once_with(toolkit_dirs))
        .flatten()
}

/// Every `.nvrtc` that a program inside a workspace can see.
pub(super) fn project_roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    let program = std::env::current_exe().ok();
    for start in [std::env::current_dir().ok(), program].into_iter().flatten() {
        for dir in start.ancestors() {
            let root = dir.join(".nvrtc");
            if root.is_dir() {
                roots.push(root);
            }
        }
    }
    roots
}

fn project_dirs() -> Vec<PathBuf> {
    project_roots().into_iter().map(|r| r.join(WHEEL_LIB)).collect()
}

/// The Python environment that a program was installed into, as pip does: `PREFIX/bin/mk`.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    let bin = program.parent()?;
    (bin.file_name()? == "bin").then(|| bin.parent().map(Path::to_path_buf))?
}

/// Python prefixes: active environments, the program's own, the interpreter on `PATH`, the system.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes = env::python_prefixes();
    prefixes.extend(std::env::current_exe().ok().as_deref().and_then(prefix_of));
    for bin in env::executable_path() {
        if bin.join("python3").exists()
            && let Some(prefix) = bin.parent()
        {
            prefixes.push(prefix.into());
        }
    }
    prefixes.extend(["/usr/local", "/usr", "/opt/conda", "/opt/venv"].map(PathBuf::from));
    // `/opt/<name>/.venv`, as container images lay it out.
    prefixes.extend(subdirs(Path::new("/opt"), "").into_iter().map(|d| d.join(".venv")));
    prefixes
}

/// The site-packages of every Python prefix, in order and without repeats.
pub(super) fn site_packages() -> Vec<PathBuf> {
    let mut sites: Vec<PathBuf> = Vec::new();
    for prefix in python_prefixes() {
        for python in subdirs(&prefix.join("lib"), "python3") {
            for name in ["site-packages", "dist-packages"] {
                let site = python.join(name);
                if site.is_dir() && !sites.contains(&site) {
                    sites.push(site);
                }
            }
        }
    }
    sites
}

fn python_dirs() -> Vec<PathBuf> {
    site_packages().into_iter().map(|s| s.join(WHEEL_LIB)).collect()
}

/// Roots of CUDA toolkits.
pub(super) fn toolkits() -> Vec<PathBuf> {
    let mut homes = env::cuda_homes();
    homes.extend(subdirs(Path::new("/usr/local"), "cuda"));
    homes
}

fn toolkit_dirs() -> Vec<PathBuf> {
    toolkits()
        .into_iter()
        .flat_map(|home| [home.join("lib64"), home.join("targets/x86_64-linux/lib")])
        .collect()
}

/// Subdirectories whose name starts with `prefix`, sorted, the shortest name (`cuda` before `cuda-13`) first.
fn subdirs(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(prefix))
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_pip_installed_finds_its_own_environment() {
        let prefix = std::env::temp_dir().join(format!("mk-find-{}", std::process::id()));
        let lib = prefix.join("lib/python3.11/site-packages").join(WHEEL_LIB);
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::write(lib.join(SONAME), "").unwrap();
        // This very program, as if it had been installed there: nothing else names that environment.
        let program = prefix.join("bin/mk");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let name = "jit::find::tests::an_environment_is_found";
        let mut run = std::process::Command::new(&program);
        let run = run.args(["--exact", name, "--nocapture"]).current_dir(&prefix);
        let run = run.env_remove("VIRTUAL_ENV").env_remove("LD_LIBRARY_PATH").env("PATH", "");
        let found = run.env_remove("MK_NVRTC_DIR").output().unwrap();
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        std::fs::remove_dir_all(&prefix).unwrap();
        assert!(text.contains(&format!("found {}", lib.join(SONAME).display())), "{text}");
    }

    #[test]
    fn an_environment_is_found() {
        // Run by the one above in another place; here it finds what there is, if there is any.
        match find_nvrtc(&JitOptions::default()) {
            Ok(nvrtc) => println!("found {}", nvrtc.path().display()),
            Err(error) => assert!(matches!(error, Error::NvrtcMissing { .. }), "{error}"),
        }
    }

    #[test]
    fn a_directory_named_explicitly_is_not_replaced_by_another() {
        let options =
            JitOptions { nvrtc_dir: Some("/nonexistent/nvrtc".into()), ..JitOptions::default() };
        match find_nvrtc(&options) {
            Err(error @ Error::NvrtcMissing { .. }) => {
                let text = error.to_string();
                assert!(text.contains("cargo xtask setup"), "{text}");
                assert!(text.contains("/nonexistent/nvrtc"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
