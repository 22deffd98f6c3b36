//! Arithmetic of elements of eight bits.

mk::pipeline! {
    pub fn both(x: bf16[M, K], w: bf16[K, N], y: e4m3[M, N]) {
        (gemm(x, w) -> cast(f32) -> mul(y), gemm(x, w) -> cast(e5m2) -> gelu)
    }
}

fn main() {}
