//! An end of transport `verbs`: peers, their queue pairs, and what completions say of them.

use super::address::{self, Address};
use super::choice::{self, Choice, Port};
use super::gpu::{GpuAccess, GpuAnswers};
use super::lane::{LANE_SHIFT, Lane, Limits, Memory, RECEIVE, mtu_number};
use super::objects::{Completions, Context, Domain, Region};
use super::queue::Item;
use super::{NAME, Options, device, state, unavailable};
use crate::error::TransportError;
use crate::transport::card::{ConnectionCard, Key, Kind};
use crate::transport::{
    Caps, Event, NetMemory, Notify, Ordering, Posted, Transport, Write, check_write, memory,
};
use ibverbs::{ibv_wc, ibv_wc_opcode as Opcode, ibv_wc_status as Status};
use ibverbs_sys as ffi;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most completions of one call, and calls for one peer in one poll.
const BATCH: usize = 64;
const BATCHES: usize = 16;
/// Sleep of a wait.
const NAP: Duration = Duration::from_micros(50);
/// Time after which a queue pair that nothing is sent on is tried.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// Time between looks at silent peers and at the device's own events.
const LOOK: Duration = Duration::from_millis(20);

/// The end of one rank.
pub struct Verbs {
    rank: u32,
    caps: Caps,
    options: Options,
    port: Port,
    choice: Choice,
    limits: Limits,
    gpu: GpuAccess,
    /// In the order in which they close.
    peers: Vec<Peer>,
    region: Option<Region>,
    domain: Arc<Domain>,
    index: HashMap<u32, usize>,
    outstanding: usize,
    /// What happened in a call that has no list of events.
    waiting: Vec<Event>,
    looked: Instant,
    closed: bool,
}

/// A peer, from its card on.
struct Peer {
    rank: u32,
    lanes: Vec<Lane>,
    completions: Arc<Completions>,
    /// Once it is connected.
    card: Option<(ConnectionCard, Memory)>,
    failed: Option<String>,
    heard: Instant,
    /// Since when there are no credits for a write that was asked for.
    without_credits: Option<Instant>,
    /// The queue pair that has the next unordered write.
    turn: usize,
}

impl Verbs {
    /// Opens the end of a rank.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] without libibverbs, and without a device that fits the options;
    /// [`TransportError::Refused`] for a device that would not do.
    pub fn open(rank: u32, options: &Options) -> Result<Verbs, TransportError> {
        options.check()?;
        let mut ports = device::ports()?;
        let near = device::place(options.near.as_deref());
        let choice = choice::choose(&ports, &near, options).map_err(|what| {
            unavailable(what, "name another device or port, or bring the link up")
        })?;
        let port = ports.swap_remove(choice.port);
        if port.max_bytes == 0 {
            let what = format!("port {} of {} sends no bytes", port.number, port.device);
            return Err(TransportError::Refused { transport: NAME.into(), what });
        }
        let domain = Arc::new(Domain::new(Context::open(&port.device)?)?);
        device::do_not_block(&domain.context)?;
        let attributes = domain.context.attributes()?;
        let most = (attributes.max_qp_wr.max(0) as usize).saturating_sub(16);
        let depth = options.depth.min(most / 2);
        let window = options.window.min(most.min(4096) as u16);
        if depth == 0 || window < 2 {
            let what =
                format!("the capacity of queues of {} is {}", port.device, attributes.max_qp_wr);
            return Err(TransportError::Refused { transport: NAME.into(), what });
        }
        let options = Options { window, ..options.clone() };
        let device_dmabuf = domain.registers_dmabufs();
        let answers =
            GpuAnswers { device_dmabuf, memory_dmabuf: Ok(()), peermem: device::has_peermem() };
        let (ordering, queue_pairs) = (options.ordering, options.queue_pairs);
        let caps = Caps {
            name: format!("{NAME} ({} port {})", port.device, port.number),
            ordering,
            lanes: if ordering == Ordering::InOrder { queue_pairs } else { 1 },
            depth,
            // What one work request does not take is several (soft-RoCE takes 8 MiB), in no more than an eighth of a
            // queue.
            max_bytes: (port.max_bytes * (depth as u64 / 4).max(1)).min(1 << 30),
            gpu_memory: !matches!(answers.access(), GpuAccess::Host(_)),
            flush: options.flush,
        };
        tracing::info!(
            rank,
            device = port.device,
            port = port.number,
            gid = choice.gid.index,
            mtu = choice.mtu,
            "verbs"
        );
        Ok(Verbs {
            rank,
            caps,
            limits: Limits::of(&options, depth),
            gpu: answers.access(),
            options,
            port,
            choice,
            peers: Vec::new(),
            region: None,
            domain,
            index: HashMap::new(),
            outstanding: 0,
            waiting: Vec::new(),
            looked: Instant::now(),
            closed: false,
        })
    }

    /// The port that it uses.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The GID and the MTU that it uses.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// How it reaches, or would reach, GPU memory.
    pub fn gpu_access(&self) -> &GpuAccess {
        &self.gpu
    }

    /// Puts a queue pair into the state of errors, as a fault of the card does. For tests.
    #[doc(hidden)]
    pub fn break_queue_pair(&mut self, peer: u32, i: usize) {
        let lane = self.index.get(&peer).and_then(|p| self.peers[*p].lanes.get(i));
        if let Some(lane) = lane {
            lane.end();
        }
    }

    fn region(&self) -> Result<&Region, TransportError> {
        match &self.region {
            Some(region) if !self.closed => Ok(region),
            _ => Err(state(format!("rank {} has no arena, or is closed", self.rank))),
        }
    }

    /// The peer, with queue pairs that are not connected yet.
    fn peer(&mut self, rank: u32) -> Result<usize, TransportError> {
        if let Some(i) = self.index.get(&rank) {
            return Ok(*i);
        }
        let n = self.options.queue_pairs as usize;
        let Limits { sends, receives } = self.limits;
        let completions = Arc::new(Completions::new(&self.domain, n as u32 * (sends + receives))?);
        let lane = |i| Lane::new(&self.domain, &completions, i, self.port.number, &self.limits);
        let lanes = (0..n).map(lane).collect::<Result<Vec<_>, _>>()?;
        let i = self.peers.len();
        self.index.insert(rank, i);
        self.peers.push(Peer {
            rank,
            lanes,
            completions,
            card: None,
            failed: None,
            heard: Instant::now(),
            without_credits: None,
            turn: 0,
        });
        Ok(i)
    }

    /// A completion of a peer.
    fn completed(
        &mut self,
        i: usize,
        wc: &ibv_wc,
        events: &mut Vec<Event>,
    ) -> Result<(), TransportError> {
        let (lane, number) = ((wc.wr_id() >> LANE_SHIFT) as usize, wc.wr_id() & (RECEIVE - 1));
        let is_receive = wc.wr_id() & RECEIVE != 0;
        if self.peers[i].failed.is_some() {
            return Ok(());
        }
        if let Some((status, vendor)) = wc.error() {
            let what = reason(status, vendor, is_receive);
            if !is_receive {
                let before = self.peers[i].lanes[lane].queue.before(number);
                self.delivered(before, events);
            }
            self.fail(i, &what, events);
            return Ok(());
        }
        self.peers[i].heard = Instant::now();
        if is_receive {
            return self.received(i, lane, wc, events);
        }
        let ended = self.peers[i].lanes[lane].queue.ended(number);
        self.delivered(ended, events);
        Ok(())
    }

    fn delivered(&mut self, items: impl Iterator<Item = Item>, events: &mut Vec<Event>) {
        for item in items {
            if let Item::Write(token) = item {
                self.outstanding -= 1;
                events.push(Event::Delivered { token });
            }
        }
    }

    /// A receive was consumed: by an immediate, or by credits.
    fn received(
        &mut self,
        i: usize,
        lane: usize,
        wc: &ibv_wc,
        events: &mut Vec<Event>,
    ) -> Result<(), TransportError> {
        let peer = &mut self.peers[i];
        let rank = peer.rank;
        let number = wc.imm_data().map(u32::from_be);
        let lane = &mut peer.lanes[lane];
        let again = lane.receive();
        let wrong = match (wc.opcode(), number) {
            (Opcode::IBV_WC_RECV_RDMA_WITH_IMM, Some(immediate)) => {
                lane.queue.uncredited += 1;
                events.push(Event::Arrived { peer: Some(rank), immediate });
                None
            }
            (Opcode::IBV_WC_RECV, Some(n)) if lane.queue.credited(n) => {
                peer.without_credits = None;
                None
            }
            (Opcode::IBV_WC_RECV, _) => {
                Some("it gives back more receives than were consumed".into())
            }
            (opcode, _) => Some(format!("it sends what is no immediate (operation {opcode})")),
        };
        match (again, wrong) {
            (_, Some(what)) => self.fail(i, &what, events),
            (Err(error), None) => self.fail(i, &error.to_string(), events),
            (Ok(()), None) => {}
        }
        Ok(())
    }

    /// A peer has failed: its writes end, and its queue pairs.
    fn fail(&mut self, i: usize, what: &str, events: &mut Vec<Event>) {
        let peer = &mut self.peers[i];
        if peer.failed.is_some() {
            return;
        }
        peer.failed = Some(what.into());
        let error = TransportError::Peer { peer: peer.rank, what: what.into() };
        for lane in &mut peer.lanes {
            lane.end();
            for item in lane.queue.rest() {
                if let Item::Write(token) = item {
                    self.outstanding -= 1;
                    events.push(Event::Failed { token, error: error.clone() });
                }
            }
        }
        events.push(Event::Lost { peer: peer.rank, error });
    }

    /// What is to be sent that is no write: credits, flushes, signs of life.
    fn tend(&mut self, i: usize, look: bool, events: &mut Vec<Event>) {
        let (silence, window) = (self.options.silence, u32::from(self.options.window));
        let peer = &mut self.peers[i];
        let Some((_, memory)) = &peer.card else { return };
        if peer.failed.is_some() {
            return;
        }
        if peer.without_credits.is_some_and(|since| since.elapsed() > silence) {
            let what = format!("it has polled no immediate for {:.1} s", silence.as_secs_f64());
            return self.fail(i, &what, events);
        }
        let quiet = look && peer.heard.elapsed() > SIGN_OF_LIFE;
        for lane in &mut peer.lanes {
            let credits = lane.queue.due(window).filter(|_| lane.queue.has_reserve());
            let given = credits.map_or(Ok(()), |n| lane.give_credits(n));
            let flush = lane.queue.wants_flush() || (quiet && lane.queue.is_idle());
            let flushed = match flush && lane.queue.has_reserve() {
                true => lane.flush(memory),
                false => Ok(()),
            };
            if let Err(error) = given.and(flushed) {
                return self.fail(i, &error.to_string(), events);
            }
        }
    }

    /// What the device says unasked.
    fn device_events(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        while let Some((kind, of)) = device::event(&self.domain.context) {
            let text = event_text(kind);
            match kind {
                ffi::IBV_EVENT_DEVICE_FATAL => {
                    let what = format!("device {} has failed", self.port.device);
                    return Err(TransportError::Refused { transport: NAME.into(), what });
                }
                ffi::IBV_EVENT_QP_FATAL
                | ffi::IBV_EVENT_QP_REQ_ERR
                | ffi::IBV_EVENT_QP_ACCESS_ERR
                | ffi::IBV_EVENT_CQ_ERR => {
                    let has = |p: &Peer| {
                        p.lanes.iter().any(|l| l.id() == of) || p.completions.raw() as usize == of
                    };
                    if let Some(i) = self.peers.iter().position(has) {
                        // Completions that came before it say more.
                        self.read(i, events)?;
                        self.fail(i, &format!("its queue pair is in error: {text}"), events);
                    }
                }
                _ => tracing::info!(rank = self.rank, event = text, "verbs"),
            }
        }
        Ok(())
    }

    /// Reads the completions of a peer.
    fn read(&mut self, i: usize, events: &mut Vec<Event>) -> Result<(), TransportError> {
        // SAFETY: plain numbers.
        let mut entries: [ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        for _ in 0..BATCHES {
            let n = self.peers[i].completions.poll(&mut entries)?;
            for wc in &entries[..n] {
                self.completed(i, wc, events)?;
            }
            if n < BATCH {
                break;
            }
        }
        Ok(())
    }

    /// The lane of a write, if one has capacity and credits for it.
    fn free_lane(&mut self, i: usize, write: &Write) -> Option<usize> {
        let requests = Lane::requests(write.bytes, write.notify, self.port.max_bytes);
        let peer = &mut self.peers[i];
        let n = peer.lanes.len();
        if self.options.ordering == Ordering::InOrder {
            let lane = write.lane as usize;
            return peer.lanes[lane].queue.has_capacity(requests).then_some(lane);
        }
        let wants_credit = matches!(write.notify, Notify::Immediate(_));
        let capacity = |l: &usize| peer.lanes[*l].queue.has_capacity(requests);
        let credit = |l: &usize| !wants_credit || peer.lanes[*l].queue.credits > 0;
        let turns = (0..n).map(|k| (peer.turn + k) % n);
        let found = turns.clone().find(|l| capacity(l) && credit(l));
        match found {
            Some(lane) => peer.turn = (lane + 1) % n,
            None if !turns.clone().any(|l| credit(&l)) => {
                peer.without_credits.get_or_insert_with(Instant::now);
            }
            None => {}
        }
        found
    }

    /// Nothing of a peer reaches the arena from here on.
    fn close(&mut self, events: &mut Vec<Event>) {
        self.closed = true;
        for peer in &mut self.peers {
            for lane in &mut peer.lanes {
                // What is posted ends at once, and not when all of it is sent.
                lane.end();
                for item in lane.queue.rest() {
                    if let Item::Write(token) = item {
                        events.push(Event::Failed { token, error: TransportError::Closed });
                    }
                }
            }
        }
        self.outstanding = 0;
        // Queue pairs first: a write that found no region would be an error of the peer's queue pair, and not of its
        // end.
        self.peers.clear();
        self.index.clear();
        self.region = None;
    }
}

impl Transport for Verbs {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&mut self, memory: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        if self.region.is_some() || self.closed {
            return Err(state(format!("rank {} has an arena, or is closed", self.rank)));
        }
        let by_dmabuf = match memory.gpu() {
            None => false,
            Some(gpu) => {
                let device_dmabuf = self.domain.registers_dmabufs();
                let memory_dmabuf = memory.dmabuf().map(drop);
                let peermem = device::has_peermem();
                self.gpu = GpuAnswers { device_dmabuf, memory_dmabuf, peermem }.access();
                tracing::info!(rank = self.rank, gpu = gpu.ordinal, access = ?self.gpu, "verbs");
                if let GpuAccess::Host(why) = &self.gpu {
                    let what = format!(
                        "memory of GPU {}: {why}; use pinned memory of the host",
                        gpu.ordinal
                    );
                    return Err(TransportError::Refused {
                        transport: self.caps.name.clone(),
                        what,
                    });
                }
                self.gpu == GpuAccess::Dmabuf
            }
        };
        self.region = Some(Region::new(&self.domain, memory, by_dmabuf)?);
        Ok(())
    }

    fn card(&mut self, peer: u32) -> Result<Vec<u8>, TransportError> {
        let region = self.region()?;
        let (bytes, base) = (region.memory.bytes(), region.memory.base() as u64);
        let key = Key(region.remote_key().into());
        let i = self.peer(peer)?;
        let lane = |l: &Lane| address::Lane { queue_pair: l.number(), psn: l.psn };
        let address = Address {
            ordering: self.options.ordering,
            mtu: mtu_number(self.choice.mtu) as u8,
            ethernet: self.port.ethernet,
            lid: self.port.lid,
            window: self.options.window,
            gid: self.choice.gid.raw,
            lanes: self.peers[i].lanes.iter().map(lane).collect(),
        };
        let address = address.to_bytes();
        ConnectionCard { kind: Kind::Verbs, rank: self.rank, bytes, base, key, address }.to_bytes()
    }

    fn connect(&mut self, peer: u32, card: &[u8]) -> Result<(), TransportError> {
        let card = ConnectionCard::read(Kind::Verbs, card)?;
        let to = Address::read(&card.address)?;
        let region = self.region()?;
        let wrong = |what: String| Err(TransportError::Card { what });
        let Ok(remote_key) = u32::try_from(card.key.0) else {
            return wrong("a key of more than 32 bits".into());
        };
        let memory = Memory {
            local_base: region.memory.base() as u64,
            local_key: region.local_key(),
            remote_base: card.base,
            remote_key,
        };
        let connected = self.index.get(&peer).is_some_and(|i| self.peers[*i].card.is_some());
        if card.rank != peer || peer == self.rank || connected {
            return wrong(format!(
                "rank {} made it, and rank {} connects to rank {peer}, once",
                card.rank, self.rank
            ));
        }
        let n = self.options.queue_pairs as usize;
        if to.ordering != self.options.ordering
            || to.lanes.len() != n
            || to.ethernet != self.port.ethernet
        {
            return wrong(format!(
                "{} queue pairs, {:?}, {}; rank {} has {n}, {:?}, {}",
                to.lanes.len(),
                to.ordering,
                link(to.ethernet),
                self.rank,
                self.options.ordering,
                link(self.port.ethernet)
            ));
        }
        let i = self.peer(peer)?;
        let (choice, port, options) = (&self.choice, self.port.number, &self.options);
        for (own, lane) in self.peers[i].lanes.iter_mut().zip(&to.lanes) {
            own.connect(choice, port, options, &to, *lane)?;
        }
        self.peers[i].heard = Instant::now();
        self.peers[i].card = Some((card, memory));
        Ok(())
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        let own = self.region()?.memory.bytes();
        let peer = self.index.get(&write.peer).and_then(|i| self.peers[*i].card.as_ref());
        match peer {
            Some((card, _)) => check_write(&self.caps, write, own, card.bytes),
            None => {
                let (from, to) = (self.rank, write.peer);
                Err(state(format!("rank {from} is not connected to rank {to}")))
            }
        }
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        let Some(i) = self.index.get(&write.peer).copied() else { return Ok(Posted::WouldBlock) };
        if let Some(what) = &self.peers[i].failed {
            return Err(TransportError::Peer { peer: write.peer, what: what.clone() });
        }
        if self.outstanding >= self.caps.depth {
            return Ok(Posted::WouldBlock);
        }
        let Some(lane) = self.free_lane(i, write) else { return Ok(Posted::WouldBlock) };
        let peer = &mut self.peers[i];
        let Some((_, memory)) = &peer.card else { return Ok(Posted::WouldBlock) };
        // SAFETY: `check_write` has checked the source, and the region lives as long as the queue pairs.
        let posted = unsafe { peer.lanes[lane].write(memory, write, self.port.max_bytes) };
        if let Err(error) = posted {
            let mut events = std::mem::take(&mut self.waiting);
            self.fail(i, &error.to_string(), &mut events);
            self.waiting = events;
            return Err(TransportError::Peer { peer: write.peer, what: error.to_string() });
        }
        self.outstanding += 1;
        Ok(Posted::Taken)
    }

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        memory::raise(&*self.region()?.memory, words)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        if self.closed {
            return Err(state(format!("rank {} is closed", self.rank)));
        }
        events.append(&mut self.waiting);
        let look = self.looked.elapsed() > LOOK;
        for i in 0..self.peers.len() {
            self.read(i, events)?;
            self.tend(i, look, events);
        }
        if look {
            self.looked = Instant::now();
            self.device_events(events)?;
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(NAP));
    }

    fn shutdown(&mut self, limit: Duration, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let begin = Instant::now();
        while self.outstanding > 0 && begin.elapsed() < limit && !self.closed {
            self.poll(events)?;
            self.wait(NAP);
        }
        events.append(&mut self.waiting);
        self.close(events);
        Ok(())
    }
}

fn link(ethernet: bool) -> &'static str {
    if ethernet { "Ethernet" } else { "InfiniBand" }
}

/// What a failed completion means, for a person.
fn reason(status: Status::Type, vendor: u32, is_receive: bool) -> String {
    let text = match status {
        Status::IBV_WC_REM_ACCESS_ERR => {
            "it refuses the write: a wrong key, or bytes outside its arena (remote access error)"
        }
        Status::IBV_WC_RETRY_EXC_ERR => {
            "it does not answer: its process, its card or the link is gone (retries exhausted)"
        }
        Status::IBV_WC_RNR_RETRY_EXC_ERR => {
            "it has no receives for immediates (receiver not ready, retries exhausted)"
        }
        Status::IBV_WC_WR_FLUSH_ERR if is_receive => {
            "its writes were refused here, or the queue pair was broken (receives flushed)"
        }
        Status::IBV_WC_WR_FLUSH_ERR => "its queue pair is in error (flushed)",
        other => {
            return format!("{} (status {other}, vendor's error {vendor:#x})", status_text(other));
        }
    };
    text.into()
}

fn status_text(status: Status::Type) -> String {
    // SAFETY: takes any number, and gives a constant string.
    let text = unsafe { ffi::ibv_wc_status_str(status) };
    constant(text)
}

fn event_text(kind: ffi::ibv_event_type) -> String {
    // SAFETY: as above.
    constant(unsafe { ffi::ibv_event_type_str(kind) })
}

fn constant(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: a constant string of the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
