//! The contracted dimensions differ.

mk::pipeline! {
    pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[N, K] @ shard(1)) {
        gather(x) -> gemm(w)
    }
}

fn main() {}
