//! What the provider is doing: endpoints, regions, writes that are under way, and completions.

use super::super::sys::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// In which order writes come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    InOrder,
    Reversed,
    /// By this seed.
    Shuffled(u64),
}

/// What the provider says and does.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub provider: &'static str,
    pub devices: usize,
    pub getinfo: c_int,
    pub version: u32,
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub cq_data_bytes: usize,
    pub max_bytes: usize,
    pub queue: usize,
    /// `FI_OPT_EFA_EMULATED_WRITE`, or that there is no such option.
    pub emulated_write: Option<bool>,
    /// Codes of `fi_setopt`.
    pub cuda_api: c_int,
    pub p2p: c_int,
    pub has_options: bool,
    /// How often a write is refused by `FI_EAGAIN` before it is taken.
    pub refusals: u32,
    pub arrival: Arrival,
    /// Reads of completion queues that pass before a write comes to be.
    pub late: u64,
    /// Every nth write fails, the first included.
    pub fails: Option<u64>,
    /// Only writes to this endpoint fail; `None`: to any.
    pub fails_at: Option<u64>,
}

impl Default for Behaviour {
    /// As `efa` is on a machine that has all that is asked for.
    fn default() -> Behaviour {
        Behaviour {
            provider: "efa",
            devices: 4,
            getinfo: 0,
            version: version(1, 20),
            caps: FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE | FI_HMEM,
            mode: FI_RX_CQ_DATA,
            op_flags: FI_DELIVERY_COMPLETE,
            cq_data_bytes: 4,
            max_bytes: 1 << 20,
            queue: 16,
            emulated_write: Some(false),
            cuda_api: 0,
            p2p: 0,
            has_options: true,
            refusals: 0,
            arrival: Arrival::InOrder,
            late: 0,
            fails: None,
            fails_at: None,
        }
    }
}

/// What goes between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A write to an endpoint of the receiver.
    Write(Op),
    /// A write of the receiver has come to be, or has not.
    Ended { from: u64, context: usize, fine: bool },
}

/// What became of a message; in unit tests there are no others.
#[cfg_attr(test, allow(dead_code))]
pub(crate) enum Sent {
    Taken,
    /// The receiver has as many as it takes.
    Later,
    /// There is no such process.
    Gone,
}

/// The way to endpoints of other processes.
pub(crate) trait Others: Send {
    /// Never blocks.
    fn send(&mut self, process: u32, message: &Message) -> Sent;
    /// The next message, if one is there.
    fn receive(&mut self) -> Option<Message>;
}

#[derive(Default)]
pub(crate) struct State {
    pub behaviour: Behaviour,
    /// This process in addresses of endpoints, and the way to others.
    pub process: u32,
    pub others: Option<Box<dyn Others>>,
    pub ends: Vec<End>,
    pub regions: HashMap<usize, Region>,
    pub queues: HashMap<usize, VecDeque<Result<CqEntry, CqError>>>,
    pub under_way: Vec<Op>,
    /// Answers that another process did not take yet.
    pub answers: VecDeque<(u32, Message)>,
    pub written: u64,
    pub refused: u32,
    pub reads: u64,
    pub random: u64,
    /// Writes that came to be, by endpoint of the writer.
    pub arrived: HashMap<usize, u64>,
    pub set: HashSet<c_int>,
}

// SAFETY: its pointers are the callers' contexts, which it gives back and does not follow.
unsafe impl Send for State {}

/// An endpoint.
#[derive(Default)]
pub(crate) struct End {
    pub cq: usize,
    pub receives: VecDeque<usize>,
    pub open: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub base: usize,
    pub bytes: usize,
    pub access: u64,
    pub key: u64,
}

/// A write. Endpoints are numbered inside a process: an address has the process above 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub number: u64,
    pub from: u64,
    pub to: u64,
    /// Of an endpoint of this process; empty then are the bytes that another process has sent.
    pub source: usize,
    pub sent: Vec<u8>,
    pub bytes: usize,
    pub at: u64,
    pub key: u64,
    pub data: Option<u64>,
    pub context: usize,
    pub due: u64,
}

pub(crate) fn error(context: usize, err: c_int) -> CqError {
    // SAFETY: plain numbers and pointers.
    let mut error: CqError = unsafe { std::mem::zeroed() };
    (error.context, error.err) = (context as *mut c_void, err);
    error
}

fn entry(context: usize, flags: u64, data: u64) -> CqEntry {
    CqEntry { context: context as *mut c_void, flags, len: 0, buf: null_mut(), data }
}

impl State {
    /// The address of an endpoint of this process.
    pub fn address(&self, end: usize) -> u64 {
        u64::from(self.process) << 32 | end as u64
    }

    /// The endpoint at an address, if it is of this process.
    fn own(&self, address: u64) -> Option<usize> {
        (address >> 32 == u64::from(self.process)).then_some(address as u32 as usize)
    }

    fn completes(&mut self, end: usize, what: Result<CqEntry, CqError>) {
        let cq = self.ends[end].cq;
        self.queues.entry(cq).or_default().push_back(what);
    }

    /// Lets writes that are due come to be, in the order of the behaviour.
    pub fn progress(&mut self) {
        self.reads += 1;
        self.hear();
        let reads = self.reads;
        let (mut due, rest): (Vec<Op>, Vec<Op>) =
            std::mem::take(&mut self.under_way).into_iter().partition(|op| op.due < reads);
        self.under_way = rest;
        match self.behaviour.arrival {
            Arrival::InOrder => {}
            Arrival::Reversed => due.reverse(),
            Arrival::Shuffled(seed) => {
                for i in (1..due.len()).rev() {
                    self.random =
                        self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                    due.swap(i, (self.random >> 33) as usize % (i + 1));
                }
            }
        }
        let mut full = false;
        for op in due {
            match self.own(op.to) {
                Some(_) => self.arrive(op),
                // Behind those that wait.
                None if full => self.under_way.push(op),
                None => full = !self.leave(op),
            }
        }
    }

    /// What other processes say.
    fn hear(&mut self) {
        let Some(mut others) = self.others.take() else { return };
        while let Some((process, answer)) = self.answers.front() {
            match others.send(*process, answer) {
                Sent::Later => break,
                Sent::Taken | Sent::Gone => drop(self.answers.pop_front()),
            }
        }
        while let Some(message) = others.receive() {
            match message {
                Message::Write(op) => {
                    let due = self.reads + self.behaviour.late;
                    self.under_way.push(Op { due, ..op });
                }
                Message::Ended { from, context, fine } => self.ended(from, context, fine),
            }
        }
        self.others = Some(others);
    }

    /// Sends a write to another process; false if it must be sent again.
    fn leave(&mut self, op: Op) -> bool {
        let process = (op.to >> 32) as u32;
        // SAFETY: bytes of the sender's arena, which stay until the write has ended.
        let bytes = unsafe { std::slice::from_raw_parts(op.source as *const u8, op.bytes) };
        let message = Message::Write(Op { sent: bytes.to_vec(), ..op.clone() });
        match self.others.as_mut().map_or(Sent::Gone, |o| o.send(process, &message)) {
            Sent::Taken => true,
            Sent::Gone => {
                self.ended(op.from, op.context, false);
                true
            }
            Sent::Later => {
                self.under_way.push(op);
                false
            }
        }
    }

    /// Tells the writer.
    fn ended(&mut self, from: u64, context: usize, fine: bool) {
        let Some(end) = self.own(from) else {
            let answer = Message::Ended { from, context, fine };
            return self.answers.push_back(((from >> 32) as u32, answer));
        };
        if fine {
            *self.arrived.entry(end).or_default() += 1;
        }
        let what = if fine { Ok(entry(context, FI_WRITE, 0)) } else { Err(error(context, 5)) };
        self.completes(end, what);
    }

    fn arrive(&mut self, op: Op) {
        let to = op.to as u32 as usize;
        let b = &self.behaviour;
        let injected = b.fails.is_some_and(|n| op.number.is_multiple_of(n))
            && b.fails_at.is_none_or(|at| at == op.to);
        let inside = |r: &&Region| {
            let end = op.at.checked_add(op.bytes as u64);
            r.key == op.key
                && op.at as usize >= r.base
                && end.is_some_and(|e| e as usize <= r.base + r.bytes)
        };
        let region = self.regions.values().any(|r| inside(&r));
        let target = self.ends.get(to).is_some_and(|e| e.open);
        if injected || !region || !target {
            return self.ended(op.from, op.context, false);
        }
        let wants_receive = op.data.is_some() && self.behaviour.mode & FI_RX_CQ_DATA != 0;
        let receive = match wants_receive {
            false => 0,
            true => match self.ends[to].receives.pop_front() {
                Some(context) => context,
                // Nobody has posted one: it waits.
                None => return self.under_way.push(op),
            },
        };
        let source = match op.sent.is_empty() {
            true => op.source as *const u8,
            false => op.sent.as_ptr(),
        };
        // SAFETY: the sender's arena, or a copy of its bytes, and the receiver's region, which is registered.
        unsafe { std::ptr::copy(source, op.at as usize as *mut u8, op.bytes) };
        if let Some(data) = op.data {
            let flags = FI_REMOTE_CQ_DATA | FI_REMOTE_WRITE;
            self.completes(to, Ok(entry(receive, flags, data)));
        }
        self.ended(op.from, op.context, true);
    }
}
