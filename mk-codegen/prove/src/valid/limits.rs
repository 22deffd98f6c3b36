//! Bounds of the work that several rules share.

/// Most pairs of regions that are compared, of accesses that are looked at one by one, of nodes that searches visit,
/// and of entries (word, rank, epoch) of the table of known kernels.
pub const MAX_PAIRS: u64 = 1 << 28;
