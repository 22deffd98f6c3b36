//! A sum over an axis that is the outer one of the dimension elsewhere.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, tp) @ shard(0, dp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp), w: bf16[K, N] @ shard(1, tp)) {
        (gather(x, dp), gemm(d, w.t) -> reduce_scatter(tp))
    }
}

fn main() {}
