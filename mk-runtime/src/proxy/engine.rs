//! What a proxy does, step by step: commands to writes, deliveries and arrivals to words, failures to a fault.

use super::arena::Lease;
use super::fifo::{Fifo, Reader};
use super::words::{Immediate, Report, Word};
use super::{Counts, NetFault};
use crate::error::TransportError;
use crate::transport::{Event, Flush, NetMemory, Notify, Ordering, Posted, Transport, Write};
use mk_abi::NetLayout;
use mk_abi::device::{NO_WORD, NetCommand, NetCommandKind};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Commands of an instance that are taken in one step, so that another's are not held up.
const BATCH: usize = 16;

/// The kernels of an instance, as a proxy sees them.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// Whether the kernel of a rank has given up.
    fn gave_up(&self, rank: u32) -> bool;

    /// Tells the kernels of this process, and others that it knows of, to give up, for the sake of a rank, perhaps
    /// because of its network.
    fn give_up(&self, by: u32, why: Option<&NetFault>);
}

/// An instance that sends.
#[derive(Debug)]
pub struct Attached {
    /// Its range of the arena.
    pub lease: Lease,
    /// What lies in it.
    pub layout: NetLayout,
    /// What its kernel writes.
    pub fifo: Fifo,
    /// Its kernels, where they can be told to give up.
    pub watch: Option<Arc<dyn Watch>>,
}

struct Instance {
    lease: Lease,
    layout: NetLayout,
    fifo: Reader,
    words: Vec<Word>,
    /// Bytes of the command at the head that were posted, in parts.
    posted: u64,
    /// Writes that have not ended.
    under_way: usize,
    watch: Option<Arc<dyn Watch>>,
    /// Whether its kernels have given up, or were told to.
    over: bool,
}

/// What follows when a write has ended.
#[derive(Clone, Copy)]
struct UnderWay {
    instance: u32,
    /// The word of this rank, and its epoch.
    word: Option<(u32, u32)>,
    edge: u32,
}

/// A rank's end of the network, with the instances that use it.
pub struct Engine {
    rank: u32,
    world: u32,
    transport: Box<dyn Transport>,
    memory: Arc<dyn NetMemory>,
    instances: Vec<Instance>,
    under_way: HashMap<u64, UnderWay>,
    token: u64,
    events: Vec<Event>,
    /// Words that events have reported, and their values.
    raised: Vec<(u64, u32)>,
    fault: Option<NetFault>,
    /// Whether what the last poll reported is visible.
    flushed: bool,
    counts: Counts,
}

impl Engine {
    /// Over a transport that has `memory` as its arena, and is connected to all ranks of other nodes.
    pub fn new(
        rank: u32,
        world: u32,
        transport: Box<dyn Transport>,
        memory: Arc<dyn NetMemory>,
    ) -> Engine {
        Engine {
            rank,
            world,
            transport,
            memory,
            instances: Vec::new(),
            under_way: HashMap::new(),
            token: 0,
            events: Vec::new(),
            raised: Vec::new(),
            fault: None,
            flushed: false,
            counts: Counts::default(),
        }
    }

    /// Begins to send for an instance.
    ///
    /// # Errors
    /// [`TransportError::Refused`] where the network cannot carry it as its plan says.
    pub fn attach(&mut self, new: Attached) -> Result<(), TransportError> {
        let Attached { lease, layout, fifo, watch } = new;
        let caps = self.transport.caps();
        let refuse =
            |what: String| Err(TransportError::Refused { transport: caps.name.clone(), what });
        let in_order = caps.ordering == Ordering::InOrder;
        if layout.in_order && !in_order {
            return refuse(
                "the plan counts on writes in order, and this network has none: plan with `net=unordered`".into(),
            );
        }
        if !layout.in_order && in_order {
            return refuse("the plan is for an unordered network: plan with `net=in_order`".into());
        }
        if !in_order && layout.message_bytes > caps.max_bytes {
            return refuse(format!(
                "a message of {} bytes is longer than it takes at once, {}: plan with a smaller `chunk_bytes`",
                layout.message_bytes, caps.max_bytes
            ));
        }
        let end = lease.base.checked_add(layout.bytes);
        let fits = end.is_some_and(|end| end <= self.memory.bytes())
            && layout.bytes <= lease.bytes
            && 4 * u64::from(layout.words) <= layout.hashes
            && layout.hash(self.world, 1, self.world) <= layout.buffers
            && layout.buffers <= layout.bytes;
        if !fits {
            let what = format!("a layout of {} bytes does not fit its range", layout.bytes);
            return Err(TransportError::Memory { what });
        }
        let words = vec![Word::default(); layout.words as usize];
        let fifo = fifo.reader();
        let (posted, under_way, over) = (0, 0, false);
        self.instances.push(Instance {
            lease,
            layout,
            fifo,
            words,
            posted,
            under_way,
            watch,
            over,
        });
        Ok(())
    }

    /// Whether nothing of an instance is under way or waiting any more. It is forgotten then, and late arrivals are
    /// dropped.
    pub fn detach(&mut self, instance: u32) -> bool {
        let Some(i) = self.instances.iter().position(|x| x.lease.instance == instance) else {
            return true;
        };
        let idle = self.instances[i].under_way == 0
            && (self.fault.is_some() || self.instances[i].fifo.peek().is_none());
        if idle {
            self.instances.remove(i);
        }
        idle
    }

    /// What went wrong first, if something did. Nothing is sent from then on.
    pub fn fault(&self) -> Option<&NetFault> {
        self.fault.as_ref()
    }

    /// Figures.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes commands, posts, and sets flags. Whether anything was done.
    pub fn step(&mut self) -> bool {
        let mut worked = false;
        if self.fault.is_none() {
            for i in 0..self.instances.len() {
                worked |= self.commands(i);
            }
        }
        let mut events = std::mem::take(&mut self.events);
        self.flushed = false;
        if let Err(error) = self.transport.poll(&mut events) {
            self.fail(None, error);
        }
        worked |= !events.is_empty();
        for event in events.drain(..) {
            self.event(event);
        }
        self.events = events;
        self.raise();
        worked
    }

    /// Looks whether kernels have given up, and tells those of other nodes that this process has; after a fault it
    /// tells all.
    pub fn watch(&mut self) {
        for x in self.instances.iter_mut().filter(|x| !x.over) {
            let Some(watch) = &x.watch else { continue };
            match &self.fault {
                Some(fault) => watch.give_up(fault.of(), Some(fault)),
                None if watch.gave_up(self.rank) => watch.give_up(self.rank, None),
                None => continue,
            }
            x.over = true;
        }
    }

    /// Sleeps until the network may have something; commands do not wake it.
    pub fn nap(&mut self, limit: Duration) {
        self.transport.wait(limit);
    }

    /// Waits until writes have ended, for at most `limit`, and closes this end: no peer's write reaches the arena any
    /// more.
    ///
    /// # Errors
    /// When the network does not let go of the memory.
    pub fn shutdown(&mut self, limit: Duration) -> Result<(), TransportError> {
        let mut events = Vec::new();
        let ended = self.transport.shutdown(limit, &mut events);
        self.flushed = false;
        events.into_iter().for_each(|e| self.event(e));
        self.raise();
        ended
    }

    /// Sets the words that events have reported, all at once.
    fn raise(&mut self) {
        if self.raised.is_empty() {
            return;
        }
        if let Err(error) = self.transport.raise(&self.raised) {
            self.fail(None, error);
        }
        self.raised.clear();
    }

    fn fail(&mut self, edge: Option<u32>, error: TransportError) {
        self.fault.get_or_insert(NetFault { rank: self.rank, edge, error });
    }

    fn commands(&mut self, i: usize) -> bool {
        let mut taken = false;
        for _ in 0..BATCH {
            let Some(command) = self.instances[i].fifo.peek() else { break };
            match self.command(i, &command) {
                Ok(Posted::Taken) => {
                    let x = &mut self.instances[i];
                    x.posted = 0;
                    x.fifo.release();
                    self.counts.commands += 1;
                    taken = true;
                }
                // The command stays at the head of its fifo, and those behind it wait: they may be of its lane.
                Ok(Posted::WouldBlock) => break,
                Err(error) => {
                    self.fail(Some(command.edge), error);
                    break;
                }
            }
        }
        taken
    }

    /// Posts what is left of a command.
    fn command(&mut self, i: usize, c: &NetCommand) -> Result<Posted, TransportError> {
        let x = &self.instances[i];
        let kind = self.checked(x, c)?;
        // A command without bytes has no place: whatever it says of one is not looked at.
        let place = |at: u64| if c.bytes == 0 { x.lease.base } else { x.lease.base + at };
        let mut write = Write {
            token: 0,
            peer: c.peer,
            lane: c.lane,
            from: place(c.from),
            to: place(c.to),
            bytes: u64::from(c.bytes),
            notify: Notify::Nothing,
        };
        if kind == NetCommandKind::Enter {
            let hash = x.lease.base + x.layout.hash(self.world, c.epoch, self.rank);
            self.transport.raise(&[(hash, c.launch_hash)])?;
            (write.from, write.to, write.bytes) = (hash, hash, 4);
        }
        let x = &self.instances[i];
        let word = (c.remote_word != NO_WORD).then_some(c.remote_word);
        let notify = match word {
            None => Notify::Nothing,
            Some(word) if x.layout.in_order => {
                Notify::Word { at: x.lease.base + 4 * u64::from(word), value: c.epoch }
            }
            Some(word) => match Immediate::new(x.lease.instance, c.epoch, word) {
                Some(immediate) => Notify::Immediate(immediate.to_bits()),
                None => return Err(bad(c, format!("word {word} does not fit an immediate"))),
            },
        };
        // What is too long for one write goes in parts, the word behind the last: on one lane, in order.
        let (most, total) = (self.transport.caps().max_bytes.max(1), write.bytes);
        loop {
            let done = self.instances[i].posted;
            let part = (total - done).min(most);
            let last = done + part == total;
            let part = Write {
                token: self.token,
                from: write.from + done,
                to: write.to + done,
                bytes: part,
                notify: if last { notify } else { Notify::Nothing },
                ..write
            };
            if self.transport.post(&part)? == Posted::WouldBlock {
                return Ok(Posted::WouldBlock);
            }
            let local = (last && c.local_word != NO_WORD).then_some((c.local_word, c.epoch));
            let instance = self.instances[i].lease.instance;
            self.under_way.insert(self.token, UnderWay { instance, word: local, edge: c.edge });
            self.token += 1;
            self.counts.bytes += part.bytes;
            self.instances[i].under_way += 1;
            self.instances[i].posted += part.bytes;
            if last {
                return Ok(Posted::Taken);
            }
        }
    }

    /// A kernel that is broken must not write where it likes.
    fn checked(&self, x: &Instance, c: &NetCommand) -> Result<NetCommandKind, TransportError> {
        let Some(kind) = NetCommandKind::from_u32(c.kind) else {
            return Err(bad(c, format!("a command of kind {}", c.kind)));
        };
        if c.instance != x.lease.instance {
            return Err(bad(
                c,
                format!("of instance {} in the fifo of {}", c.instance, x.lease.instance),
            ));
        }
        let local = x.layout.local.max(1);
        if c.peer >= self.world || c.peer / local == self.rank / local {
            return Err(bad(c, format!("to rank {}, which is no rank of another node", c.peer)));
        }
        let inside = |at: u64| {
            let end = at.checked_add(c.bytes.into());
            c.bytes == 0 || at >= x.layout.buffers && end.is_some_and(|end| end <= x.layout.bytes)
        };
        if !inside(c.from) || !inside(c.to) || u64::from(c.bytes) > x.layout.message_bytes {
            let what = format!(
                "{} bytes from {} to {}, which are not inside the buffers of its range",
                c.bytes, c.from, c.to
            );
            return Err(bad(c, what));
        }
        let known = |word: u32| word == NO_WORD || word < x.layout.words;
        if !known(c.remote_word) || !known(c.local_word) {
            let words = (c.remote_word, c.local_word);
            return Err(bad(c, format!("sets words {words:?} of {}", x.layout.words)));
        }
        Ok(kind)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Delivered { token } => {
                let Some(ended) = self.ended(token) else { return };
                if let Some((word, epoch)) = ended.word {
                    self.report(Some(ended.instance), None, word, epoch);
                }
            }
            Event::Failed { token, error } => {
                let edge = self.ended(token).map(|w| w.edge);
                // An end that closes fails its own writes.
                if error != TransportError::Closed || self.fault.is_none() {
                    self.fail(edge, error);
                }
            }
            // Ends of a world close sequentially; only senders need to know.
            Event::Lost { error, .. } if !self.instances.is_empty() => self.fail(None, error),
            Event::Lost { .. } => {}
            Event::Arrived { immediate, .. } => {
                // A word that went ahead of its data would be worse than none.
                if !self.flush() {
                    return;
                }
                let i = Immediate::from_bits(immediate);
                self.report(None, Some(i), i.word, i.epoch);
            }
        }
    }

    /// Before the first word of a poll, which has reported all data that its words are behind.
    fn flush(&mut self) -> bool {
        if self.transport.caps().flush != Flush::Driver || self.flushed {
            return true;
        }
        self.counts.flushes += 1;
        match self.memory.flush() {
            Ok(()) => self.flushed = true,
            Err(what) => self.fail(None, TransportError::Memory { what }),
        }
        self.flushed
    }

    fn ended(&mut self, token: u64) -> Option<UnderWay> {
        let ended = self.under_way.remove(&token)?;
        let mut of = self.instances.iter_mut();
        if let Some(x) = of.find(|x| x.lease.instance == ended.instance) {
            x.under_way -= 1;
        }
        Some(ended)
    }

    /// A word's epoch is reported, by its own rank's card or a peer's immediate.
    fn report(&mut self, own: Option<u32>, from: Option<Immediate>, word: u32, epoch: u32) {
        let is = |x: &&mut Instance| match (own, from) {
            (Some(instance), _) => x.lease.instance == instance,
            (None, Some(immediate)) => immediate.is_of(x.lease.instance) && !x.layout.in_order,
            (None, None) => false,
        };
        let found = self.instances.iter_mut().find(is);
        let base = found.as_ref().map_or(0, |x| x.lease.base);
        let reported = found.and_then(|x| x.words.get_mut(word as usize)).map(|w| w.report(epoch));
        match reported {
            Some(Report::Raise(epoch)) => {
                self.raised.push((base + 4 * u64::from(word), epoch));
            }
            Some(Report::Early) => self.counts.early += 1,
            // Of an instance that is gone, or of an epoch that is over.
            Some(Report::Late) | None => self.counts.dropped += 1,
        }
    }
}

/// A thread that ends with instances, however it does, leaves kernels that would wait for it.
impl Drop for Engine {
    fn drop(&mut self) {
        let closed = NetFault { rank: self.rank, edge: None, error: TransportError::Closed };
        let fault = self.fault.take().unwrap_or(closed);
        for x in self.instances.iter().filter(|x| !x.over) {
            if let Some(watch) = &x.watch {
                watch.give_up(fault.of(), Some(&fault));
            }
        }
    }
}

fn bad(c: &NetCommand, what: String) -> TransportError {
    TransportError::Command { seq: c.seq, epoch: c.epoch, what }
}
