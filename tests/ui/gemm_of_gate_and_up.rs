//! Gate and up that nobody has joined.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) {
        gather(x) -> gemm(w) -> gemm(v) -> reduce_scatter
    }
}

fn main() {}
