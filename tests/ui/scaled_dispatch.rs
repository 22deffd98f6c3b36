//! Tokens in eight bits: with factors of other blocks, with weights on the way, and sums of rows with factors.

mk::pipeline! {
    pub fn layer(
        x: e4m3[T, H] scaled(1, H) @ shard(0),
        y: e4m3[T, H] scaled(1, 128) @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: f32[T, K] @ shard(0),
        w: e4m3[E, N, H] scaled(128, 128) @ shard(0),
    ) {
        let a = dispatch(x, ids) -> grouped_gemm(w.t);
        let b = dispatch(y, ids, gate) -> grouped_gemm(w.t);
        let c = dispatch(y, ids) -> grouped_gemm(w.t) -> quantize(e4m3, 1, 128);
        (a, b, c -> combine(gate))
    }
}

fn main() {}
