//! A bias must be sharded as the columns are, and as long.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1),
              b: bf16[N] @ replicate, c: bf16[M] @ shard(0)) {
        gather(x) -> gemm(w) -> bias(b) -> bias(c)
    }
}

fn main() {}
