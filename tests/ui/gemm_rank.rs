//! Operands that are no matrices.

mk::pipeline! {
    pub fn linear(x: bf16[B, M, K], w: bf16[K]) {
        x -> gemm(w)
    }
}

fn main() {}
