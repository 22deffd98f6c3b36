//! What a kernel needs of the network between nodes.

use serde::{Deserialize, Serialize};

/// An instance's range of the net arena, and how its commands travel. The range has the same layout on every rank:
/// words that hosts raise, then the hashes of launches, then buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetLayout {
    /// Ranks of each node.
    pub local: u32,
    /// Whether writes of a lane must arrive in order; else the receiver's host sets flags.
    pub in_order: bool,
    /// Entries of a rank's fifo.
    pub fifo: u32,
    /// Lanes to each peer.
    pub lanes: u32,
    /// Words that hosts raise, from the begin of the range on; each once in a launch, to its epoch.
    pub words: u32,
    /// Where the hashes of launches lie: `u32[2][world]`, by parity of the epoch and rank; this rank's is what it
    /// sends.
    pub hashes: u64,
    /// Where buffers begin.
    pub buffers: u64,
    /// Length of the range.
    pub bytes: u64,
    /// Longest message.
    pub message_bytes: u64,
}

impl NetLayout {
    /// Where a rank's hash of a launch lies.
    pub fn hash(&self, world: u32, epoch: u32, rank: u32) -> u64 {
        self.hashes + 4 * u64::from((epoch & 1) * world + rank)
    }
}
