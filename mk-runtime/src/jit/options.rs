//! What is compiled, and how.

use std::path::PathBuf;

/// How to compile.
#[derive(Clone, Debug)]
pub struct JitOptions {
    /// Directory of `libnvrtc.so.13`; searched before everything else. Default: none.
    pub nvrtc_dir: Option<PathBuf>,
    /// Directory of the kernel cache. Default: `MK_CACHE_DIR`, else `$XDG_CACHE_HOME/mk`, else `~/.cache/mk`.
    pub cache_dir: Option<PathBuf>,
    /// Whether to read and write the cache. Default: true.
    pub use_cache: bool,
    /// Whether spilled registers are accepted. Default: false.
    pub allow_spills: bool,
}

impl Default for JitOptions {
    fn default() -> Self {
        JitOptions { nvrtc_dir: None, cache_dir: None, use_cache: true, allow_spills: false }
    }
}

impl JitOptions {
    /// The directory that caches go to: `cache_dir`, or the user's; `None` where there is none.
    pub fn cache_root(&self) -> Option<PathBuf> {
        self.cache_dir.clone().or_else(crate::env::cache_dir)
    }
}

/// A translation unit for [`compile_unit`](super::compile_unit).
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// Name, for messages.
    pub name: &'a str,
    /// The whole text.
    pub cuda: &'a str,
    /// `sm_90a`.
    pub arch: &'a str,
    /// Further NVRTC options.
    pub options: &'a [String],
}
