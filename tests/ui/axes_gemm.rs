//! A GEMM whose operands fit over one axis and not over the other.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)) {
        x -> gemm(w)
    }
}

fn main() {}
