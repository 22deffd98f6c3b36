//! Scattering a dimension that is not there.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(1, tp) @ shard(0, dp), w: bf16[K, N] @ shard(0, tp)) {
        gemm(x, w) -> reduce_scatter(dim = 2)
    }
}

fn main() {}
