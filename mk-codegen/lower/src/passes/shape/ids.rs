//! What names parameters and operations of a kernel.

/// An index into the kernel's parameters.
pub(in crate::passes) type Param = usize;

/// An index into the kernel's operations.
pub(in crate::passes) type OpId = usize;

/// A matrix, or vector, of a GEMM's epilogue.
#[derive(Clone, Copy)]
pub(in crate::passes) enum Extra {
    Param(Param),
    /// Factors of rows that come with operand A.
    Arriving,
    /// An index into the kernel's results.
    Result(usize),
    /// Factors of the GEMM's own result, which another GEMM reads with it.
    OwnFactors,
    /// The second half of the GEMM's own result `[m, 2, n]`.
    OwnHalf,
}

/// Where sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Reduce {
    /// Each rank gets its rows.
    Scatter,
    /// Each rank gets all rows.
    All,
}
