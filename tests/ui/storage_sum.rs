//! A sum over ranks of what is rounded to eight bits before.

mk::pipeline! {
    pub fn rows(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) {
        gemm(x, w) -> cast(e5m2) -> reduce_scatter
    }
}

fn main() {}
