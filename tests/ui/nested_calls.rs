//! Calls inside out, as a function language would write them.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N]) {
        gelu(gemm(gather(x), w))
    }
}

fn main() {}
