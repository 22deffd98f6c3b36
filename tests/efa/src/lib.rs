//! libfabric with a provider `efa` of our own (`mk-runtime/src/transport/ofi/fake`), as a library that a program loads
//! by `MK_FABRIC_DIR`: whole plans run over it, in several processes, by the code that a device has.
//!
//! `MK_EFA` is the order of its writes: `in order`, `reversed`, or a seed of a shuffle.

#[path = "../../../mk-runtime/src/transport/ofi/fake/mod.rs"]
#[allow(dead_code, unused_imports)]
mod fake;
#[path = "../../../mk-runtime/src/transport/ofi/sys.rs"]
#[allow(dead_code)]
mod sys;
mod wire;

use fake::{Arrival, Behaviour, State};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use sys::{Fabric, FabricAttr, Info};

/// Names the order of writes.
pub const VARIABLE: &str = "MK_EFA";

/// A folder for `MK_FABRIC_DIR`, with the library that was built beside the calling test.
///
/// # Errors
/// Without it, and where the folder cannot be made.
pub fn directory() -> std::io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let beside = test.parent().unwrap_or(Path::new("."));
    let (built, folder) = (beside.join("libmk_efa.so"), beside.join("mk-efa"));
    std::fs::create_dir_all(&folder)?;
    match std::os::unix::fs::symlink(built.canonicalize()?, folder.join("libfabric.so.1")) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    Ok(folder)
}

/// The provider of this process.
fn begin() -> State {
    let arrival = match std::env::var(VARIABLE).as_deref() {
        Ok("in order") => Arrival::InOrder,
        Ok("reversed") => Arrival::Reversed,
        Ok(seed) => Arrival::Shuffled(seed.parse().unwrap_or(0)),
        Err(_) => Arrival::InOrder,
    };
    let (process, others) = (std::process::id(), wire::Sockets::open());
    let others = others.map(|sockets| Box::new(sockets) as _);
    let behaviour = Behaviour { arrival, max_bytes: wire::MAX_BYTES, ..Behaviour::default() };
    State { behaviour, process, others, random: 1, ..State::default() }
}

/// `fi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn fi_version() -> u32 {
    Behaviour::default().version
}

/// `fi_getinfo`.
///
/// # Safety
/// As libfabric says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const c_void,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { fake::getinfo(version, node, service, flags, hints.cast::<Info>(), out.cast()) }
}

/// `fi_freeinfo`.
///
/// # Safety
/// As libfabric says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_freeinfo(info: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { fake::freeinfo(info.cast()) }
}

/// `fi_dupinfo`.
///
/// # Safety
/// As libfabric says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_dupinfo(info: *const c_void) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { fake::dupinfo(info.cast()).cast() }
}

/// `fi_fabric`.
///
/// # Safety
/// As libfabric says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_fabric(
    attr: *mut c_void,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { fake::fabric(attr.cast::<FabricAttr>(), out.cast::<*mut Fabric>(), context) }
}

/// `fi_strerror`.
#[unsafe(no_mangle)]
pub extern "C" fn fi_strerror(code: c_int) -> *const c_char {
    // SAFETY: takes any number.
    unsafe { fake::strerror(code) }
}
