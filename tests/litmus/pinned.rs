//! Fault records in pinned host memory, straight from the driver: the runtime keeps its own ones to itself.

use libloading::Library;
use mk::abi::device::FaultRecord;
use mk::runtime::TensorRef;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::{from_mut, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP` (CUDA driver API, `cuMemHostAlloc`).
const PORTABLE_MAPPED: u32 = 1 | 2;

/// Records for kernels of GPU 0, zero at first. They must outlive the kernels.
pub struct Records {
    driver: Library,
    gpu: i32,
    host: *mut FaultRecord,
    device: u64,
    n: usize,
}

/// Calls a function of the driver by name; 0 is success.
macro_rules! driver {
    ($library:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> u32;
        match $library.get::<Function>(concat!(stringify!($name), "\0").as_bytes()) {
            Err(error) => Err(error.to_string()),
            Ok(function) => match function($($value),*) {
                0 => Ok(()),
                code => Err(format!("{} failed with code {code}", stringify!($name))),
            },
        }
    }};
}

impl Records {
    /// Allocates `n` records.
    ///
    /// # Errors
    /// What the driver said.
    pub fn new(n: usize) -> Result<Records, String> {
        // SAFETY: the driver's library may be loaded at any time; the runtime has done so already.
        let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|e| e.to_string())?;
        let mut this = Records { driver, gpu: 0, host: null_mut(), device: 0, n };
        let mut context: *mut c_void = null_mut();
        // SAFETY: signatures as in cuda.h, and valid out-pointers.
        unsafe {
            driver!(this.driver, cuDeviceGet(&mut this.gpu => *mut i32, 0 => i32))?;
            driver!(this.driver, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, this.gpu => i32))?;
            driver!(this.driver, cuCtxPushCurrent_v2(context => *mut c_void))?;
        }
        let allocated = this.allocate();
        // SAFETY: what was pushed above; the popped context is not used.
        unsafe {
            driver!(this.driver, cuCtxPopCurrent_v2(&mut context => *mut *mut c_void))?;
        }
        allocated.map(|()| this)
    }

    /// With the context current.
    fn allocate(&mut self) -> Result<(), String> {
        let bytes = self.n * size_of::<FaultRecord>();
        let mut raw: *mut c_void = null_mut();
        // SAFETY: signatures as in cuda.h, and valid out-pointers; the memory is `n` records long.
        unsafe {
            driver!(self.driver, cuMemHostAlloc(
                &mut raw => *mut *mut c_void, bytes => usize, PORTABLE_MAPPED => u32,
            ))?;
            self.host = raw.cast();
            std::ptr::write_bytes(self.host, 0, self.n);
            driver!(self.driver, cuMemHostGetDevicePointer_v2(
                from_mut(&mut self.device) => *mut u64, raw => *mut c_void, 0 => u32,
            ))
        }
    }

    /// As a launch argument.
    pub fn as_arg(&self) -> TensorRef {
        // SAFETY: mapped on the GPU, and alive until `self` is dropped, which the owner does after its kernels.
        unsafe { TensorRef::from_raw(self.device, (self.n * size_of::<FaultRecord>()) as u64) }
    }

    /// Record `i` if it is complete.
    pub fn complete(&self, i: usize) -> Option<FaultRecord> {
        if self.state(i).load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: in bounds. A kernel may be writing it, if it is broken: volatile, and of plain integers.
        Some(unsafe { self.host.add(i).read_volatile() })
    }

    /// Lets the kernel write record `i` again.
    pub fn free(&self, i: usize) {
        self.state(i).store(0, Ordering::Release);
    }

    fn state(&self, i: usize) -> &AtomicU32 {
        assert!(i < self.n, "record {i} of {}", self.n);
        // SAFETY: in bounds and aligned; the host accesses the word as an atomic only.
        unsafe {
            let word = self.host.add(i).byte_add(offset_of!(FaultRecord, state));
            AtomicU32::from_ptr(word.cast())
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: allocated by cuMemHostAlloc and no longer written; the context was retained by `new`. Null is refused
        // by the driver, which is fine.
        unsafe {
            let _ = driver!(self.driver, cuMemFreeHost(self.host.cast() => *mut c_void));
            let _ = driver!(self.driver, cuDevicePrimaryCtxRelease_v2(self.gpu => i32));
        }
    }
}
