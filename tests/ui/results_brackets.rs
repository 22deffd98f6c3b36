//! Results without parentheses.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N]) -> bf16[M, N], bf16[M, K] {
        gather(x) -> gemm(w)
    }
}

fn main() {}
