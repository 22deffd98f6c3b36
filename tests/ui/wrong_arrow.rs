//! Stages joined by something else.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        gather(x) => gemm(w) | gelu
    }
}

fn main() {}
