//! A page of host memory that the processes of a world share (`memfd_create`, `mmap`).

use crate::{Error, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Mapped shared memory, zero at first. Whole pages; unmapped on drop. The file goes when its last process is gone.
#[derive(Debug)]
pub(crate) struct SharedPages {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: an address range; who uses it does so through atomics and volatile accesses.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Makes the file and maps it. `bytes` is rounded up to pages.
    pub(crate) fn create(bytes: usize) -> Result<(SharedPages, OwnedFd)> {
        let bytes = NonZeroUsize::new(bytes.next_multiple_of(PAGE)).unwrap_or(ONE_PAGE);
        let fd = memfd_create("mk", MFdFlags::MFD_CLOEXEC).map_err(|e| os("memfd_create", e))?;
        nix::unistd::ftruncate(&fd, bytes.get() as i64).map_err(|e| os("ftruncate", e))?;
        Ok((SharedPages::map(&fd, bytes)?, fd))
    }

    /// Maps the file of another process.
    pub(crate) fn open(fd: &OwnedFd, bytes: usize) -> Result<SharedPages> {
        let bytes = NonZeroUsize::new(bytes.next_multiple_of(PAGE)).unwrap_or(ONE_PAGE);
        let size = nix::sys::stat::fstat(fd).map_err(|e| os("fstat", e))?.st_size;
        if u64::try_from(size).is_ok_and(|size| size >= bytes.get() as u64) {
            return SharedPages::map(fd, bytes);
        }
        // Reading past the end of the file would be a signal, not an error.
        Err(Error::System {
            call: "mmap",
            what: format!("a peer's file has {size} bytes, and {bytes} are needed"),
        })
    }

    fn map(fd: &OwnedFd, bytes: NonZeroUsize) -> Result<SharedPages> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address; the file is at least that long.
        let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, fd.as_fd(), 0) }
            .map_err(|e| os("mmap", e))?;
        Ok(SharedPages { start, bytes })
    }

    /// The first byte, aligned to a page.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }

    /// Mapped bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody has a pointer into it any more.
        if let Err(error) = unsafe { munmap(self.start, self.bytes.get()) } {
            tracing::warn!(%error, "shared memory was not unmapped");
        }
    }
}

/// x86-64 and the small-page kernels of aarch64; a larger page of the system only makes the mapping longer.
const PAGE: usize = 4096;
const ONE_PAGE: NonZeroUsize = NonZeroUsize::new(PAGE).unwrap();

fn os(call: &'static str, errno: nix::errno::Errno) -> Error {
    Error::System { call, what: errno.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn two_mappings_are_one_memory() {
        let (a, fd) = SharedPages::create(100).unwrap();
        let b = SharedPages::open(&fd, 100).unwrap();
        assert_eq!((a.bytes(), b.bytes()), (4096, 4096));
        // SAFETY: aligned words inside two live mappings, used as atomics.
        let (x, y) = unsafe {
            (AtomicU32::from_ptr(a.start().cast()), AtomicU32::from_ptr(b.start().cast()))
        };
        assert_eq!(y.load(Ordering::Acquire), 0);
        x.store(7, Ordering::Release);
        assert_eq!(y.load(Ordering::Acquire), 7);
        assert!(SharedPages::open(&fd, 5000).is_err());
    }
}
