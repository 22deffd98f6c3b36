//! Several results: one type too few, and a dtype, shape and placement that the body does not give.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1))
        -> (f16[M, N] @ shard(0), bf16[K, M]) {
        let h = gather(x);
        (h -> gemm(w), h, h -> gelu)
    }
}

fn main() {}
