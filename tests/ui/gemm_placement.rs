//! A placement pair that no gemm can multiply.

mk::pipeline! {
    pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        x -> gemm(w)
    }
}

fn main() {}
