//! Why there is no trace.

use thiserror::Error;

/// Why a buffer is no trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The kernel records nothing.
    #[error(
        "kernel {kernel} was emitted without tracing; emit it with `Options {{ trace: true }}`"
    )]
    Untraced {
        /// The kernel.
        kernel: String,
    },
    /// There is nothing to read, or a rank that the kernel does not have.
    #[error("there is no trace of rank {rank}: the kernel has ranks 0 to {}", .world.saturating_sub(1))]
    Rank {
        /// The rank.
        rank: u32,
        /// Ranks of the kernel.
        world: u32,
    },
    /// A buffer of another size.
    #[error("the trace of rank {rank} has {given} bytes, and kernel {kernel} writes {expected}")]
    Size {
        /// The kernel.
        kernel: String,
        /// The rank.
        rank: u32,
        /// Bytes that there are.
        given: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// The kernel has not run, or not to its end.
    #[error("rank {rank} has finished no launch yet (CTA {cta} wrote nothing)")]
    NoLaunch {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
    },
    /// Parts of several launches.
    #[error(
        "the trace mixes launches {one} and {other} (rank {rank}, CTA {cta}): read it when the launch has ended on \
         all ranks"
    )]
    Mixed {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
        /// The first epoch.
        one: u32,
        /// Another.
        other: u32,
    },
    /// Something that no kernel writes.
    #[error("the trace of rank {rank} is damaged at CTA {cta}, agent {agent}: {what}")]
    Damaged {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
        /// Place of the agent in the CTA.
        agent: u32,
        /// What is wrong.
        what: String,
    },
}
