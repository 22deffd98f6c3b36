//! Weights for other slots than the experts have.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: f32[T, J] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        x -> dispatch(ids, gate) -> grouped_gemm(w)
    }
}

fn main() {}
