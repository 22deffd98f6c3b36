//! Operands of an elementwise operation that lie otherwise over one of two axes.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp), y: bf16[M, N] @ shard(1, tp)) {
        gather(x, tp) -> gemm(w) -> add(y)
    }
}

fn main() {}
