//! A reduction of what is no partial sum.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        gather(x) -> gemm(w) -> reduce_scatter
    }
}

fn main() {}
