//! Seven mistakes in one item: each is reported on its token.

mk::pipeline! {
    pub fn mlp(x: bf17[M, K] @ shard(0), w1: bf16[K, 0] @ shard(1), w2: bf16[F, K] @ shrad(0))
        -> bf16[M, K] @ shard(3)
    {
        gather(x) -> gemm(w1) -> gulu -> gemm(w3) -> reduce_scatter(dim = two)
    }
}

fn main() {
    let _program: mk::Program = mlp();
}
