//! Machines that plans are made for.

/// Limits of one GPU that a plan must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name in plans.
    pub name: &'static str,
    /// The architecture that NVRTC compiles for.
    pub arch: &'static str,
    /// Streaming multiprocessors; one CTA each.
    pub sms: u32,
    /// Shared memory that one CTA can have, in bytes (dynamic and static together).
    pub smem_bytes: u32,
    /// Shared memory kept back for mbarriers, the abort flag and alignment, in bytes.
    pub smem_reserved_bytes: u32,
    /// Last-level cache, in bytes.
    pub l2_bytes: u32,
    /// Threads that a CTA of a generated kernel may have: the first, if its leaves do not ask for others.
    pub block_threads: &'static [u32],
    /// Queue pairs that the network card takes.
    pub max_queue_pairs: u32,
}

/// Hopper: H100 and H200 SXM.
pub const SM_90A: Target = Target {
    name: "sm_90a",
    arch: "sm_90a",
    sms: 132,
    smem_bytes: 227 * 1024,
    smem_reserved_bytes: 2 * 1024,
    l2_bytes: 50 << 20,
    block_threads: &[384, 512],
    max_queue_pairs: 256,
};

/// All known targets.
pub const TARGETS: &[&Target] = &[&SM_90A];

/// The target of that name.
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().copied().find(|t| t.name == name)
}
