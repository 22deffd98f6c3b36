//! A bias would be added once for each rank.

mk::pipeline! {
    pub fn down(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0), c: bf16[N]) {
        x -> gemm(w) -> bias(c) -> reduce_scatter
    }
}

fn main() {}
