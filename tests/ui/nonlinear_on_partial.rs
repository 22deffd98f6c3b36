//! A nonlinear operation on a sum that is not yet made.

mk::pipeline! {
    pub fn down(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) {
        x -> gemm(w) -> gelu -> reduce_scatter
    }
}

fn main() {}
