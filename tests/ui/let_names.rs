//! A binding that shadows a parameter, one that is an operation, and one that is never used.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N]) {
        let x = gather(x);
        let gelu = gather(x);
        gemm(x, w)
    }
}

fn main() {}
