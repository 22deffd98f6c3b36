//! Operands of two dtypes, and of f32.

mk::pipeline! {
    pub fn linear(x: bf16[M, K], w: f16[K, N], v: bf16[N, N]) {
        let h = x -> gemm(w);
        x -> cast(f32) -> gemm(v)
    }
}

fn main() {}
