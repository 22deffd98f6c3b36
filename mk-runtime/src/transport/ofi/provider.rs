//! The provider: what is asked of libfabric, what it answers, and which answers are refused.
//!
//! Provider `efa` has requirements of its own. RDMA write came with libfabric 1.18, and its immediates were mended in
//! 1.19.1, which the library's version number does not tell from 1.19.0, so that 1.20 is asked for. An emulated write,
//! or one through CUDA's copies, would stand behind the kernel that waits for it.

use super::load::Library;
use super::options::Options;
use super::sys::{self, Info};
use crate::error::TransportError;
use crate::transport::place::{Place, SYS};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

/// Fewest bytes of remote CQ data: an immediate.
const IMMEDIATE_BYTES: usize = 4;
const EFA_SINCE: u32 = sys::version(1, 20);
const EFA: &str = "efa";
const NEEDS: u64 = sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
const REGIONS: c_int =
    sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;

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
    pub fn check(&self, gpu_memory: bool) -> Result<(), String> {
        let modes = sys::FI_RX_CQ_DATA | sys::FI_CONTEXT | sys::FI_CONTEXT2;
        let regions = REGIONS | if gpu_memory { sys::FI_MR_HMEM } else { 0 };
        if self.caps & NEEDS != NEEDS {
            return Err("it does not write to remote memory".into());
        }
        if gpu_memory && !self.has_gpus() {
            return Err(
                "it does not reach GPU memory (FI_HMEM); use pinned memory of the host".into()
            );
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

    /// Whether it reaches GPU memory.
    pub fn has_gpus(&self) -> bool {
        self.caps & sys::FI_HMEM != 0
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
    /// libfabric's name of the device.
    pub domain: String,
    /// Where the device is.
    place: Place,
}

// SAFETY: owned memory that one thread at a time reads.
unsafe impl Send for Found {}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed once.
        unsafe { (self.library.freeinfo)(self.info) }
    }
}

/// Asks for a provider of reliable, unordered remote writes: one device for each rail.
///
/// # Errors
/// [`TransportError::Unavailable`] without a device for the provider; [`TransportError::Refused`] for a provider that
/// would not do, and for fewer devices than rails.
pub(super) fn find(
    library: &'static Library,
    options: &Options,
) -> Result<Vec<Found>, TransportError> {
    let provider = &options.provider;
    let name = || format!("ofi ({provider})");
    let refused = |what: String| TransportError::Refused { transport: name(), what };
    let list = ask(library, options, &refused)?;
    let there: Vec<Found> = list.infos().map(|info| Found::copy(library, info)).collect();
    let mut devices: Vec<&Found> = Vec::new();
    for found in &there {
        // A device has several entries where a provider has several ways.
        if devices.iter().all(|d| d.domain != found.domain) {
            devices.push(found);
        }
    }
    let near = options.near.as_deref().map(|pci| Place::of(Path::new(SYS), pci));
    if let Some(near) = near {
        devices.sort_by_key(|d| std::cmp::Reverse(near.nearness(&d.place)));
    }
    let names = || devices.iter().map(|d| d.domain.as_str()).collect::<Vec<_>>().join(", ");
    let chosen: Vec<&Found> = match &options.domains {
        Some(wanted) if wanted.len() != options.rails => {
            let (n, rails) = (wanted.len(), options.rails);
            return Err(refused(format!("{n} devices are named for {rails} rails")));
        }
        Some(wanted) => wanted
            .iter()
            .map(|domain| devices.iter().copied().find(|d| d.domain == *domain).ok_or(domain))
            .collect::<Result<_, _>>()
            .map_err(|domain| refused(format!("there is no device {domain}, among {}", names())))?,
        None => devices.iter().copied().cycle().take(options.rails).collect(),
    };
    let is_efa = chosen.iter().any(|found| found.answer.is_efa());
    if is_efa && options.domains.is_none() && options.rails > devices.len() {
        let (n, rails) = (devices.len(), options.rails);
        return Err(refused(format!("{rails} rails on {n} devices ({}): use as many", names())));
    }
    let chosen = chosen.into_iter().map(|found| {
        found.answer.check(options.gpu_memory).map_err(&refused)?;
        let mut own = Found::copy(library, found.info);
        own.ask_for_delivery();
        Ok(own)
    });
    chosen.collect()
}

/// A list of `fi_info`, freed when it is dropped.
struct List {
    library: &'static Library,
    first: *mut Info,
}

impl List {
    fn infos(&self) -> impl Iterator<Item = *const Info> {
        // SAFETY: a list of the library's own, which ends with null.
        let next = |info: &*const Info| unsafe { (**info).next.cast_const() };
        let some = |info: *const Info| (!info.is_null()).then_some(info);
        std::iter::successors(some(self.first), move |info| some(next(info)))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed once.
        unsafe { (self.library.freeinfo)(self.first) }
    }
}

/// `fi_getinfo`.
fn ask(
    library: &'static Library,
    options: &Options,
    refused: &impl Fn(String) -> TransportError,
) -> Result<List, TransportError> {
    let (provider, address) = (&options.provider, options.address.as_deref());
    let text = |s: &str| CString::new(s).map_err(|_| refused(format!("{s:?} has a zero byte")));
    let (wanted, node) = (text(provider)?, address.map(text).transpose()?);
    // SAFETY: without an argument it makes an empty one, with all that hangs on it.
    let hints = unsafe { (library.dupinfo)(std::ptr::null()) };
    if hints.is_null() {
        return Err(refused("fi_dupinfo gave nothing".into()));
    }
    let hmem = |bits: u64| if options.gpu_memory { bits } else { 0 };
    // SAFETY: just made, and ours; the library frees the provider's name as `free` does.
    unsafe {
        (*hints).caps = NEEDS | sys::FI_MSG | hmem(sys::FI_HMEM);
        (*hints).mode = sys::FI_RX_CQ_DATA | sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*(*hints).ep_attr).kind = sys::FI_EP_RDM;
        (*(*hints).fabric_attr).prov_name = nix::libc::strdup(wanted.as_ptr());
        let domain = (*hints).domain_attr;
        (*domain).mr_mode = REGIONS | hmem(sys::FI_MR_HMEM as u64) as c_int;
        (*domain).cq_data_size = IMMEDIATE_BYTES;
        (*domain).threading = sys::FI_THREAD_DOMAIN;
        // Nothing is written to the arena but by a poll, or by the device.
        (*domain).data_progress = sys::FI_PROGRESS_MANUAL;
        (*(*hints).tx_attr).op_flags = sys::FI_DELIVERY_COMPLETE;
    }
    let node = node.as_ref().map_or(std::ptr::null(), |n| n.as_ptr());
    let flags = if node.is_null() { 0 } else { sys::FI_SOURCE };
    let mut first = std::ptr::null_mut();
    // SAFETY: C strings or null, hints from above, a valid out-pointer.
    let code = unsafe {
        let service = std::ptr::null();
        let code = (library.getinfo)(sys::API_VERSION, node, service, flags, hints, &mut first);
        (library.freeinfo)(hints);
        code
    };
    if code != 0 || first.is_null() {
        let at = address.map_or(String::new(), |a| format!(" at {a}"));
        let gpus =
            if options.gpu_memory { ", or none that reaches GPU memory (FI_HMEM)" } else { "" };
        let what = format!(
            "libfabric {} ({}): {}",
            version_text(library.version),
            library.path.display(),
            library.text(-code)
        );
        return Err(TransportError::Unavailable {
            transport: format!("ofi ({provider})"),
            what,
            help: format!(
                "it has no device for provider `{provider}`{at}{gpus}, or does not know it"
            ),
        });
    }
    Ok(List { library, first })
}

/// A name, or nothing.
///
/// # Safety
/// A C string, or null.
unsafe fn text(name: *const c_char) -> String {
    match name.is_null() {
        true => String::new(),
        // SAFETY: as the caller says.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
    }
}

/// Where the device of an entry is, if it is on the PCI bus and the provider says so.
fn place(info: &Info) -> Place {
    let nic: *const sys::Nic = info.nic.cast();
    if nic.is_null() {
        return Place::default();
    }
    // SAFETY: of the library's own, with these fields (fabric.h).
    let Some(bus) = (unsafe { (*nic).bus_attr.as_ref() }) else { return Place::default() };
    if bus.kind != sys::FI_BUS_PCI {
        return Place::default();
    }
    let sys::BusAttr { domain, bus, device, function, .. } = *bus;
    Place::of(Path::new(SYS), &format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Reads what the library has answered.
fn answer(library: &Library, info: *const Info) -> Answer {
    // SAFETY: answered by `fi_getinfo`, which fills all of these.
    unsafe {
        let (info, domain) = (&*info, &*(*info).domain_attr);
        Answer {
            provider: text((*info.fabric_attr).prov_name),
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
    /// A copy of one entry of a list.
    fn copy(library: &'static Library, info: *const Info) -> Found {
        // SAFETY: the library's own; it copies the entry, and all that hangs on it.
        let info = unsafe { (library.dupinfo)(info) };
        // SAFETY: just made, with all of these.
        let (domain, place) = unsafe { (text((*(*info).domain_attr).name), place(&*info)) };
        Found { library, info, answer: answer(library, info), domain, place }
    }

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
        assert_eq!(efa().check(false), Ok(()));
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
            let why = answer.check(false).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        // Asked for, and only then.
        assert!(efa().check(true).unwrap_err().contains("FI_HMEM"));
        let gpus = Answer { caps: efa().caps | sys::FI_HMEM, ..efa() };
        assert_eq!(gpus.check(true), Ok(()));
        let hmem = Answer { mr_mode: efa().mr_mode | sys::FI_MR_HMEM, ..gpus };
        assert_eq!(hmem.check(true), Ok(()));
        assert!(hmem.check(false).is_err());
        // Others have no such bound.
        let tcp = Answer { provider: "tcp;ofi_rxm".into(), library: sys::version(1, 17), ..efa() };
        assert_eq!(tcp.check(false), Ok(()));
    }
}
