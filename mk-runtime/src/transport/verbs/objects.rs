//! Objects of libibverbs that are closed when they are dropped: context, protection domain, region, completion queue.
//!
//! Each holds what it is made of, so that they close in the order that the library asks for.

use super::{NAME, state};
use crate::error::TransportError;
use crate::transport::NetMemory;
use ibverbs::{ibv_access_flags as Access, ibv_wc};
use ibverbs_sys as ffi;
use std::io::Error as Os;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An error of a call that sets `errno`, or gives it.
pub(super) fn failed(call: &'static str, code: Option<i32>) -> TransportError {
    let error = code.map_or_else(Os::last_os_error, Os::from_raw_os_error);
    let code = error.raw_os_error().unwrap_or(0);
    TransportError::Call { transport: NAME.into(), call, what: error.to_string(), code }
}

/// An error number that a call gives.
pub(super) fn check(call: &'static str, code: i32) -> Result<(), TransportError> {
    if code == 0 { Ok(()) } else { Err(failed(call, Some(code))) }
}

/// Says what did not close: there is nothing else to be done.
fn closed(call: &'static str, code: i32) {
    if let Err(error) = check(call, code) {
        tracing::warn!(%error, "an object of libibverbs did not close");
    }
}

/// An open device.
#[derive(Debug)]
pub(super) struct Context(NonNull<ffi::ibv_context>);

// SAFETY: objects of libibverbs belong to no thread, and it locks them itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device by its name.
    ///
    /// # Errors
    /// For a name that is gone, and a device that this process may not open.
    pub fn open(name: &str) -> Result<Context, TransportError> {
        let mut n = 0;
        // SAFETY: a valid out-pointer; the list ends before it is freed, and an open device does not need it.
        let context = unsafe {
            let list = ffi::ibv_get_device_list(&mut n);
            if list.is_null() {
                return Err(failed("ibv_get_device_list", None));
            }
            let devices = std::slice::from_raw_parts(list, n.max(0) as usize);
            let named = |d: &&*mut ffi::ibv_device| {
                ibverbs::Device::from(*d).name().is_some_and(|d| d.to_bytes() == name.as_bytes())
            };
            let device = devices.iter().find(named);
            let context = device.map(|d| (ffi::ibv_open_device(*d), Os::last_os_error()));
            ffi::ibv_free_device_list(list);
            context
        };
        let (context, why) = context.ok_or_else(|| state(format!("device {name} is gone")))?;
        let context = NonNull::new(context);
        context.map(Context).ok_or_else(|| failed("ibv_open_device", why.raw_os_error()))
    }

    pub fn raw(&self) -> *mut ffi::ibv_context {
        self.0.as_ptr()
    }

    pub fn attributes(&self) -> Result<ffi::ibv_device_attr, TransportError> {
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: open, and a valid out-pointer.
        check("ibv_query_device", unsafe { ffi::ibv_query_device(self.raw(), &mut attr) })?;
        Ok(attr)
    }

    pub fn port(&self, number: u8) -> Result<ffi::ibv_port_attr, TransportError> {
        let mut attr = ffi::ibv_port_attr::default();
        // SAFETY: open; the function fills the older, shorter form of the struct.
        let code = unsafe { ffi::ibv_query_port(self.raw(), number, (&raw mut attr).cast()) };
        check("ibv_query_port", code)?;
        Ok(attr)
    }

    /// The entries of all ports' tables of GIDs that are not empty: in one call, for tables have a thousand.
    pub fn gids(&self, most: usize) -> Result<Vec<ibverbs::GidEntry>, TransportError> {
        let mut entries = vec![ffi::ibv_gid_entry::default(); most];
        // SAFETY: open; so many entries of this size are there.
        let n = unsafe {
            let size = size_of::<ffi::ibv_gid_entry>();
            ffi::_ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), most, 0, size)
        };
        if n < 0 {
            return Err(failed("ibv_query_gid_table", Some(-n as i32)));
        }
        entries.truncate(n as usize);
        Ok(entries.into_iter().map(Into::into).collect())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open until now, and what was made of it is closed.
        closed("ibv_close_device", unsafe { ffi::ibv_close_device(self.raw()) });
    }
}

/// A protection domain: regions and queue pairs of an end.
#[derive(Debug)]
pub(super) struct Domain {
    raw: NonNull<ffi::ibv_pd>,
    pub context: Context,
}

// SAFETY: as of `Context`.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: Context) -> Result<Domain, TransportError> {
        // SAFETY: open.
        let raw = NonNull::new(unsafe { ffi::ibv_alloc_pd(context.raw()) });
        Ok(Domain { raw: raw.ok_or_else(|| failed("ibv_alloc_pd", None))?, context })
    }

    pub fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// Whether the kernel and the card's driver register dmabufs: what they say of none at all.
    pub fn registers_dmabufs(&self) -> Result<(), String> {
        // SAFETY: open; it registers nothing, and fails.
        let (none, error) = unsafe {
            let none = ffi::ibv_reg_dmabuf_mr(self.raw(), 0, 0, 0, -1, 0);
            (none, Os::last_os_error())
        };
        if let Some(region) = NonNull::new(none) {
            // SAFETY: just made.
            closed("ibv_dereg_mr", unsafe { ffi::ibv_dereg_mr(region.as_ptr()) });
        }
        use nix::libc::{ENOSYS, EOPNOTSUPP, EPROTONOSUPPORT};
        match error.raw_os_error() {
            Some(ENOSYS | EOPNOTSUPP | EPROTONOSUPPORT) => Err(error.to_string()),
            _ => Ok(()),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: open until now; regions and queue pairs hold it, and are closed.
        closed("ibv_dealloc_pd", unsafe { ffi::ibv_dealloc_pd(self.raw()) });
    }
}

/// The arena, registered: the only memory of the process that peers reach.
#[derive(Debug)]
pub(super) struct Region {
    raw: NonNull<ffi::ibv_mr>,
    /// Held until it is not registered any more.
    pub memory: Arc<dyn NetMemory>,
    _domain: Arc<Domain>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Region {}

impl Region {
    /// Peers may write, and not read. Without relaxed ordering, so that a word does not become visible before data.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn new(
        domain: &Arc<Domain>,
        memory: Arc<dyn NetMemory>,
        by_dmabuf: bool,
    ) -> Result<Region, TransportError> {
        let access = (Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_REMOTE_WRITE).0 as i32;
        let (base, bytes) = (memory.base(), memory.bytes() as usize);
        let (call, raw) = if by_dmabuf {
            let dmabuf = memory.dmabuf().map_err(|what| TransportError::Memory { what })?;
            let fd = dmabuf.fd.as_raw_fd();
            // SAFETY: open; the kernel keeps the dmabuf.
            let raw = unsafe {
                ffi::ibv_reg_dmabuf_mr(domain.raw(), dmabuf.offset, bytes, base as u64, fd, access)
            };
            ("ibv_reg_dmabuf_mr", raw)
        } else {
            // SAFETY: open; the memory is held as long as the region.
            ("ibv_reg_mr", unsafe { ffi::ibv_reg_mr(domain.raw(), base.cast(), bytes, access) })
        };
        let Some(raw) = NonNull::new(raw) else {
            let mut error = failed(call, None);
            if let TransportError::Call { what, code: nix::libc::ENOMEM, .. } = &mut error {
                what.push_str(
                    "; the limit of locked memory may be too low (`ulimit -l unlimited`)",
                );
            }
            return Err(error);
        };
        Ok(Region { raw, memory, _domain: domain.clone() })
    }

    pub fn local_key(&self) -> u32 {
        // SAFETY: registered.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub fn remote_key(&self) -> u32 {
        // SAFETY: registered.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered until now.
        closed("ibv_dereg_mr", unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Completions {
    raw: NonNull<ffi::ibv_cq>,
    _domain: Arc<Domain>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub fn new(domain: &Arc<Domain>, entries: u32) -> Result<Completions, TransportError> {
        // SAFETY: open.
        let raw = unsafe {
            ffi::ibv_create_cq(domain.context.raw(), entries as i32, null_mut(), null_mut(), 0)
        };
        let raw = NonNull::new(raw).ok_or_else(|| failed("ibv_create_cq", None))?;
        Ok(Completions { raw, _domain: domain.clone() })
    }

    pub fn raw(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// Reads completions: how many.
    pub fn poll(&self, out: &mut [ibv_wc]) -> Result<usize, TransportError> {
        // SAFETY: open; the table of its context has this function; `out` has so many entries.
        let n = unsafe {
            let context = self.raw.as_ref().context;
            let Some(poll) = (*context).ops.poll_cq else {
                return Err(state("the device polls no completion queues".into()));
            };
            poll(self.raw(), out.len() as i32, out.as_mut_ptr())
        };
        usize::try_from(n).map_err(|_| failed("ibv_poll_cq", None))
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: open until now; queue pairs hold it, and are closed.
        closed("ibv_destroy_cq", unsafe { ffi::ibv_destroy_cq(self.raw()) });
    }
}
