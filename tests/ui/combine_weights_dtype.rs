//! Weights of a router that are not f32.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: bf16[T, K] @ shard(0),
        w1: bf16[E, H, 2, I] @ shard(0),
        w2: bf16[E, I, H] @ shard(0),
    ) -> bf16[T, H] @ shard(0) {
        x -> dispatch(ids)
            -> grouped_gemm(w1) -> swiglu
            -> grouped_gemm(w2)
            -> combine(gate)
    }
}

fn main() {}
