//! Gate and up concatenated along the columns: a shard of them would be gates only.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        gather(x) -> gemm(w) -> swiglu
    }
}

fn main() {}
