//! What the host does beside a kernel.

use serde::{Deserialize, Serialize};

/// What the host does beside the kernel in each launch, for every rank. The launch is over when the kernel is, and the
/// last operation.
///
/// [`HostOp::AwaitEntry`] is the first operation of every rank, also of one that has no other. In an ordinary launch
/// the kernel says when it ends, by [`ControlBlock::engines`](crate::device::ControlBlock::engines); in a captured one,
/// where [`LaunchHeader::gated`](crate::device::LaunchHeader::gated) is 1, the end of the gate does: a kernel of one
/// CTA before it. Either leaves the epoch in [`ControlBlock::launch`](crate::device::ControlBlock::launch).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProgram {
    /// Entry point (`extern "C"`, with the kernel's parameters) of the gate, which announces the launch, and waits
    /// until every rank is in it.
    pub gate: String,
    /// Threads of its CTA.
    pub gate_threads: u32,
    /// The operations of each rank. They begin and end in their order.
    pub ranks: Vec<Vec<HostOp>>,
}

/// One operation of a rank's host. Words are 32-bit, and counted from the start of a rank's symmetric memory; what
/// raises one stores the epoch there, so that a word which is raised once in a launch counts launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostOp {
    /// Waits until every rank has entered the launch: from here on peers' memory may be written, and the epoch is
    /// known.
    AwaitEntry,
    /// A copy engine copies from a tensor of the caller to the symmetric memory of a rank on the same node.
    Copy {
        /// Index into [`KernelSource::tensors`](crate::KernelSource::tensors).
        tensor: u32,
        /// First byte of it.
        from_bytes: u64,
        /// Whose symmetric memory is written.
        to_rank: u32,
        /// First byte of it.
        to_bytes: u64,
        /// How many, at least 1.
        bytes: u64,
    },
    /// Raises a word of a rank on the same node, behind the data of all operations before.
    Raise {
        /// Whose.
        rank: u32,
        /// Which.
        word: u64,
    },
}
