//! GEMMs of operands of eight bits: what lies across K, and formats that do not meet.

mk::pipeline! {
    pub fn layer(x: e4m3[M, K] @ shard(0), w: e4m3[K, N] @ shard(1), v: e4m3[N, K] @ shard(0)) {
        let y = gather(x) -> cast(bf16);
        let z = x.t -> gemm(w);
        (gather(x) -> gemm(w), y -> gemm(v.t), z)
    }
}

fn main() {}
