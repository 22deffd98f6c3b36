//! Gradients of gates and ups by the transposes of matrices without.

mk::pipeline! {
    pub fn back(
        dy: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        gate: f32[T, K] @ shard(0),
        h: bf16[R, 2, I] @ shard(0),
        w1: bf16[E, H, I] @ shard(0),
        w2: bf16[E, I, H] @ shard(0),
    ) -> bf16[T, H] @ shard(0) {
        dispatch(dy, ids, capacity = R)
            -> grouped_gemm(w2.t) -> swiglu_grad(h)
            -> grouped_gemm(w1.t)
            -> combine(gate)
    }
}

fn main() {}
