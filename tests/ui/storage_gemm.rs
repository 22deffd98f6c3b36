//! Products of operands of eight bits.

mk::pipeline! {
    pub fn layer(x: e4m3[M, K] @ shard(0), w: e4m3[K, N] @ shard(1)) {
        let y = gather(x) -> cast(bf16);
        (gather(x) -> gemm(w), y -> gemm(w))
    }
}

fn main() {}
