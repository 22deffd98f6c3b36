//! Weights of dispatched rows that are not in f32.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: bf16[T, K] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        x -> dispatch(ids, gate) -> grouped_gemm(w)
    }
}

fn main() {}
