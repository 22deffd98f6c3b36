// Experts of a rank: rows that are sorted by expert, through two products with a gated activation between, in one kernel.
//
// R = 1024, H = 128, I = 192, E = 6

/// The rows of each expert, in blocks of 128, through its two matrices.
pub fn experts(
    x: bf16[R, H],
    counts: i32[E],
    w1: bf16[E, H, 2, I],
    w2: bf16[E, I, H],
) -> bf16[R, H] {
    ragged(x, counts) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
}
