//! A gate of sums that have not been made.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(1), w: bf16[K, 2, F] @ shard(0)) {
        gemm(x, w) -> swiglu
    }
}

fn main() {}
