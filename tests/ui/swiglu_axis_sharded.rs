//! Gates on one rank, ups on another.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(1)) {
        gather(x) -> gemm(w) -> swiglu
    }
}

fn main() {}
