//! A transposed operand: a later version.

mk::pipeline! {
    pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[N, K]) {
        gather(x) -> gemm(w.t)
    }
}

fn main() {}
