//! A value that reaches no result.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N]) {
        let h = gather(x);
        gather(x) -> gemm(w)
    }
}

fn main() {}
