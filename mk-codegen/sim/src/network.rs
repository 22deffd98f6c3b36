//! Runs in which a network outside the executor carries what goes between nodes: a real one, or one of other processes.
//!
//! Net memory is the network's then: what ranks write there and read from it are bytes of the ranks' arenas, which the
//! network writes, too. Net words are its words. A command of a send becomes a [`Message`], and all that the plan says
//! of it (the data, the word behind it, the word of its delivery) is the network's to do, at its own time.

use super::{memory::rows, signals::Word};
use mk_abi::DType;
use mk_plan::{NetPlan, Region};
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
