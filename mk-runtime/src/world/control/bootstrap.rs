//! How processes that form one world find each other. A local world needs none.

use crate::Result;
use std::net::IpAddr;

/// Carries small messages between the processes of a world before there is shared memory.
///
/// Implementations are collective: every process makes the same calls in the same order. Each call is bounded in time
/// and fails on every process when one is gone.
pub trait Bootstrap: Send {
    /// This process.
    fn rank(&self) -> u32;

    /// Number of processes.
    fn world_size(&self) -> u32;

    /// Gives every process the bytes of every other, indexed by rank.
    ///
    /// # Errors
    /// When a peer does not take part within the implementation's bound.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The address by which this process reaches rank 0's host, where the messages go over a network.
    fn address(&self) -> Option<IpAddr> {
        None
    }

    /// A process that is known to be gone, without waiting. Between calls only; not every process need see every
    /// other's end.
    fn lost(&mut self) -> Option<u32> {
        None
    }

    /// Returns when every process has called it.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    fn barrier(&mut self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }
}
