//! What a network is made of.

use crate::transport::{Flush, shaped::Shape};
use crate::{Result, env};
use std::time::Duration;

/// How long processes wait for each other where the caller gives no time.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Where arenas are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArenaMemory {
    /// Pinned memory of the host.
    #[default]
    Host,
    /// Memory of each rank's GPU. Refused where the network cannot reach it, or the GPU might see a word before its
    /// data.
    Gpu,
}

impl ArenaMemory {
    /// What `MK_NET_MEMORY` asks for; pinned memory of the host where it says nothing.
    ///
    /// # Errors
    /// [`Error::Variable`](crate::Error::Variable) for another value than `host` and `gpu`.
    pub fn asked() -> Result<ArenaMemory> {
        Ok(if env::net_on_gpus()? { ArenaMemory::Gpu } else { ArenaMemory::Host })
    }
}

/// Of what a [`Net`](super::Net) is made.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Bytes of each rank's arena, in which all its instances have their ranges.
    pub arena_bytes: u64,
    /// Where it is.
    pub memory: ArenaMemory,
    /// What is done before a word in memory of a GPU, instead of what [`Visibility::rule`] says.
    ///
    /// [`Visibility::rule`]: crate::transport::Visibility::rule
    pub flush: Option<Flush>,
    /// How long writes may take to end when an instance is dropped, or the network closed.
    pub drain: Duration,
    /// A slower, less orderly or broken network than it is.
    pub shape: Shape,
    /// Threads that copy, of the network inside a process.
    pub threads: usize,
}

impl Default for NetOptions {
    /// 256 MiB of the host, 10 s, as fast as it is, two threads for each rank.
    fn default() -> NetOptions {
        NetOptions {
            arena_bytes: 256 << 20,
            memory: ArenaMemory::Host,
            flush: None,
            drain: Duration::from_secs(10),
            shape: Shape::default(),
            threads: 2,
        }
    }
}
