//! libfabric's structs, as far as this transport reads or fills them: `fabric.h`, `fi_domain.h`, `fi_endpoint.h`,
//! `fi_rma.h`, `fi_eq.h` of 1.17. Later versions of the library append fields, which is why `fi_info` and what hangs on
//! it are made by `fi_dupinfo` alone, and why structs that we allocate have room behind them.
//!
//! Functions that are not symbols of the library are in tables that objects carry; a table says how long it is.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

pub(super) const API_VERSION: u32 = version(1, 17);

pub(super) const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_TRANSMIT: u64 = 1 << 11;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(super) const FI_COMPLETION: u64 = 1 << 24;
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// Memory of accelerators.
pub(super) const FI_HMEM: u64 = 1 << 47;
pub(super) const FI_SOURCE: u64 = 1 << 57;
/// Mode: an arrival consumes a posted receive.
pub(super) const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Modes: the context of an operation belongs to the provider until it ends.
pub(super) const FI_CONTEXT: u64 = 1 << 59;
pub(super) const FI_CONTEXT2: u64 = 1 << 52;
pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;
pub(super) const FI_MR_HMEM: c_int = 1 << 10;
pub(super) const FI_HMEM_CUDA: c_int = 1;
pub(super) const FI_BUS_PCI: c_int = 1;
pub(super) const FI_THREAD_DOMAIN: c_int = 3;
pub(super) const FI_PROGRESS_MANUAL: c_int = 2;
pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_AV_TABLE: c_int = 2;
pub(super) const FI_CQ_FORMAT_DATA: c_int = 3;
/// `control`: lets an endpoint begin.
pub(super) const FI_ENABLE: c_int = 6;
pub(super) const FI_OPT_ENDPOINT: c_int = 0;
pub(super) const FI_OPT_FI_HMEM_P2P: c_int = 8;
pub(super) const FI_HMEM_P2P_REQUIRED: c_int = 1;
/// Since 1.18.
pub(super) const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// `fi_ext.h`, since 1.18: of provider efa.
pub(super) const FI_OPT_EFA_EMULATED_WRITE: c_int = -(0xefa << 16) + 2;
/// `FI_EAGAIN`, `FI_EAVAIL` (`fi_errno.h`).
pub(super) const EAGAIN: isize = 11;
pub(super) const EAVAIL: isize = 259;
/// `FI_ECANCELED`.
pub(super) const ECANCELED: c_int = 125;

#[repr(C)]
pub(super) struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut c_void,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub(super) struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub(super) struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
}

#[repr(C)]
pub(super) struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
}

#[repr(C)]
pub(super) struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
}

#[repr(C)]
pub(super) struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// The head of every object.
#[repr(C)]
pub(super) struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const FidOps,
}

#[repr(C)]
pub(super) struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct Fabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
}

#[repr(C)]
pub(super) struct FabricOps {
    pub size: usize,
    pub domain:
        unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct Domain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub(super) struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct MrOps {
    pub size: usize,
    #[allow(clippy::type_complexity)]
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut Mr,
        *mut c_void,
    ) -> c_int,
    pub regv: *const c_void,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut Mr) -> c_int,
}

/// With room for what later versions append.
#[repr(C)]
pub(super) struct MrAttr {
    pub iov: *const Iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    /// A union of 8 bytes; CUDA's member is a number of a GPU.
    pub device: u64,
    pub hmem_data: *mut c_void,
    pub later: [u64; 8],
}

/// What an entry says of its device.
#[repr(C)]
pub(super) struct Nic {
    pub fid: Fid,
    pub device_attr: *mut c_void,
    pub bus_attr: *const BusAttr,
    pub link_attr: *mut c_void,
    pub prov_attr: *mut c_void,
}

/// Of a device on the PCI bus.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BusAttr {
    pub kind: c_int,
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

#[repr(C)]
pub(super) struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// With room for what later versions append.
#[repr(C)]
pub(super) struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
    pub later: [u64; 8],
}

#[repr(C)]
pub(super) struct Av {
    pub fid: Fid,
    pub ops: *const AvOps,
}

#[repr(C)]
pub(super) struct AvOps {
    pub size: usize,
    pub insert:
        unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
}

/// With room for what later versions append.
#[repr(C)]
pub(super) struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
    pub later: [u64; 8],
}

#[repr(C)]
pub(super) struct Cq {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub(super) struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: *const c_void,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// With room for what later versions append.
#[repr(C)]
pub(super) struct CqError {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub later: [u64; 8],
}

#[repr(C)]
pub(super) struct Ep {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
}

#[repr(C)]
pub(super) struct EpOps {
    pub size: usize,
    pub cancel: *const c_void,
    pub getopt:
        Option<unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int>,
    pub setopt: Option<unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int>,
}

#[repr(C)]
pub(super) struct CmOps {
    pub size: usize,
    pub setname: *const c_void,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub(super) struct MsgOps {
    pub size: usize,
    pub recv:
        unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
}

#[repr(C)]
pub(super) struct Iovec {
    pub base: *const c_void,
    pub len: usize,
}

#[repr(C)]
pub(super) struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub(super) struct MsgRma {
    pub msg_iov: *const Iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub(super) struct RmaOps {
    pub size: usize,
    pub read: *const c_void,
    pub readv: *const c_void,
    pub readmsg: *const c_void,
    #[allow(clippy::type_complexity)]
    pub write: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub writev: *const c_void,
    pub writemsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
    pub inject: *const c_void,
    #[allow(clippy::type_complexity)]
    pub writedata: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
}

// Offsets as a C compiler gives them for libfabric 1.17's headers on 64-bit Linux.
const _: () = {
    assert!(size_of::<Info>() == 120 && offset_of!(Info, fabric_attr) == 104);
    assert!(offset_of!(TxAttr, size) == 48 && offset_of!(EpAttr, max_msg_size) == 16);
    assert!(offset_of!(DomainAttr, mr_mode) == 36 && offset_of!(DomainAttr, cq_data_size) == 48);
    assert!(size_of::<FabricAttr>() == 32 && offset_of!(FabricAttr, prov_version) == 24);
    assert!(offset_of!(CqAttr, format) == 16 && offset_of!(CqAttr, wait_obj) == 20);
    assert!(offset_of!(CqAttr, later) == 40 && offset_of!(AvAttr, later) == 48);
    assert!(offset_of!(MrAttr, iface) == 64 && offset_of!(MrAttr, device) == 72);
    assert!(offset_of!(MrAttr, later) == 88 && offset_of!(MrOps, regattr) == 24);
    assert!(offset_of!(Nic, bus_attr) == 32 && offset_of!(BusAttr, function) == 8);
    assert!(size_of::<CqEntry>() == 40 && offset_of!(CqError, err) == 56);
    assert!(offset_of!(CqError, later) == 80 && offset_of!(Mr, key) == 32);
    assert!(size_of::<Mr>() == 40 && offset_of!(RmaOps, writedata) == 64);
    assert!(size_of::<MsgRma>() == 64 && size_of::<RmaIov>() == 24);
    assert!(offset_of!(CmOps, getname) == 16 && offset_of!(Ep, rma) == 48);
};
