//! What would be added once for each rank.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0), y: bf16[M, N] @ replicate) {
        gemm(x, w) -> add(y) -> reduce_scatter
    }
}

fn main() {}
