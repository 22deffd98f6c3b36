//! NVRTC through a handle of our own: nine functions, looked up in the library that was chosen.
//!
//! A binding that looks its symbols up by SONAME would take whatever `libnvrtc` the process or `LD_LIBRARY_PATH`
//! offers first, and the cache key would lie.

use super::{Unit, cache::Output};
use crate::{Error, Result};
use libloading::os::unix::{Library as Dl, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

type Program = *mut c_void;
type Status = c_int;
type SizeFn = unsafe extern "C" fn(Program, *mut usize) -> Status;
type GetFn = unsafe extern "C" fn(Program, *mut c_char) -> Status;

const SUCCESS: Status = 0;
const COMPILATION: Status = 6;

/// `nvrtcVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvrtcVersion {
    /// 13.
    pub major: i32,
    /// 0.
    pub minor: i32,
}

impl fmt::Display for NvrtcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A loaded NVRTC. It stays loaded for the life of the process: unloading a compiler with thread state is not safe.
pub(super) struct Library {
    version: NvrtcVersion,
    size_bytes: u64,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    log_size: SizeFn,
    log: GetFn,
    cubin_size: SizeFn,
    cubin: GetFn,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
}

/// The first version that has a cache of its own, and an option against it (NVRTC 13.0 documentation, section 10).
const NO_CACHE_SINCE: (c_int, c_int) = (12, 9);

impl Library {
    /// Opens the library, once per path.
    pub(super) fn open(path: &Path) -> Result<&'static Library> {
        static OPEN: Mutex<Option<HashMap<PathBuf, &'static Library>>> = Mutex::new(None);
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        let open = open.get_or_insert_default();
        if let Some(library) = open.get(path) {
            return Ok(library);
        }
        let library: &'static Library = Box::leak(Box::new(
            Library::load(path).map_err(|what| Error::NvrtcUnusable { path: path.into(), what })?,
        ));
        open.insert(path.into(), library);
        Ok(library)
    }

    fn load(path: &Path) -> Result<Library, String> {
        if let Some(dir) = path.parent().filter(|d| d.is_absolute()) {
            preload_builtins(dir);
        }
        // Part of the key of every cached kernel: without it two builds would share entries.
        let size_bytes = path.metadata().map_err(|e| format!("its size is not known: {e}"))?.len();
        // SAFETY: initialisers of NVRTC have no preconditions.
        let dl = unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| text(&e.to_string()))?;
        // SAFETY: the symbols have these signatures in every NVRTC from 11.1 on (nvrtc.h).
        let library = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
                symbol(&dl, c"nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            if version(&mut major, &mut minor) != SUCCESS {
                return Err("nvrtcVersion failed".into());
            }
            Library {
                version: NvrtcVersion { major, minor },
                size_bytes,
                create: symbol(&dl, c"nvrtcCreateProgram")?,
                compile: symbol(&dl, c"nvrtcCompileProgram")?,
                destroy: symbol(&dl, c"nvrtcDestroyProgram")?,
                log_size: symbol(&dl, c"nvrtcGetProgramLogSize")?,
                log: symbol(&dl, c"nvrtcGetProgramLog")?,
                cubin_size: symbol(&dl, c"nvrtcGetCUBINSize")?,
                cubin: symbol(&dl, c"nvrtcGetCUBIN")?,
                error_string: symbol(&dl, c"nvrtcGetErrorString")?,
            }
        };
        std::mem::forget(dl);
        Ok(library)
    }

    pub(super) fn version(&self) -> NvrtcVersion {
        self.version
    }

    /// Version and file size: `nvrtcVersion` has no patch level, and two builds differ in size.
    pub(super) fn build_id(&self) -> String {
        format!("nvrtc {} {}", self.version, self.size_bytes)
    }

    /// Compiles to CUBIN.
    pub(super) fn compile(&self, unit: Unit<'_>, flags: &[String]) -> Result<Output> {
        let c_string = |s: &str, what: &str| {
            CString::new(s).map_err(|_| Error::BadSource {
                kernel: unit.name.into(),
                what: format!("{what} contains a NUL byte"),
            })
        };
        let source = c_string(unit.cuda, "the text")?;
        let name = c_string(&format!("{}.cu", unit.name), "the name")?;
        // With a driver on the machine NVRTC would answer from the driver's cache, and its log would say nothing of
        // registers, spills and entry points.
        let own_cache = (self.version.major, self.version.minor) >= NO_CACHE_SINCE;
        let flags = flags.iter().map(String::as_str).chain(own_cache.then_some("--no-cache"));
        let flags = flags.map(|f| c_string(f, "an option")).collect::<Result<Vec<_>, _>>()?;
        let flag_ptrs: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();

        let mut raw = std::ptr::null_mut();
        // SAFETY: NUL-terminated strings that outlive the program; no headers.
        let status = unsafe {
            (self.create)(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        self.check(unit, "nvrtcCreateProgram", status)?;
        let program = Guard { library: self, raw };
        // SAFETY: a live program and `flag_ptrs.len()` NUL-terminated strings.
        let status =
            unsafe { (self.compile)(program.raw, flag_ptrs.len() as c_int, flag_ptrs.as_ptr()) };
        let log = self.bytes(unit, &program, "nvrtcGetProgramLog", self.log_size, self.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        if status == COMPILATION {
            return Err(Error::Compile { kernel: unit.name.into(), log });
        }
        if status != SUCCESS && !log.trim().is_empty() {
            // An unknown option and the like: the log says which.
            return Err(Error::Nvrtc {
                call: "nvrtcCompileProgram",
                kernel: unit.name.into(),
                what: log,
            });
        }
        self.check(unit, "nvrtcCompileProgram", status)?;
        let cubin = self.bytes(unit, &program, "nvrtcGetCUBIN", self.cubin_size, self.cubin)?;
        if cubin.is_empty() {
            return Err(Error::Nvrtc {
                call: "nvrtcGetCUBIN",
                kernel: unit.name.into(),
                what: format!(
                    "architecture {} gives no CUBIN: it must be a real one (sm_90a, not compute_90a)",
                    unit.arch
                ),
            });
        }
        Ok(Output { cubin, log })
    }

    fn bytes(
        &self,
        unit: Unit<'_>,
        program: &Guard<'_>,
        call: &'static str,
        size: SizeFn,
        get: GetFn,
    ) -> Result<Vec<u8>> {
        let mut n = 0;
        // SAFETY: a live program and a valid out-pointer.
        self.check(unit, call, unsafe { size(program.raw, &mut n) })?;
        let mut out = vec![0u8; n];
        if n > 0 {
            // SAFETY: NVRTC writes exactly `n` bytes.
            self.check(unit, call, unsafe { get(program.raw, out.as_mut_ptr().cast()) })?;
        }
        Ok(out)
    }

    fn check(&self, unit: Unit<'_>, call: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number and returns a static string.
        let what = unsafe {
            let p = (self.error_string)(status);
            if p.is_null() {
                format!("status {status}")
            } else {
                CStr::from_ptr(p).to_string_lossy().into_owned()
            }
        };
        Err(Error::Nvrtc { call, kernel: unit.name.into(), what })
    }
}

struct Guard<'a> {
    library: &'a Library,
    raw: Program,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and is not used again.
        unsafe { (self.library.destroy)(&mut self.raw) };
    }
}

/// NVRTC opens `libnvrtc-builtins.so.<version>` by SONAME, and the 13.0 wheel has no RPATH: open it first.
fn preload_builtins(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.13"))
        .map(|e| e.path())
        .collect();
    found.sort();
    for path in found {
        // SAFETY: a data library without initialisers that matter. If it fails, NVRTC itself says what is missing.
        match unsafe { Dl::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => std::mem::forget(library),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "NVRTC's builtins did not load");
            }
        }
    }
}

/// # Safety
/// `F` must be the function pointer type of the symbol.
unsafe fn symbol<F: Copy>(dl: &Dl, name: &CStr) -> Result<F, String> {
    // SAFETY: by the caller.
    unsafe { dl.get::<F>(name.to_bytes_with_nul()) }
        .map(|s| *s)
        .map_err(|_| format!("it has no symbol {}", name.to_string_lossy()))
}

fn text(loader: &str) -> String {
    loader.lines().collect::<Vec<_>>().join(" ")
}
