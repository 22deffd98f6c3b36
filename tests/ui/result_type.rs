//! A signature that declares something else than the body gives.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> f16[M, K] @ shard(0) {
        gather(x) -> gemm(w)
    }
}

fn main() {}
