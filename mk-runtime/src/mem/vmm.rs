//! The driver's virtual-memory API: physical memory, its descriptors, mappings, access.

use crate::Result;
use crate::driver::cu;
use cudarc::driver::sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A reference to memory of a GPU. The memory lives until the last reference and the last mapping are gone.
#[derive(Debug)]
pub(super) struct Physical {
    handle: sys::CUmemGenericAllocationHandle,
}

impl Physical {
    /// Allocates; `bytes` is a multiple of [`granularity`]. With `shared`, other processes may map it.
    pub(super) fn create(device: i32, bytes: u64, shared: bool) -> Result<Physical> {
        let (prop, mut handle) = (properties(device, shared), 0);
        // SAFETY: valid pointers.
        unsafe { cu!(Some(device), cuMemCreate(&mut handle, bytes as usize, &prop, 0)) }?;
        Ok(Physical { handle })
    }

    /// A file descriptor that another process can import. It holds a reference.
    pub(super) fn export(&self) -> Result<OwnedFd> {
        let mut fd: RawFd = -1;
        // SAFETY: for this handle type the out-pointer is that of an int.
        unsafe {
            let out = std::ptr::from_mut(&mut fd).cast();
            cu!(None, cuMemExportToShareableHandle(out, self.handle, FD, 0))
        }?;
        // SAFETY: the driver has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// What another process exported.
    pub(super) fn import(fd: OwnedFd) -> Result<Physical> {
        let mut handle = 0;
        let raw = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this handle type the descriptor itself stands for the pointer. The driver keeps a copy.
        unsafe { cu!(None, cuMemImportFromShareableHandle(&mut handle, raw, FD)) }?;
        Ok(Physical { handle })
    }

    /// Maps all of it at a reserved address. The mapping keeps the memory alive.
    pub(super) fn map(&self, at: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller reserved the range, and nothing is mapped there.
        unsafe { cu!(None, cuMemMap(at, bytes as usize, 0, self.handle, 0)) }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: our reference.
        if let Err(error) = unsafe { cu!(None, cuMemRelease(self.handle)) } {
            tracing::warn!(%error, "a reference to device memory was not released");
        }
    }
}

/// Lets GPUs read and write a mapped range.
pub(super) fn give_access(devices: &[i32], at: u64, bytes: u64) -> Result<()> {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access: Vec<sys::CUmemAccessDesc> = devices
        .iter()
        .map(|device| sys::CUmemAccessDesc { location: location(*device), flags })
        .collect();
    // SAFETY: the whole range is mapped; `access` is valid for the call.
    unsafe { cu!(None, cuMemSetAccess(at, bytes as usize, access.as_ptr(), access.len())) }
}

/// What sizes and addresses must be multiples of, in bytes.
pub(super) fn granularity(device: i32, shared: bool) -> Result<u64> {
    let (prop, mut bytes) = (properties(device, shared), 0usize);
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: valid pointers.
    unsafe { cu!(Some(device), cuMemGetAllocationGranularity(&mut bytes, &prop, minimum)) }?;
    Ok(bytes.max(1) as u64)
}

fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

fn properties(ordinal: i32, shared: bool) -> sys::CUmemAllocationProp {
    let none = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if shared { FD } else { none },
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
