//! What names parameters and operations of a kernel.

/// An index into the kernel's parameters.
pub(in crate::passes) type Param = usize;

/// An index into the kernel's operations.
pub(in crate::passes) type OpId = usize;
