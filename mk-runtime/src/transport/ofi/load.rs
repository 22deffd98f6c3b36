//! libfabric, found and opened when a transport is first asked for. First match wins:
//!
//! 1. `MK_FABRIC_DIR` (named explicitly, it must hold the library: no fall-back); 2. `.fabric/lib` in the current
//!    directory, the program's directory, or a parent of either (`cargo xtask setup` puts it there); 3. the loader.
//!
//! Six functions are symbols; all others are in tables of objects ([`sys`](super::sys)).

use super::sys::{Fabric, FabricAttr, Info};
use crate::env;
use crate::error::TransportError;
use libloading::os::unix::{Library as Dl, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SONAME: &str = "libfabric.so.1";
const HELP: &str = "get it with `cargo xtask setup`, or install libfabric (Debian: libfabric1), or set MK_FABRIC_DIR \
                    to the directory that holds libfabric.so.1";

/// The library, for the life of the process: providers have threads of their own.
pub(super) struct Library {
    /// The file, or its bare name where only the loader knows.
    pub path: PathBuf,
    pub version: u32,
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub freeinfo: unsafe extern "C" fn(*mut Info),
    pub dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int,
    pub strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// The library of this process.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`], each time.
    pub fn get() -> Result<&'static Library, TransportError> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(find).as_ref().map_err(|what| TransportError::Unavailable {
            transport: "ofi".into(),
            what: what.clone(),
            help: HELP.into(),
        })
    }

    /// The text of an error number.
    pub fn text(&self, code: c_int) -> String {
        // SAFETY: takes any number and gives a constant string.
        let text = unsafe { (self.strerror)(code) };
        if text.is_null() {
            return "an unknown error".into();
        }
        // SAFETY: a C string that nobody frees.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn open(path: &Path) -> Result<Library, String> {
        if let Some(dir) = path.parent().filter(|d| d.is_absolute()) {
            open_neighbours(dir);
        }
        // SAFETY: initialisers of libfabric have no preconditions.
        let dl =
            unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| e.to_string())?;
        // SAFETY: the symbols have these signatures in libfabric 1.x and 2.x (fabric.h).
        let library = unsafe {
            let version: unsafe extern "C" fn() -> u32 = symbol(&dl, c"fi_version")?;
            Library {
                path: path.into(),
                version: version(),
                getinfo: symbol(&dl, c"fi_getinfo")?,
                freeinfo: symbol(&dl, c"fi_freeinfo")?,
                dupinfo: symbol(&dl, c"fi_dupinfo")?,
                fabric: symbol(&dl, c"fi_fabric")?,
                strerror: symbol(&dl, c"fi_strerror")?,
            }
        };
        std::mem::forget(dl);
        Ok(library)
    }
}

/// # Safety
/// The symbol has this type.
unsafe fn symbol<T: Copy>(dl: &Dl, name: &CStr) -> Result<T, String> {
    // SAFETY: as the caller says.
    let found = unsafe { dl.get::<T>(name) };
    found.map(|symbol| *symbol).map_err(|e| format!("it has no {}: {e}", name.to_string_lossy()))
}

fn find() -> Result<Library, String> {
    if let Some(dir) = env::fabric_dir() {
        let path = dir.join(SONAME);
        return Library::open(&path).map_err(|e| format!("MK_FABRIC_DIR={}: {e}", dir.display()));
    }
    for dir in project_dirs() {
        let path = dir.join(SONAME);
        if path.is_file() {
            return Library::open(&path).map_err(|e| format!("{}: {e}", path.display()));
        }
    }
    Library::open(Path::new(SONAME))
}

/// Every `.fabric/lib` that a program inside a workspace can see.
fn project_dirs() -> impl Iterator<Item = PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let above =
        |start: PathBuf| start.ancestors().map(|d| d.join(".fabric/lib")).collect::<Vec<_>>();
    starts.into_iter().flatten().flat_map(above)
}

/// Opens the other libraries of an unpacked libfabric, so that the loader, which does not search their folder, finds
/// them by name. Their dependency order is unknown: opens those that can be opened, until nothing changes.
fn open_neighbours(dir: &Path) {
    let Ok(list) = std::fs::read_dir(dir) else { return };
    let mut rest: Vec<PathBuf> = list.flatten().map(|e| e.path()).collect();
    rest.retain(|p| {
        p.file_name().is_some_and(|n| n != SONAME && n.to_string_lossy().contains(".so"))
    });
    rest.sort();
    loop {
        let before = rest.len();
        rest.retain(|path| {
            // SAFETY: initialisers of these libraries have no preconditions.
            match unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(dl) => {
                    std::mem::forget(dl);
                    false
                }
                Err(_) => true,
            }
        });
        if rest.len() == before {
            return;
        }
    }
}
