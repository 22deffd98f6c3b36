//! A name that is no parameter and no binding.

mk::pipeline! {
    pub fn linear(x: bf16[M, K] @ shard(0), weight: bf16[K, N] @ shard(1)) {
        gather(x) -> gemm(weigth) -> mul(weight)
    }
}

fn main() {}
