//! An endpoint and what it needs: fabric, domain, completion queue, address vector, memory region; closed in the order
//! that libfabric asks for.

use super::provider::Found;
use super::sys::{self, Av, Cq, Domain, Ep, Fabric, Fid, Mr};
use crate::error::TransportError;
use crate::transport::NetMemory;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Longest address that an endpoint may have.
const MAX_NAME: usize = crate::transport::card::MAX_ADDRESS;

/// Open objects; null ones are not open. Used by one thread at a time (`FI_THREAD_DOMAIN`).
pub(super) struct Objects {
    pub found: Found,
    name: String,
    fabric: *mut Fabric,
    domain: *mut Domain,
    cq: *mut Cq,
    av: *mut Av,
    ep: *mut Ep,
    mr: *mut Mr,
}

// SAFETY: objects of libfabric belong to no thread; `&mut` keeps calls apart.
unsafe impl Send for Objects {}

impl Objects {
    /// Opens everything but the memory region.
    ///
    /// # Errors
    /// The first call that fails; also what provider `efa` must have and has not.
    pub fn open(found: Found, cq_entries: usize) -> Result<Objects, TransportError> {
        let name = format!("ofi ({})", found.answer.provider);
        let mut o = Objects {
            found,
            name,
            fabric: null_mut(),
            domain: null_mut(),
            cq: null_mut(),
            av: null_mut(),
            ep: null_mut(),
            mr: null_mut(),
        };
        let (info, context) = (o.found.info, null_mut());
        // SAFETY: `info` is the library's own, out-pointers are valid, and tables hold these functions (fabric.h,
        // fi_domain.h, fi_endpoint.h). What is opened is kept at once, so that a failure closes it.
        unsafe {
            let library = o.found.library;
            let code = (library.fabric)((*info).fabric_attr, &mut o.fabric, context);
            o.check("fi_fabric", code)?;
            let code = ((*(*o.fabric).ops).domain)(o.fabric, info, &mut o.domain, context);
            o.check("fi_domain", code)?;
            let ops = &*(*o.domain).ops;
            let mut attr: sys::CqAttr = std::mem::zeroed();
            (attr.size, attr.format) = (cq_entries, sys::FI_CQ_FORMAT_DATA);
            let code = (ops.cq_open)(o.domain, &mut attr, &mut o.cq, context);
            o.check("fi_cq_open", code)?;
            let mut attr: sys::AvAttr = std::mem::zeroed();
            attr.kind = sys::FI_AV_TABLE;
            let code = (ops.av_open)(o.domain, &mut attr, &mut o.av, context);
            o.check("fi_av_open", code)?;
            let code = (ops.endpoint)(o.domain, info, &mut o.ep, context);
            o.check("fi_endpoint", code)?;
            let fid = &raw mut (*o.ep).fid;
            let both = sys::FI_TRANSMIT | sys::FI_RECV;
            let code = ((*(*fid).ops).bind)(fid, &raw mut (*o.cq).fid, both);
            o.check("fi_ep_bind of the completion queue", code)?;
            let code = ((*(*fid).ops).bind)(fid, &raw mut (*o.av).fid, 0);
            o.check("fi_ep_bind of the address vector", code)?;
            if o.found.answer.is_efa() {
                o.require_efa(fid)?;
            }
            let code = ((*(*fid).ops).control)(fid, sys::FI_ENABLE, null_mut());
            o.check("fi_enable", code)?;
        }
        Ok(o)
    }

    /// What provider `efa` must say of an endpoint: writes by the device, GPU memory by the device, no call of CUDA.
    ///
    /// # Safety
    /// `fid` is the endpoint's.
    unsafe fn require_efa(&self, fid: *mut Fid) -> Result<(), TransportError> {
        let refused = |what: String| TransportError::Refused { transport: self.name.clone(), what };
        // SAFETY: the endpoint is open; options have these types (fi_endpoint.h, fi_ext.h).
        unsafe {
            let ops = &*(*self.ep).ops;
            let (Some(get), Some(set)) = (ops.getopt, ops.setopt) else {
                return Err(refused("its endpoints have no options".into()));
            };
            let level = sys::FI_OPT_ENDPOINT;
            let (mut emulated, mut bytes) = (true, size_of::<bool>());
            let at = (&raw mut emulated).cast();
            let code = get(fid, level, sys::FI_OPT_EFA_EMULATED_WRITE, at, &mut bytes);
            if code != 0 || emulated {
                let what =
                    "it emulates RDMA writes (FI_OPT_EFA_EMULATED_WRITE): the device has none";
                return Err(refused(what.into()));
            }
            let (permitted, required) = (false, sys::FI_HMEM_P2P_REQUIRED);
            let options: [(_, *const c_void, _, _); 2] = [
                (
                    sys::FI_OPT_CUDA_API_PERMITTED,
                    (&raw const permitted).cast(),
                    size_of::<bool>(),
                    "it may call CUDA (FI_OPT_CUDA_API_PERMITTED), behind a running kernel",
                ),
                (
                    sys::FI_OPT_FI_HMEM_P2P,
                    (&raw const required).cast(),
                    size_of::<c_int>(),
                    "it copies GPU memory itself (FI_OPT_FI_HMEM_P2P)",
                ),
            ];
            for (option, at, bytes, what) in options {
                let code = set(fid, level, option, at, bytes);
                if code != 0 {
                    let why = self.found.library.text(code.saturating_abs());
                    return Err(refused(format!("{what}: {why}")));
                }
            }
        }
        Ok(())
    }

    /// Bits that a key of the caller's may have.
    pub fn key_mask(&self) -> u64 {
        // SAFETY: the library's own, from `fi_getinfo`.
        let bytes = unsafe { (*(*self.found.info).domain_attr).mr_key_size };
        u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// An error number of a call, as an error.
    pub fn check(&self, call: &'static str, code: c_int) -> Result<(), TransportError> {
        if code == 0 {
            return Ok(());
        }
        let what = self.found.library.text(code.saturating_abs());
        Err(TransportError::Call { transport: self.name.clone(), call, what, code })
    }

    /// Registers an arena: what byte 0 is called, and its key.
    ///
    /// # Errors
    /// As the provider says.
    pub fn register(
        &mut self,
        memory: &dyn NetMemory,
        key: u64,
    ) -> Result<(u64, u64), TransportError> {
        let access = sys::FI_WRITE | sys::FI_REMOTE_WRITE;
        let (base, bytes) = (memory.base(), memory.bytes() as usize);
        let iov = sys::Iovec { base: base.cast(), len: bytes };
        // SAFETY: open; the caller keeps the memory until after `close`.
        let (call, code) = unsafe {
            let (fid, ops) = (&raw mut (*self.domain).fid, &*(*self.domain).mr);
            match memory.gpu() {
                None => {
                    let none = null_mut();
                    let code =
                        (ops.reg)(fid, iov.base, bytes, access, 0, key, 0, &mut self.mr, none);
                    ("fi_mr_reg", code)
                }
                Some(gpu) => {
                    let mut attr: sys::MrAttr = std::mem::zeroed();
                    (attr.iov, attr.iov_count, attr.access) = (&iov, 1, access);
                    (attr.requested_key, attr.iface) = (key, sys::FI_HMEM_CUDA);
                    attr.device = gpu.ordinal as u64;
                    ("fi_mr_regattr", (ops.regattr)(fid, &attr, 0, &mut self.mr))
                }
            }
        };
        self.check(call, code)?;
        let by_address = self.found.answer.mr_mode & sys::FI_MR_VIRT_ADDR != 0;
        // SAFETY: just made.
        let key = unsafe { (*self.mr).key };
        Ok((if by_address { base as u64 } else { 0 }, key))
    }

    /// Where the endpoint is.
    pub fn address(&mut self) -> Result<Vec<u8>, TransportError> {
        let mut name = vec![0u8; MAX_NAME];
        let mut length = name.len();
        // SAFETY: open; `length` bytes are there.
        let code = unsafe {
            let fid = &raw mut (*self.ep).fid;
            ((*(*self.ep).cm).getname)(fid, name.as_mut_ptr().cast(), &mut length)
        };
        self.check("fi_getname", code)?;
        name.truncate(length);
        Ok(name)
    }

    /// Makes an address known, as a number.
    pub fn insert(&mut self, address: &[u8]) -> Result<u64, TransportError> {
        // Room behind it: a provider reads as much as its addresses have.
        let mut room = vec![0u8; MAX_NAME + 1];
        room[..address.len()].copy_from_slice(address);
        let mut number = u64::MAX;
        // SAFETY: open; more bytes than any address has.
        let inserted = unsafe {
            ((*(*self.av).ops).insert)(self.av, room.as_ptr().cast(), 1, &mut number, 0, null_mut())
        };
        match inserted {
            1 => Ok(number),
            n => {
                let what = "the provider does not take the address".into();
                let transport = self.name.clone();
                Err(TransportError::Call { transport, call: "fi_av_insert", what, code: n })
            }
        }
    }

    /// Starts a write: 0, or an error number, negative.
    ///
    /// # Safety
    /// `bytes` bytes from `from` on are in the registered memory; `context` is not used by another operation, and
    /// stays.
    pub unsafe fn write(
        &mut self,
        (from, bytes): (*const u8, usize),
        immediate: Option<u32>,
        (peer, to, key): (u64, u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: open, and as the caller says.
        unsafe {
            let desc = (*self.mr).mem_desc;
            let ops = &*(*self.ep).rma;
            match immediate {
                // libfabric 1.17's shm reports the arrival of nothing, and never its delivery.
                Some(data) if bytes == 0 && self.found.answer.is_shm() => {
                    let local = sys::Iovec { base: from.cast(), len: 0 };
                    let remote = sys::RmaIov { addr: to, len: 0, key };
                    let mut desc = desc;
                    let message = sys::MsgRma {
                        msg_iov: &local,
                        desc: &mut desc,
                        iov_count: 1,
                        addr: peer,
                        rma_iov: &remote,
                        rma_iov_count: 1,
                        context,
                        data: u64::from(data),
                    };
                    let flags = sys::FI_REMOTE_CQ_DATA | sys::FI_COMPLETION;
                    (ops.writemsg)(self.ep, &message, flags)
                }
                Some(data) => {
                    let data = u64::from(data);
                    (ops.writedata)(self.ep, from.cast(), bytes, desc, data, peer, to, key, context)
                }
                None => (ops.write)(self.ep, from.cast(), bytes, desc, peer, to, key, context),
            }
        }
    }

    /// Posts a receive of nothing, for an arrival to consume.
    ///
    /// # Safety
    /// As of [`Objects::write`].
    pub unsafe fn receive(&mut self, context: *mut c_void) -> isize {
        // SAFETY: open; no buffer.
        unsafe { ((*(*self.ep).msg).recv)(self.ep, null_mut(), 0, null_mut(), u64::MAX, context) }
    }

    /// Makes progress and reads completions: how many, or an error number, negative.
    pub fn completions(&mut self, out: &mut [sys::CqEntry]) -> isize {
        // SAFETY: open; entries are of the queue's format.
        unsafe { ((*(*self.cq).ops).read)(self.cq, out.as_mut_ptr().cast(), out.len()) }
    }

    /// The failed operation at the head of the queue.
    pub fn failure(&mut self) -> Option<sys::CqError> {
        // SAFETY: plain numbers and pointers.
        let mut error: sys::CqError = unsafe { std::mem::zeroed() };
        // SAFETY: open; with room for what later versions write.
        let n = unsafe { ((*(*self.cq).ops).readerr)(self.cq, &mut error, 0) };
        (n > 0).then_some(error)
    }

    /// Whether the endpoint is open.
    pub fn is_open(&self) -> bool {
        !self.ep.is_null()
    }

    /// Makes the arena unreachable: a peer's write finds no region.
    pub fn close_region(&mut self) -> Result<(), TransportError> {
        let mr: *mut Fid = std::mem::replace(&mut self.mr, null_mut()).cast();
        self.close_one("fi_close of the memory region", mr)
    }

    fn close_one(&self, call: &'static str, fid: *mut Fid) -> Result<(), TransportError> {
        if fid.is_null() {
            return Ok(());
        }
        // SAFETY: every object begins with its `fid`; open until now, and closed once.
        let code = unsafe { ((*(*fid).ops).close)(fid) };
        self.check(call, code)
    }

    /// Closes everything; the first call that fails is the error, and the rest is closed nevertheless.
    ///
    /// `ofi_rxm` crashes in the close of an endpoint that a peer is just writing to (1.17: it looks into the context of
    /// the cancelled receive, which has none). Its endpoints stay open, without a region and without progress, until
    /// the process ends.
    pub fn close(&mut self) -> Result<(), TransportError> {
        let region = self.close_region();
        let lists: [(&'static str, *mut Fid); 5] = [
            ("fi_close of the endpoint", std::mem::replace(&mut self.ep, null_mut()).cast()),
            (
                "fi_close of the completion queue",
                std::mem::replace(&mut self.cq, null_mut()).cast(),
            ),
            ("fi_close of the address vector", std::mem::replace(&mut self.av, null_mut()).cast()),
            ("fi_close of the domain", std::mem::replace(&mut self.domain, null_mut()).cast()),
            ("fi_close of the fabric", std::mem::replace(&mut self.fabric, null_mut()).cast()),
        ];
        if self.found.answer.is_rxm() {
            return region;
        }
        let close = |result: Result<(), _>, (call, fid)| result.and(self.close_one(call, fid));
        lists.into_iter().fold(region, close)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "libfabric did not close");
        }
    }
}
