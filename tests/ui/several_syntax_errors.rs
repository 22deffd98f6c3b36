//! What cannot be read is skipped, and the rest is still read and checked.

mk::pipeline! {
    pub fn mlp(x bf16[M, K], w: bf16[M * 2, K] @ shard(tp), v: bf16[K, N] @ shard(1)) {
        let h = gather(x) -> scale(0.5.t);
        let = gather(v);
        h -> gemm(,) -> gemm(v);
    }
}

fn main() {}
