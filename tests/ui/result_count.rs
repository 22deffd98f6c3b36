//! A signature that declares fewer results than the body gives.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
        let h = gather(x);
        (h -> gemm(w), h)
    }
}

fn main() {}
