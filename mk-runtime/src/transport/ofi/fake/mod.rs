//! A libfabric of our own, for tests: provider `efa` in memory, which answers, delays, reorders and fails as a test
//! says. It keeps to libfabric's tables, so that the code above them is the code that runs on a device.
//!
//! Unit tests have one in each thread. `tests/efa` makes a library of it that processes load, in which writes cross
//! sockets.

mod state;

use super::sys::*;
#[cfg(test)]
pub(super) use control::*;
use state::error;
pub(crate) use state::{Arrival, Behaviour, End, Op, Region, State};
#[cfg(not(test))]
pub(crate) use state::{Message, Others, Sent};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

#[cfg(test)]
thread_local! {
    static STATE: std::cell::RefCell<State> = std::cell::RefCell::default();
}
/// Of a process, as a library has it.
#[cfg(not(test))]
static STATE: std::sync::Mutex<Option<State>> = std::sync::Mutex::new(None);

/// In unit tests each thread has a provider of its own.
#[cfg(test)]
fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(|state| f(&mut state.borrow_mut()))
}

#[cfg(not(test))]
fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    let mut state = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    f(state.get_or_insert_with(super::begin))
}

pub(crate) unsafe extern "C" fn strerror(_: c_int) -> *const c_char {
    c"as the fake says".as_ptr()
}

fn zeroed<T>() -> *mut T {
    // SAFETY: plain numbers and pointers.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed() }))
}

pub(crate) unsafe extern "C" fn dupinfo(of: *const Info) -> *mut Info {
    let info: *mut Info = zeroed();
    // SAFETY: just made; `of` is null or made here.
    unsafe {
        (*info).tx_attr = zeroed();
        (*info).rx_attr = zeroed();
        (*info).ep_attr = zeroed();
        (*info).domain_attr = zeroed();
        (*info).fabric_attr = zeroed();
        if let Some(of) = of.as_ref() {
            ((*info).caps, (*info).mode) = (of.caps, of.mode);
            std::ptr::copy(of.tx_attr, (*info).tx_attr, 1);
            std::ptr::copy(of.rx_attr, (*info).rx_attr, 1);
            std::ptr::copy(of.ep_attr, (*info).ep_attr, 1);
            std::ptr::copy(of.domain_attr, (*info).domain_attr, 1);
            std::ptr::copy(of.fabric_attr, (*info).fabric_attr, 1);
            (*(*info).domain_attr).name = nix::libc::strdup((*of.domain_attr).name);
            (*(*info).fabric_attr).prov_name = nix::libc::strdup((*of.fabric_attr).prov_name);
        }
    }
    info
}

pub(crate) unsafe extern "C" fn freeinfo(mut info: *mut Info) {
    while !info.is_null() {
        // SAFETY: made by `dupinfo`, and freed once.
        unsafe {
            let this = Box::from_raw(info);
            nix::libc::free((*this.domain_attr).name.cast());
            nix::libc::free((*this.fabric_attr).prov_name.cast());
            drop(Box::from_raw(this.tx_attr));
            drop(Box::from_raw(this.rx_attr));
            drop(Box::from_raw(this.ep_attr));
            drop(Box::from_raw(this.domain_attr));
            drop(Box::from_raw(this.fabric_attr));
            info = this.next;
        }
    }
}

pub(crate) unsafe extern "C" fn getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    _: *const Info,
    out: *mut *mut Info,
) -> c_int {
    let b = with(|s| s.behaviour.clone());
    if b.getinfo != 0 {
        return b.getinfo;
    }
    let mut next = null_mut();
    for device in (0..b.devices).rev() {
        // SAFETY: as of `dupinfo`.
        unsafe {
            let info = dupinfo(null());
            ((*info).caps, (*info).mode, (*info).next) = (b.caps, b.mode, next);
            let (tx, domain) = (&mut *(*info).tx_attr, &mut *(*info).domain_attr);
            (tx.op_flags, tx.size) = (b.op_flags, b.queue);
            (*(*info).rx_attr).size = b.queue;
            (*(*info).ep_attr).max_msg_size = b.max_bytes;
            (domain.cq_data_size, domain.mr_key_size) = (b.cq_data_bytes, 8);
            domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
            let name = format!("rdmap{device}-rdm\0");
            domain.name = nix::libc::strdup(name.as_ptr().cast());
            let provider = format!("{}\0", b.provider);
            (*(*info).fabric_attr).prov_name = nix::libc::strdup(provider.as_ptr().cast());
            next = info;
        }
    }
    // SAFETY: a valid out-pointer.
    unsafe { *out = next };
    0
}

unsafe extern "C" fn nothing_bound(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: an open object of this file.
    let (class, id) = unsafe { ((*fid).class, (*fid).context as usize) };
    match class {
        EP => with(|s| s.ends[id].open = false),
        MR => with(|s| {
            s.regions.remove(&(fid as usize));
        }),
        _ => {}
    }
    0
}

/// Kinds of objects, in `Fid::class`.
const OTHER: usize = 0;
const EP: usize = 1;
const MR: usize = 2;

fn fid(class: usize, id: usize) -> Fid {
    let ops = FidOps {
        size: 0,
        close,
        bind: if class == EP { bind } else { nothing_bound },
        control: no_control,
    };
    Fid { class, context: id as *mut c_void, ops: Box::leak(Box::new(ops)) }
}

fn leak<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

pub(crate) unsafe extern "C" fn fabric(
    _: *mut FabricAttr,
    out: *mut *mut Fabric,
    _: *mut c_void,
) -> c_int {
    let ops = leak(FabricOps { size: 0, domain });
    // SAFETY: a valid out-pointer, here and below.
    unsafe { *out = leak(Fabric { fid: fid(OTHER, 0), ops }) };
    0
}

unsafe extern "C" fn domain(
    _: *mut Fabric,
    _: *mut Info,
    out: *mut *mut Domain,
    _: *mut c_void,
) -> c_int {
    let ops = leak(DomainOps { size: 0, av_open, cq_open, endpoint });
    let mr = leak(MrOps { size: 0, reg, regv: null(), regattr });
    // SAFETY: as above.
    unsafe { *out = leak(Domain { fid: fid(OTHER, 0), ops, mr }) };
    0
}

unsafe extern "C" fn av_open(
    _: *mut Domain,
    _: *mut AvAttr,
    out: *mut *mut Av,
    _: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { *out = leak(Av { fid: fid(OTHER, 0), ops: leak(AvOps { size: 0, insert }) }) };
    0
}

unsafe extern "C" fn cq_open(
    _: *mut Domain,
    _: *mut CqAttr,
    out: *mut *mut Cq,
    _: *mut c_void,
) -> c_int {
    let ops = leak(CqOps { size: 0, read, readfrom: null(), readerr });
    // SAFETY: as above.
    unsafe { *out = leak(Cq { fid: fid(OTHER, 0), ops }) };
    0
}

unsafe extern "C" fn endpoint(
    _: *mut Domain,
    _: *mut Info,
    out: *mut *mut Ep,
    _: *mut c_void,
) -> c_int {
    let id = with(|s| {
        s.ends.push(End { open: true, ..End::default() });
        s.ends.len() - 1
    });
    let options = with(|s| s.behaviour.has_options);
    let ops = EpOps {
        size: 0,
        cancel: null(),
        getopt: options.then_some(getopt as _),
        setopt: options.then_some(setopt as _),
    };
    let rma = RmaOps {
        size: 0,
        read: null(),
        readv: null(),
        readmsg: null(),
        write,
        writev: null(),
        writemsg,
        inject: null(),
        writedata,
    };
    let ep = Ep {
        fid: fid(EP, id),
        ops: leak(ops),
        cm: leak(CmOps { size: 0, setname: null(), getname }),
        msg: leak(MsgOps { size: 0, recv }),
        rma: leak(rma),
    };
    // SAFETY: as above.
    unsafe { *out = leak(ep) };
    0
}

unsafe extern "C" fn bind(ep: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
    // SAFETY: an endpoint of this file.
    let id = unsafe { (*ep).context as usize };
    if flags != 0 {
        with(|s| s.ends[id].cq = to as usize);
    }
    0
}

unsafe extern "C" fn getopt(
    _: *mut Fid,
    _: c_int,
    option: c_int,
    out: *mut c_void,
    _: *mut usize,
) -> c_int {
    assert_eq!(option, FI_OPT_EFA_EMULATED_WRITE);
    match with(|s| s.behaviour.emulated_write) {
        // SAFETY: the option is a bool.
        Some(value) => unsafe { out.cast::<bool>().write(value) },
        None => return -92,
    }
    0
}

unsafe extern "C" fn setopt(
    _: *mut Fid,
    _: c_int,
    option: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    with(|s| {
        s.set.insert(option);
        match option {
            FI_OPT_CUDA_API_PERMITTED => {
                // SAFETY: the option is a bool.
                assert!(bytes == 1 && !unsafe { value.cast::<bool>().read() });
                s.behaviour.cuda_api
            }
            _ => {
                assert!(option == FI_OPT_FI_HMEM_P2P && bytes == 4);
                s.behaviour.p2p
            }
        }
    })
}

unsafe extern "C" fn getname(ep: *mut Fid, out: *mut c_void, bytes: *mut usize) -> c_int {
    // SAFETY: an endpoint of this file, and room for 8 bytes.
    unsafe {
        out.cast::<u64>().write_unaligned(with(|s| s.address((*ep).context as usize)));
        *bytes = 8;
    }
    0
}

unsafe extern "C" fn insert(
    _: *mut Av,
    address: *const c_void,
    _: usize,
    number: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    // SAFETY: 8 bytes are there.
    unsafe { *number = address.cast::<u64>().read_unaligned() };
    1
}

unsafe fn register(
    of: *mut Fid,
    (base, bytes, access): (usize, usize, u64),
    key: u64,
    out: *mut *mut Mr,
) -> c_int {
    let mr = leak(Mr { fid: fid(MR, 0), mem_desc: of.cast(), key });
    with(|s| s.regions.insert(mr as usize, Region { base, bytes, access, key }));
    // SAFETY: as above.
    unsafe { *out = mr };
    0
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn reg(
    of: *mut Fid,
    base: *const c_void,
    bytes: usize,
    access: u64,
    _: u64,
    key: u64,
    _: u64,
    out: *mut *mut Mr,
    _: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { register(of, (base as usize, bytes, access), key, out) }
}

unsafe extern "C" fn regattr(
    of: *mut Fid,
    attr: *const MrAttr,
    _: u64,
    out: *mut *mut Mr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let MrAttr { iov, requested_key, iface, access, .. } = &*attr;
        assert_eq!(*iface, FI_HMEM_CUDA);
        register(of, ((**iov).base as usize, (**iov).len, *access), *requested_key, out)
    }
}

unsafe extern "C" fn recv(
    ep: *mut Ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this file.
    let id = unsafe { (*ep).fid.context as usize };
    with(|s| s.ends[id].receives.push_back(context as usize));
    0
}

unsafe extern "C" fn writemsg(_: *mut Ep, _: *const MsgRma, _: u64) -> isize {
    -EAGAIN
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn write(
    ep: *mut Ep,
    from: *const c_void,
    bytes: usize,
    _: *mut c_void,
    to: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe { start(ep, (from as usize, bytes), None, (to, at, key), context as usize) }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn writedata(
    ep: *mut Ep,
    from: *const c_void,
    bytes: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe { start(ep, (from as usize, bytes), Some(data), (to, at, key), context as usize) }
}

unsafe fn start(
    ep: *mut Ep,
    (source, bytes): (usize, usize),
    data: Option<u64>,
    (to, at, key): (u64, u64, u64),
    context: usize,
) -> isize {
    // SAFETY: an endpoint of this file.
    let from = unsafe { (*ep).fid.context as usize };
    with(|s| {
        if s.refused < s.behaviour.refusals {
            s.refused += 1;
            return -EAGAIN;
        }
        s.refused = 0;
        let (number, due) = (s.written, s.reads + s.behaviour.late);
        s.written += 1;
        let (from, sent) = (s.address(from), Vec::new());
        s.under_way.push(Op { number, from, to, source, sent, bytes, at, key, data, context, due });
        0
    })
}

unsafe extern "C" fn read(cq: *mut Cq, out: *mut c_void, n: usize) -> isize {
    with(|s| {
        s.progress();
        let queue = s.queues.entry(cq as usize).or_default();
        match queue.front() {
            None => return -EAGAIN,
            Some(Err(_)) => return -EAVAIL,
            Some(Ok(_)) => {}
        }
        let mut count = 0;
        while count < n && matches!(queue.front(), Some(Ok(_))) {
            let Some(Ok(entry)) = queue.pop_front() else { break };
            // SAFETY: room for `n` entries.
            unsafe { out.cast::<CqEntry>().add(count).write(entry) };
            count += 1;
        }
        count as isize
    })
}

unsafe extern "C" fn readerr(cq: *mut Cq, out: *mut CqError, _: u64) -> isize {
    with(|s| {
        let queue = s.queues.entry(cq as usize).or_default();
        if !matches!(queue.front(), Some(Err(_))) {
            return -EAGAIN;
        }
        if let Some(Err(error)) = queue.pop_front() {
            // SAFETY: room for one.
            unsafe { out.write(error) };
        }
        1
    })
}

#[cfg(test)]
pub(super) mod control {
    //! What tests of this thread ask of the provider.

    use super::super::load::Library;
    use super::{Behaviour, State, error, with};
    use std::ffi::c_int;

    /// The library of this thread, which behaves so from here on.
    pub(in super::super) fn library(behaviour: Behaviour) -> &'static Library {
        let version = behaviour.version;
        with(|s| *s = State { behaviour, random: 1, ..State::default() });
        Box::leak(Box::new(Library {
            path: "fake".into(),
            version,
            getinfo: super::getinfo,
            freeinfo: super::freeinfo,
            dupinfo: super::dupinfo,
            fabric: super::fabric,
            strerror: super::strerror,
        }))
    }

    /// Changes its behaviour.
    pub(in super::super) fn behave(change: impl FnOnce(&mut Behaviour)) {
        with(|s| change(&mut s.behaviour));
    }

    /// Writes that came to be, of each endpoint in the order of their opening.
    pub(in super::super) fn arrivals() -> Vec<u64> {
        with(|s| (0..s.ends.len()).map(|e| s.arrived.get(&e).copied().unwrap_or(0)).collect())
    }

    /// What is registered: first byte, length, and rights, `FI_WRITE` of the own and `FI_REMOTE_WRITE` of others.
    pub(in super::super) fn regions() -> Vec<(usize, usize, u64)> {
        with(|s| s.regions.values().map(|r| (r.base, r.bytes, r.access)).collect())
    }

    /// All that is held back comes to be at the next read.
    pub(in super::super) fn let_all_come() {
        with(|s| s.under_way.iter_mut().for_each(|op| op.due = 0));
    }

    /// Options that were set.
    pub(in super::super) fn was_set(option: c_int) -> bool {
        with(|s| s.set.contains(&option))
    }

    /// Fails a posted receive of an endpoint, as an endpoint does that is short of memory.
    pub(in super::super) fn fail_a_receive(end: usize) {
        with(|s| {
            let Some(context) = s.ends[end].receives.pop_front() else { return };
            let cq = s.ends[end].cq;
            s.queues.entry(cq).or_default().push_back(Err(error(context, 12)));
        });
    }
}
