//! Every environment variable that this crate reads.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `MK_NVRTC_DIR` | directory that holds `libnvrtc.so.13` |
//! | `MK_CACHE_DIR` | directory of the kernel cache |
//! | `XDG_CACHE_HOME`, `HOME` | where the kernel cache goes when `MK_CACHE_DIR` is not set |
//! | `LD_LIBRARY_PATH`, `CUDA_HOME`, `CUDA_PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `PATH` | where NVRTC is searched |
//! | `CUDA_LAUNCH_BLOCKING` | refused: ranks wait for each other inside their kernels |

use std::path::PathBuf;

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn path_list(name: &str) -> Vec<PathBuf> {
    std::env::var_os(name).map_or_else(Vec::new, |v| {
        std::env::split_paths(&v).filter(|p| !p.as_os_str().is_empty()).collect()
    })
}

/// `MK_NVRTC_DIR`.
pub(crate) fn nvrtc_dir() -> Option<PathBuf> {
    path("MK_NVRTC_DIR")
}

/// The directories of `LD_LIBRARY_PATH`.
pub(crate) fn library_path() -> Vec<PathBuf> {
    path_list("LD_LIBRARY_PATH")
}

/// The active Python environments: `VIRTUAL_ENV`, `CONDA_PREFIX`.
pub(crate) fn python_prefixes() -> Vec<PathBuf> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect()
}

/// The directories of `PATH`.
pub(crate) fn executable_path() -> Vec<PathBuf> {
    path_list("PATH")
}

/// CUDA toolkits that the environment names: `CUDA_HOME`, `CUDA_PATH`.
pub(crate) fn cuda_homes() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect()
}

/// `MK_CACHE_DIR`, else `$XDG_CACHE_HOME/mk`, else `$HOME/.cache/mk`.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    path("MK_CACHE_DIR")
        .or_else(|| path("XDG_CACHE_HOME").map(|d| d.join("mk")))
        .or_else(|| path("HOME").map(|d| d.join(".cache/mk")))
}

/// Whether the driver was told to make every launch synchronous.
pub(crate) fn launch_blocking() -> bool {
    std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|v| !v.is_empty() && v != "0")
}
