//! What is no matrix has no transpose.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[F, 2, K]) {
        gather(x) -> gemm(w.t)
    }
}

fn main() {}
