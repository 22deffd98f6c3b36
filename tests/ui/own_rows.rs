//! Each rank's own number of something that is no number of rows.

mk::pipeline! {
    pub fn layer<T: own, H: own <= 64>(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: f32[T, K] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        dispatch(x, ids) -> grouped_gemm(w) -> combine(gate)
    }
}

fn main() {}
