//! Why there is no trace.

mk_abi::errors! {
    /// Why a buffer is no trace.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    TraceError {
        /// The kernel records nothing.
        Untraced("kernel {kernel} was emitted without tracing; emit it with `Options {{ trace: true }}`") {
            kernel: String = "The kernel",
        },
        /// There is nothing to read, or a rank that the kernel does not have.
        Rank("there is no trace of rank {rank}: the kernel has ranks 0 to {}", .world.saturating_sub(1)) {
            rank: u32 = "The rank",
            world: u32 = "Ranks of the kernel",
        },
        /// A buffer of another size.
        Size("the trace of rank {rank} has {given} bytes, and kernel {kernel} writes {expected}") {
            kernel: String = "The kernel",
            rank: u32 = "The rank",
            given: u64 = "Bytes that there are",
            expected: u64 = "Bytes that there should be",
        },
        /// The kernel has not run, or not to its end.
        NoLaunch("rank {rank} has finished no launch yet (CTA {cta} wrote nothing)") {
            rank: u32 = "The rank",
            cta: u32 = "The CTA",
        },
        /// Parts of several launches.
        Mixed(
            "the trace mixes launches {one} and {other} (rank {rank}, CTA {cta}): read it when the launch has ended \
             on all ranks"
        ) {
            rank: u32 = "The rank",
            cta: u32 = "The CTA",
            one: u32 = "The first epoch",
            other: u32 = "Another",
        },
        /// Something that no kernel writes.
        Damaged("the trace of rank {rank} is damaged at CTA {cta}, agent {agent}: {what}") {
            rank: u32 = "The rank",
            cta: u32 = "The CTA",
            agent: u32 = "Place of the agent in the CTA",
            what: String = "What is wrong",
        },
    }
}
