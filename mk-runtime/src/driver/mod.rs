//! The CUDA driver: presence, errors, contexts. Every driver call of this crate goes through [`cu`].

mod context;
mod copies;
pub(crate) mod ledger;
mod stream;

pub(crate) use context::{Context, Entered, keep_current};
pub use stream::{Event, StreamRef};

use crate::{Error, Result};
use cudarc::driver::sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// CUDA 13.0 (driver 580): what a CUBIN of NVRTC 13 needs. Every call used here is older.
const MIN_DRIVER: i32 = 13000;

/// Calls a driver function and turns its status into an [`Error`] that carries the call's name and the device.
macro_rules! cu {
    ($device:expr, $call:ident ( $($arg:expr),* $(,)? )) => {
        $crate::driver::check(::cudarc::driver::sys::$call($($arg),*), stringify!($call), $device)
    };
}
pub(crate) use cu;

/// See [`cu`].
pub(crate) fn check(status: sys::CUresult, call: &'static str, device: Option<i32>) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: `name` is a valid out-pointer; the driver stores a static string or nothing.
    let found = unsafe { sys::cuGetErrorName(status, &mut name) } == sys::CUresult::CUDA_SUCCESS;
    let name = if found && !name.is_null() {
        // SAFETY: the driver returned a NUL-terminated static string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    } else {
        "unknown error".into()
    };
    // `suffix _v2` is an ABI detail of the driver.
    let call = call.strip_suffix("_v2").unwrap_or(call);
    Err(Error::Cuda { call, device, code: status as u32, name })
}

/// Loads and initialises the driver once per process.
pub(crate) fn init() -> Result<()> {
    static INIT: OnceLock<Result<()>> = OnceLock::new();
    INIT.get_or_init(|| {
        let have = version()?;
        if have < MIN_DRIVER {
            return Err(Error::DriverTooOld { have, need: MIN_DRIVER });
        }
        // SAFETY: cuInit takes no pointers and may be called again.
        unsafe { cu!(None, cuInit(0)) }
    })
    .clone()
}

/// The CUDA version that the driver supports (1000 * major + 10 * minor); does not initialise it.
pub(crate) fn version() -> Result<i32> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens and closes libcuda, which has no other effect.
    if !*PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Err(Error::DriverMissing);
    }
    let mut version = 0;
    // SAFETY: a valid out-pointer; legal before cuInit.
    unsafe { cu!(None, cuDriverGetVersion(&mut version)) }?;
    Ok(version)
}

/// Number of devices.
pub(crate) fn device_count() -> Result<i32> {
    init()?;
    let mut count = 0;
    // SAFETY: a valid out-pointer, after cuInit.
    unsafe { cu!(None, cuDeviceGetCount(&mut count)) }?;
    Ok(count)
}

/// A handle of the ordinal.
pub(crate) fn device(ordinal: i32) -> Result<sys::CUdevice> {
    let count = device_count()?;
    if !(0..count).contains(&ordinal) {
        return Err(Error::NoSuchDevice { device: ordinal, count });
    }
    let mut device = 0;
    // SAFETY: a valid out-pointer, after cuInit.
    unsafe { cu!(Some(ordinal), cuDeviceGet(&mut device, ordinal)) }?;
    Ok(device)
}

/// One integer attribute of a device.
pub(crate) fn attribute(ordinal: i32, which: sys::CUdevice_attribute) -> Result<i32> {
    let device = device(ordinal)?;
    let mut value = 0;
    // SAFETY: a valid out-pointer and a device that the driver gave.
    unsafe { cu!(Some(ordinal), cuDeviceGetAttribute(&mut value, which, device)) }?;
    Ok(value)
}

/// The driver's name of a GPU.
pub(crate) fn name(ordinal: i32) -> Result<String> {
    let device = device(ordinal)?;
    let mut name = [0u8; 128];
    // SAFETY: a buffer of the length given, which the driver terminates, and a device that the driver gave.
    unsafe {
        cu!(Some(ordinal), cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))
    }?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// What identifies a GPU in every process of a machine, whichever ordinals each of them sees.
pub(crate) fn uuid(ordinal: i32) -> Result<String> {
    let device = device(ordinal)?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: a valid out-pointer and a device that the driver gave.
    unsafe { cu!(Some(ordinal), cuDeviceGetUuid_v2(&mut uuid, device)) }?;
    Ok(uuid.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect())
}

/// A GPU's place on the bus: `0000:3b:00.0`.
pub(crate) fn pci(ordinal: i32) -> Result<String> {
    let device = device(ordinal)?;
    let mut text = [0u8; 32];
    // SAFETY: a buffer of the length given, which the driver terminates, and a device that the driver gave.
    unsafe {
        let length = text.len() as i32;
        cu!(Some(ordinal), cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), length, device))
    }?;
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).to_ascii_lowercase())
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of the GPU with this ordinal.
    Device(i32),
    /// Pinned host memory, which every GPU can access.
    Host,
    /// Nothing that the driver knows.
    Nowhere,
}

/// Asks where an address lies. A look-up in the driver's tables.
pub(crate) fn place(ptr: u64) -> Result<Place> {
    use sys::CUpointer_attribute as A;
    let mut asked = [A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let (mut kind, mut ordinal) = (0u32, -1i32);
    let mut answers =
        [std::ptr::from_mut(&mut kind).cast(), std::ptr::from_mut(&mut ordinal).cast()];
    // SAFETY: as many out-pointers as attributes, of the types that these have. An unknown address gives zeros.
    unsafe { cu!(None, cuPointerGetAttributes(2, asked.as_mut_ptr(), answers.as_mut_ptr(), ptr)) }?;
    Ok(match kind {
        k if k == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 => Place::Host,
        k if k == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => Place::Device(ordinal),
        _ => Place::Nowhere,
    })
}

/// Whether `from` can access memory of `to`.
pub(crate) fn can_access_peer(from: i32, to: i32) -> Result<bool> {
    let (a, b) = (device(from)?, device(to)?);
    let mut can = 0;
    // SAFETY: a valid out-pointer and devices that the driver gave.
    unsafe { cu!(Some(from), cuDeviceCanAccessPeer(&mut can, a, b)) }?;
    Ok(can != 0)
}
