// Tokens that go to the experts that they name, on one rank: rows of each expert are gathered by tables that the launch makes.
//
// T = 300, H = 128, k = 2, I = 192, E = 6, R = 1280

/// The rows of each expert, in blocks of 128, through its two matrices.
pub fn dispatched(
    x: bf16[T, H],
    ids: i32[T, k],
    w1: bf16[E, H, 2, I],
    w2: bf16[E, I, H],
) -> bf16[R, H] {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
}
