//! Runs in which a network outside the executor carries what goes between nodes: a real one, or one of other processes.
//!
//! Net memory is the network's then: what ranks write there and read from it are bytes of the ranks' arenas, which the network writes,
//! too. Net words are its words. A command of a send becomes a [`Message`], and all that the plan says of it (the data, the word behind
//! it, the word of its delivery) is the network's to do, at its own time.

use super::{
    SimError, machine::Machine, memory::rows, place_of, post::Ready, schedule::Actor, signals::Word,
};
use mk_abi::DType;
use mk_plan::{Agent, Entity, NetPlan, NicOrdering, Operand, Points, Region, Task};
use std::ops::Range;
use std::time::Duration;

/// One message, in terms of the ranks' ranges of net memory ([`NetPlan`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub rank: usize,
    /// The receiver.
    pub peer: usize,
    /// Which of the plan's lanes.
    pub lane: u32,
    /// First byte at home.
    pub from: u64,
    /// First byte there.
    pub to: u64,
    /// How many.
    pub bytes: u64,
    /// The launch.
    pub epoch: u32,
    /// The receiver's word that gets the epoch, behind the data.
    pub remote_word: Option<u32>,
    /// The sender's word that gets the epoch when the data is there.
    pub local_word: Option<u32>,
    /// Whether it tells of a node's entry.
    pub enters: bool,
    /// The edge of the plan that the command is.
    pub edge: u32,
}

/// What carries messages between ranks of other nodes.
pub trait Network {
    /// The ranks that this run is to have; others are elsewhere.
    fn ranks(&self) -> Range<usize>;

    /// Reads a rank's net memory.
    fn read(&self, rank: usize, at: u64, out: &mut [u8]);

    /// Writes a rank's net memory.
    fn write(&self, rank: usize, at: u64, bytes: &[u8]);

    /// A rank's net word: the last epoch that it was raised to. With acquire: what came before it is seen.
    fn word(&self, rank: usize, word: u32) -> u32;

    /// Puts a message into its rank's fifo. False when that is full.
    ///
    /// # Errors
    /// When the network has failed.
    fn issue(&self, message: &Message) -> Result<bool, String>;

    /// Sleeps a moment, when nothing else is to be done. `idle` is the time since anything was.
    ///
    /// # Errors
    /// When the network has failed, or nothing has happened for too long.
    fn wait(&self, idle: Duration) -> Result<(), String>;
}

/// A network, and where things are on it.
pub(super) struct Joined<'a> {
    pub network: &'a dyn Network,
    pub plan: NetPlan,
}

impl<'a> Joined<'a> {
    /// The net word of a signal's word.
    pub fn word(&self, word: Word) -> Option<u32> {
        self.plan.signals[word.signal].map(|first| first + word.at as u32)
    }

    /// Reads a region of net memory.
    pub fn read(&self, region: &Region, shape: &[usize], dtype: DType, out: &mut Vec<f32>) {
        self.each_row(region, shape, dtype, |at, columns| {
            let mut bytes = vec![0; columns * dtype.size_bytes() as usize];
            self.network.read(region.rank, at, &mut bytes);
            out.extend(dtype.from_bytes(&bytes));
        });
    }

    /// Writes a region of net memory.
    pub fn write(&self, region: &Region, shape: &[usize], dtype: DType, values: &[f32]) {
        let mut rest = values;
        self.each_row(region, shape, dtype, |at, columns| {
            let (row, behind) = rest.split_at(columns.min(rest.len()));
            self.network.write(region.rank, at, &dtype.to_bytes(row));
            rest = behind;
        });
    }

    fn each_row(
        &self,
        region: &Region,
        shape: &[usize],
        dtype: DType,
        mut f: impl FnMut(u64, usize),
    ) {
        let Some(base) = self.plan.buffers[region.buffer] else { return };
        let columns = region.dims.last().map_or(0, |d| d.1 as usize);
        rows(shape, region, |at| f(base + at as u64 * dtype.size_bytes(), columns));
    }
}

impl Machine<'_> {
    /// Refuses what messages do not say.
    pub fn check_network(&self) -> Result<(), SimError> {
        let Some(joined) = &self.joined else { return Ok(()) };
        let refuse = |message: &str| {
            Err(SimError::Unsupported { place: self.plan.name.clone(), message: message.into() })
        };
        if self.options.check {
            return refuse("what a network outside the executor writes has no marks to check");
        }
        let nodes = joined.network.ranks();
        let local = joined.plan.layout.local as usize;
        if nodes.start % local != 0 || nodes.end % local != 0 || nodes.end > self.ranks.len() {
            return refuse("a process has whole nodes of the plan");
        }
        Ok(())
    }

    /// The words that a send raises: of the receiver, and of its own rank. Each is a net word, and is raised by one.
    fn words_of(
        &self,
        points: &Points<'_>,
        task: &Task,
        to: usize,
    ) -> Result<[Option<u32>; 2], SimError> {
        let Some(joined) = &self.joined else { return Ok([None; 2]) };
        let mut words = [None; 2];
        for by in [Agent::Sender, Agent::Receiver] {
            for post in self.posts::<Vec<Ready>>(points, task, by, None)? {
                let slot = &mut words[usize::from(post.word.rank != to)];
                let word = joined.word(post.word).filter(|_| {
                    let known = post.word.rank == to || post.word.rank == task.rank();
                    known && slot.is_none() && post.add == 1
                });
                let Some(word) = word else {
                    return Err(SimError::Unsupported {
                        place: place_of(self.plan, task),
                        message: "a message raises one net word at either end, by one".into(),
                    });
                };
                *slot = Some(word);
            }
        }
        Ok(words)
    }

    /// Gives a command to the network. False when its fifo is full.
    pub fn issue_message(
        &self,
        points: &Points<'_>,
        task: &Task,
        to: usize,
    ) -> Result<bool, SimError> {
        let Some(joined) = &self.joined else { return Ok(true) };
        let [remote_word, local_word] = self.words_of(points, task, to)?;
        let at = |regions: Vec<Region>| -> Result<(u64, u64), SimError> {
            let Some(region) = regions.first() else { return Ok((0, 0)) };
            let dtype = self.plan.buffers[region.buffer].dtype;
            let place = joined.plan.place(points, region)?.filter(|_| regions.len() == 1);
            let place = place.ok_or_else(|| SimError::Unsupported {
                place: place_of(self.plan, task),
                message: "a message is one piece of net memory".into(),
            })?;
            Ok((place, region.len() as u64 * dtype.size_bytes()))
        };
        let (from, bytes) = at(self.regions_of(points, task, Operand::Src)?)?;
        let (there, room) = at(self.regions_of(points, task, Operand::Dst)?)?;
        if bytes != room {
            return Err(SimError::Operands {
                place: place_of(self.plan, task),
                message: format!("{bytes} bytes are sent to a place for {room}"),
            });
        }
        let lanes = match self.plan.nic.map(|nic| nic.ordering) {
            Some(NicOrdering::InOrder) => joined.plan.layout.lanes,
            _ => 1,
        };
        let edge = self.plan.families[task.family].edges.first();
        let message = Message {
            rank: task.rank(),
            peer: to,
            lane: remote_word.unwrap_or(0) % lanes,
            from,
            to: there,
            bytes,
            epoch: task.epoch() as u32,
            remote_word,
            local_word,
            enters: self.plan.enters_node(task.family),
            edge: edge.map_or(0, |e| e.edge.index() as u32),
        };
        joined.network.issue(&message).map_err(SimError::Network)
    }

    /// Looks at net words that somebody sleeps for, and at fifos that were full. Whether anybody can go on.
    pub fn look_at_network(&mut self) -> bool {
        let Some(joined) = &self.joined else { return false };
        let mut woken = self.signals.woken(|word| {
            joined.word(word).map(|net| i64::from(joined.network.word(word.rank, net)))
        });
        woken.extend(
            std::mem::take(&mut self.refused).into_iter().map(|rank| Actor::Sender { rank }),
        );
        let any = !woken.is_empty();
        for actor in woken {
            if let Actor::Agent { rank, agent } = actor {
                self.ranks[rank].program.agents[agent].blocked = None;
            }
            self.chooser.ready(actor);
        }
        any
    }

    /// What a word has counted.
    pub fn seen(&self, word: Word) -> i64 {
        let net = self.joined.as_ref().and_then(|joined| {
            joined.word(word).map(|net| i64::from(joined.network.word(word.rank, net)))
        });
        net.unwrap_or_else(|| self.signals.seen(word))
    }
}
