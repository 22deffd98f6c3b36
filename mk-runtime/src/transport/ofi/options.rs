//! What is asked for of an end.

use crate::transport::Flush;
use std::time::Duration;

/// Of what an [`Ofi`](super::Ofi) end is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// libfabric's name of the provider: `efa`, `tcp;ofi_rxm`, `shm`.
    pub provider: String,
    /// The address of the interface, for providers that have them; the first one where none is named.
    pub address: Option<String>,
    /// Most writes of a rail that are accepted and not reported; fewer where the provider's queue is shorter.
    pub depth: usize,
    /// Devices that an end uses side by side. A provider without as many has several endpoints on one, but for `efa`.
    pub rails: usize,
    /// PCI address of the GPU that the devices are to be near to: `0000:3b:00.0`.
    pub near: Option<String>,
    /// Names of the devices (libfabric's domains), one for each rail, instead of the nearest.
    pub domains: Option<Vec<String>>,
    /// Whether the arena may be memory of a GPU.
    pub gpu_memory: bool,
    /// What is done before a word, where it is.
    pub flush: Flush,
    /// How long a peer may take no write and deliver none before it has failed.
    pub silence: Duration,
}

impl Options {
    /// One rail, 1024 writes, memory of the host, and 10 s of silence.
    pub fn new(provider: &str) -> Options {
        Options {
            provider: provider.into(),
            address: None,
            depth: 1024,
            rails: 1,
            near: None,
            domains: None,
            gpu_memory: false,
            flush: Flush::None,
            silence: Duration::from_secs(10),
        }
    }
}
