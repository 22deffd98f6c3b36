//! The provider: what is asked of libfabric, what it answers, and which answers are refused.
//!
//! Provider `efa` has requirements of its own. RDMA write came with libfabric 1.18, and its immediates were mended in
//! 1.19.1, which the library's version number does not tell from 1.19.0, so that 1.20 is asked for. An emulated write, or
//! one through CUDA's copies, would stand behind the kernel that waits for it.

use super::load::Library;
use super::sys::{self, Info};
use crate::error::TransportError;
use std::ffi::{CStr, CString, c_int};

/// Fewest bytes of remote CQ data: an immediate.
const IMMEDIATE_BYTES: usize = 4;
const EFA_SINCE: u32 = sys::version(1, 20);
const EFA: &str = "efa";

/// What a provider says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub provider: String,
    /// Of the library.
    pub library: u32,
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub mr_mode: c_int,
    pub cq_data_bytes: usize,
    pub max_bytes: usize,
    /// Writes in flight, and posted receives.
    pub tx_size: usize,
    pub rx_size: usize,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (version, depth) = (version_text(self.library), self.tx_size);
        write!(f, "libfabric {version}, provider {}, {depth} writes at once", self.provider)
    }
}

impl Answer {
    /// Why results would be wrong or late with it, if they would.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<(), String> {
        let needs = sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
        let modes = sys::FI_RX_CQ_DATA | sys::FI_CONTEXT | sys::FI_CONTEXT2;
        let regions =
            sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;
        if self.caps & needs != needs {
            return Err("it does not write to remote memory".into());
        }
        if self.cq_data_bytes < IMMEDIATE_BYTES {
            let n = self.cq_data_bytes;
            return Err(format!(
                "its completions carry {n} bytes of a writer's, and an immediate has {IMMEDIATE_BYTES}"
            ));
        }
        if self.op_flags & sys::FI_DELIVERY_COMPLETE == 0 {
            return Err(
                "it does not say when a write is in the peer's memory (FI_DELIVERY_COMPLETE)"
                    .into(),
            );
        }
        if self.mode & !modes != 0 {
            return Err(format!(
                "it asks for mode bits that mk does not have: {:#x}",
                self.mode & !modes
            ));
        }
        if self.mr_mode & !regions != 0 {
            let bits = self.mr_mode & !regions;
            return Err(format!("it asks for memory regions that mk does not have: {bits:#x}"));
        }
        if self.tx_size == 0 || (self.mode & sys::FI_RX_CQ_DATA != 0 && self.rx_size == 0) {
            return Err("its queues are empty".into());
        }
        if self.is_efa() && self.library < EFA_SINCE {
            return Err(format!(
                "libfabric {} may lose immediates of RDMA writes; {} or newer is needed",
                version_text(self.library),
                version_text(EFA_SINCE)
            ));
        }
        Ok(())
    }

    pub fn is_shm(&self) -> bool {
        self.provider == "shm"
    }

    pub fn is_rxm(&self) -> bool {
        self.provider.split(';').any(|part| part == "ofi_rxm")
    }

    pub fn is_efa(&self) -> bool {
        self.provider.split(';').any(|part| part == EFA)
    }
}

pub(super) fn version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// `fi_info` of a provider, freed when it is dropped.
pub(super) struct Found {
    pub library: &'static Library,
    pub info: *mut Info,
    pub answer: Answer,
}

// SAFETY: owned memory that one thread at a time reads.
unsafe impl Send for Found {}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed once.
        unsafe { (self.library.freeinfo)(self.info) }
    }
}

/// Asks for a provider of reliable, unordered remote writes.
///
/// # Errors
/// [`TransportError::Unavailable`] without the library, or a device for the provider; [`TransportError::Refused`] for a
/// provider that would not do.
pub(super) fn find(provider: &str, address: Option<&str>) -> Result<Found, TransportError> {
    let library = Library::get()?;
    let name = || format!("ofi ({provider})");
    let refused = |what: String| TransportError::Refused { transport: name(), what };
    let text = |s: &str| CString::new(s).map_err(|_| refused(format!("{s:?} has a zero byte")));
    let (wanted, node) = (text(provider)?, address.map(text).transpose()?);
    // SAFETY: without an argument it makes an empty one, with all that hangs on it.
    let hints = unsafe { (library.dupinfo)(std::ptr::null()) };
    if hints.is_null() {
        return Err(refused("fi_dupinfo gave nothing".into()));
    }
    // SAFETY: just made, and ours; the library frees the provider's name as `free` does.
    unsafe {
        (*hints).caps = sys::FI_MSG | sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
        (*hints).mode = sys::FI_RX_CQ_DATA | sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*(*hints).ep_attr).kind = sys::FI_EP_RDM;
        (*(*hints).fabric_attr).prov_name = nix::libc::strdup(wanted.as_ptr());
        let domain = (*hints).domain_attr;
        (*domain).mr_mode =
            sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;
        (*domain).cq_data_size = IMMEDIATE_BYTES;
        (*domain).threading = sys::FI_THREAD_DOMAIN;
        // Nothing is written to the arena but by a poll, or by the device.
        (*domain).data_progress = sys::FI_PROGRESS_MANUAL;
        (*(*hints).tx_attr).op_flags = sys::FI_DELIVERY_COMPLETE;
    }
    let node = node.as_ref().map_or(std::ptr::null(), |n| n.as_ptr());
    let flags = if node.is_null() { 0 } else { sys::FI_SOURCE };
    let mut info = std::ptr::null_mut();
    // SAFETY: C strings or null, hints from above, a valid out-pointer.
    let code = unsafe {
        let service = std::ptr::null();
        let code = (library.getinfo)(sys::API_VERSION, node, service, flags, hints, &mut info);
        (library.freeinfo)(hints);
        code
    };
    if code != 0 || info.is_null() {
        let at = address.map_or(String::new(), |a| format!(" at {a}"));
        let what = format!(
            "libfabric {} ({}): {}",
            version_text(library.version),
            library.path.display(),
            library.text(-code)
        );
        return Err(TransportError::Unavailable {
            transport: name(),
            what,
            help: format!("it has no device for provider `{provider}`{at}, or does not know it"),
        });
    }
    let mut found = Found { library, info, answer: answer(library, info) };
    found.answer.check().map_err(refused)?;
    found.ask_for_delivery();
    Ok(found)
}

/// Reads what the library has answered.
fn answer(library: &Library, info: *const Info) -> Answer {
    // SAFETY: answered by `fi_getinfo`, which fills all of these.
    unsafe {
        let (info, domain) = (&*info, &*(*info).domain_attr);
        let name = (*info.fabric_attr).prov_name;
        let provider = match name.is_null() {
            true => String::new(),
            false => CStr::from_ptr(name).to_string_lossy().into_owned(),
        };
        Answer {
            provider,
            library: library.version,
            caps: info.caps,
            mode: info.mode | (*info.tx_attr).mode | (*info.rx_attr).mode,
            op_flags: (*info.tx_attr).op_flags,
            mr_mode: domain.mr_mode,
            cq_data_bytes: domain.cq_data_size,
            max_bytes: (*info.ep_attr).max_msg_size,
            tx_size: (*info.tx_attr).size,
            rx_size: (*info.rx_attr).size,
        }
    }
}

impl Found {
    /// Every write of the endpoint completes when it is in the peer's memory.
    fn ask_for_delivery(&mut self) {
        // SAFETY: ours, from `fi_getinfo`.
        unsafe {
            (*(*self.info).tx_attr).op_flags |= sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn efa() -> Answer {
        Answer {
            provider: "efa".into(),
            library: sys::version(1, 20),
            caps: sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE,
            mode: sys::FI_RX_CQ_DATA,
            op_flags: sys::FI_DELIVERY_COMPLETE,
            mr_mode: sys::FI_MR_LOCAL
                | sys::FI_MR_VIRT_ADDR
                | sys::FI_MR_ALLOCATED
                | sys::FI_MR_PROV_KEY,
            cq_data_bytes: 4,
            max_bytes: 1 << 30,
            tx_size: 256,
            rx_size: 256,
        }
    }

    #[test]
    fn what_a_provider_lacks_is_the_reason() {
        assert_eq!(efa().check(), Ok(()));
        let cases = [
            (
                Answer { library: sys::version(1, 19), ..efa() },
                "libfabric 1.19 may lose immediates",
            ),
            (Answer { cq_data_bytes: 0, ..efa() }, "carry 0 bytes"),
            (Answer { op_flags: 0, ..efa() }, "FI_DELIVERY_COMPLETE"),
            (Answer { caps: sys::FI_RMA | sys::FI_WRITE, ..efa() }, "does not write to remote"),
            (Answer { mode: 1 << 58, ..efa() }, "mode bits"),
            (Answer { mr_mode: 1 << 9, ..efa() }, "memory regions"),
            (Answer { rx_size: 0, ..efa() }, "queues are empty"),
        ];
        for (answer, reason) in cases {
            let why = answer.check().unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        // Others have no such bound.
        let tcp = Answer { provider: "tcp;ofi_rxm".into(), library: sys::version(1, 17), ..efa() };
        assert_eq!(tcp.check(), Ok(()));
    }
}
