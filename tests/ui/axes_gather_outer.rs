//! A gather over the outer one of two axes that share rows.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, dp)) {
        gather(x, dp) -> gemm(w)
    }
}

fn main() {}
