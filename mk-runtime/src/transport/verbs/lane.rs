//! A queue pair: its state transitions and work requests.

use super::address;
use super::choice::Choice;
use super::objects::{Completions, Domain, check, failed};
use super::queue::{Item, QueueState, RESERVED};
use super::{NAME, Options, state};
use crate::error::TransportError;
use crate::transport::{Notify, Ordering, random_key};
use ffi::{ibv_qp_attr_mask as Mask, ibv_send_flags as Flags, ibv_wr_opcode as Op};
use ibverbs_sys as ffi;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Receives beyond the window: for two messages of credits, and one that ends with an error.
pub(super) const MORE_RECEIVES: u32 = 4;
/// Inline bytes of a work request: one signal word.
const INLINE: u32 = 4;
/// RNR NAK timer code: the sender retries after 0.64 ms if the peer has no receive posted.
const RNR_TIMER: u8 = 12;
/// The bit of `wr_id` that marks a receive.
pub(super) const RECEIVE: u64 = 1 << 47;
/// The shift of the lane's index in `wr_id`.
pub(super) const LANE_SHIFT: u32 = 48;

/// Queue depths of a queue pair.
pub(super) struct Limits {
    /// Work requests of its send queue.
    pub sends: u32,
    /// Receives that are kept posted, except while one is handled.
    pub receives: u32,
}

impl Limits {
    /// From options; a write takes two work requests.
    pub fn of(options: &Options, depth: usize) -> Limits {
        let receives = match options.ordering {
            // No message consumes it: it reports that the queue pair failed.
            Ordering::InOrder => 1,
            Ordering::Unordered => u32::from(options.window) + MORE_RECEIVES,
        };
        Limits { sends: 2 * depth as u32 + RESERVED, receives }
    }
}

pub(super) struct Lane {
    raw: NonNull<ffi::ibv_qp>,
    index: u64,
    pub queue: QueueState,
    pub psn: u32,
    _completions: Arc<Completions>,
    _domain: Arc<Domain>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Lane {}

/// The memory of both sides, as work requests name it.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub local_base: u64,
    pub local_key: u32,
    pub remote_base: u64,
    pub remote_key: u32,
}

impl Lane {
    /// Creates a queue pair in state INIT, with its receives posted.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        index: usize,
        port: u8,
        limits: &Limits,
    ) -> Result<Lane, TransportError> {
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            cap: ffi::ibv_qp_cap {
                max_send_wr: limits.sends,
                max_recv_wr: limits.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE,
            },
            ..Default::default()
        };
        // SAFETY: open; the library writes back into `cap`.
        let raw = unsafe { ffi::ibv_create_qp(domain.raw(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| failed("ibv_create_qp", None))?;
        let psn = random_key()? as u32 & address::MASK;
        let lane = Lane {
            raw,
            index: index as u64,
            queue: QueueState::new(limits.sends),
            psn,
            _completions: completions.clone(),
            _domain: domain.clone(),
        };
        if init.cap.max_inline_data < INLINE {
            let what = "the device takes no data inside work requests".into();
            return Err(TransportError::Refused { transport: NAME.into(), what });
        }
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        lane.modify("ibv_modify_qp to INIT", &mut attr, mask)?;
        for _ in 0..limits.receives {
            lane.receive()?;
        }
        Ok(lane)
    }

    /// Connects to a peer's queue pair.
    pub fn connect(
        &mut self,
        own: &Choice,
        port: u8,
        options: &Options,
        to: &address::Address,
        peer: address::Lane,
    ) -> Result<(), TransportError> {
        // GIDs on InfiniBand are used between subnets only.
        let global = to.ethernet || own.gid.raw[..8] != to.gid[..8];
        let mut gid = ffi::ibv_gid::default();
        gid.raw = to.gid;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: u32::from(to.mtu).min(mtu_number(own.mtu)),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.psn,
            min_rnr_timer: RNR_TIMER,
            ah_attr: ffi::ibv_ah_attr {
                grh: ffi::ibv_global_route {
                    dgid: gid,
                    sgid_index: own.gid.index as u8,
                    hop_limit: 64,
                    traffic_class: options.traffic_class,
                    ..Default::default()
                },
                dlid: to.lid,
                sl: options.service_level,
                is_global: global.into(),
                port_num: port,
                ..Default::default()
            },
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", &mut attr, mask)?;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            timeout: options.ack_timeout,
            retry_cnt: options.retries,
            rnr_retry: options.rnr_retries,
            sq_psn: self.psn,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", &mut attr, mask)?;
        self.queue.open(to.window.into());
        Ok(())
    }

    /// Moves it to state ERR: posted work requests fail, and packets of the peer are refused.
    pub fn end(&self) {
        let mut attr =
            ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify("ibv_modify_qp to ERR", &mut attr, Mask::IBV_QP_STATE) {
            tracing::warn!(%error, "a queue pair did not end");
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: open.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Its identity in asynchronous events.
    pub fn id(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    fn modify(
        &self,
        call: &'static str,
        attr: &mut ffi::ibv_qp_attr,
        mask: Mask,
    ) -> Result<(), TransportError> {
        // SAFETY: open, and valid attributes.
        check(call, unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), attr, mask.0 as i32) })
    }

    /// Posts a receive without memory.
    pub fn receive(&self) -> Result<(), TransportError> {
        let mut request = ffi::ibv_recv_wr {
            wr_id: self.index << LANE_SHIFT | RECEIVE,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        // SAFETY: open; the table of its context has this function, which copies the request.
        let code = unsafe {
            let Some(post) = (*self.raw.as_ref().context).ops.post_recv else {
                return Err(state("the device takes no receives".into()));
            };
            post(self.raw.as_ptr(), &mut request, &mut bad)
        };
        check("ibv_post_recv", code)
    }

    /// Number of work requests for a write, with at most `most` bytes in each.
    pub fn requests(bytes: u64, notify: Notify, most: u64) -> u32 {
        let parts = bytes.div_ceil(most) as u32;
        match notify {
            Notify::Word { .. } => parts + 1,
            Notify::Nothing | Notify::Immediate(_) => parts.max(1),
        }
    }

    /// Posts a write for which the queue has capacity: the data, in several work requests if it is long, then the
    /// signal word.
    ///
    /// # Safety
    /// The bytes are in the registered region, and stay until the write has ended.
    pub unsafe fn write(
        &mut self,
        memory: &Memory,
        write: &crate::transport::Write,
        most: u64,
    ) -> Result<(), TransportError> {
        let n = Lane::requests(write.bytes, write.notify, most);
        let place = self.queue.enter(Item::Write(write.token), n);
        let id = self.index << LANE_SHIFT | place.number;
        let signal = if place.signalled { Flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let data = |done: u64, bytes: u64| ffi::ibv_sge {
            addr: memory.local_base + write.from + done,
            length: bytes as u32,
            lkey: memory.local_key,
        };
        let remote = |at: u64| (memory.remote_base + at, memory.remote_key);
        // All but the last part. A failure from here on ends the connection, and with it the posted requests.
        let mut done = 0;
        while write.bytes - done > most {
            let (mut part, to) = (data(done, most), remote(write.to + done));
            self.post(&mut request(id, &mut part, to, Op::IBV_WR_RDMA_WRITE, 0))?;
            done += most;
        }
        let mut last = data(done, write.bytes - done);
        let to = remote(write.to + done);
        match write.notify {
            Notify::Nothing => {
                self.post(&mut request(id, &mut last, to, Op::IBV_WR_RDMA_WRITE, signal))
            }
            Notify::Immediate(immediate) => {
                let opcode = Op::IBV_WR_RDMA_WRITE_WITH_IMM;
                let mut only = request(id, &mut last, to, opcode, signal);
                only.__bindgen_anon_1.imm_data = immediate.to_be();
                self.queue.credits -= 1;
                self.post(&mut only)
            }
            Notify::Word { at, value } => {
                let mut word =
                    ffi::ibv_sge { addr: (&raw const value) as u64, length: INLINE, lkey: 0 };
                let flags = Flags::IBV_SEND_INLINE.0 | signal;
                let opcode = Op::IBV_WR_RDMA_WRITE;
                let mut behind = request(id, &mut word, remote(at), opcode, flags);
                if write.bytes == 0 {
                    return self.post(&mut behind);
                }
                let mut first = request(id, &mut last, to, opcode, 0);
                first.next = &mut behind;
                self.post(&mut first)
            }
        }
    }

    /// Posts a signalled write of zero bytes.
    pub fn flush(&mut self, memory: &Memory) -> Result<(), TransportError> {
        let place = self.queue.enter(Item::Flush, 1);
        let id = self.index << LANE_SHIFT | place.number;
        let mut nothing = ffi::ibv_sge::default();
        let to = (memory.remote_base, memory.remote_key);
        let flags = Flags::IBV_SEND_SIGNALED.0;
        self.post(&mut request(id, &mut nothing, to, Op::IBV_WR_RDMA_WRITE, flags))
    }

    /// Returns `n` credits to the peer.
    pub fn give_credits(&mut self, n: u32) -> Result<(), TransportError> {
        let place = self.queue.enter(Item::Credits, 1);
        self.queue.uncredited -= n;
        let id = self.index << LANE_SHIFT | place.number;
        let mut nothing = ffi::ibv_sge::default();
        let mut message = request(id, &mut nothing, (0, 0), Op::IBV_WR_SEND_WITH_IMM, 0);
        message.__bindgen_anon_1.imm_data = n.to_be();
        self.post(&mut message)
    }

    fn post(&mut self, first: &mut ffi::ibv_send_wr) -> Result<(), TransportError> {
        let mut bad = null_mut();
        // SAFETY: open; the table of its context has this function, which copies requests and what is inside them.
        let code = unsafe {
            let Some(post) = (*self.raw.as_ref().context).ops.post_send else {
                return Err(state("the device sends nothing".into()));
            };
            post(self.raw.as_ptr(), first, &mut bad)
        };
        check("ibv_post_send", code).inspect_err(|_| self.queue.withdraw())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: open until now.
        let code = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(error) = check("ibv_destroy_qp", code) {
            tracing::warn!(%error, "a queue pair did not close");
        }
    }
}

/// A work request; without an SGE if `memory` is empty.
fn request(
    wr_id: u64,
    memory: &mut ffi::ibv_sge,
    (remote_addr, rkey): (u64, u32),
    opcode: Op::Type,
    send_flags: u32,
) -> ffi::ibv_send_wr {
    let rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    let empty = memory.length == 0;
    ffi::ibv_send_wr {
        wr_id,
        sg_list: if empty { null_mut() } else { memory },
        num_sge: (!empty).into(),
        opcode,
        send_flags,
        wr: ffi::ibv_send_wr__bindgen_ty_2 { rdma },
        ..Default::default()
    }
}

/// The enum value of an MTU: 1 is 256 bytes, 5 is 4096.
pub(super) fn mtu_number(bytes: u32) -> u32 {
    (bytes.max(256).ilog2() - 7).min(5)
}
