//! A name defined twice, and two that are reserved.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), x: bf16[K, N] @ shard(1), gelu: bf16[N], bf16: bf16[N]) {
        gather(x)
    }
}

fn main() {}
