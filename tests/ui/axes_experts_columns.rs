//! Columns of what experts make over another axis, which no token gets back whole.

mk::pipeline! {
    pub fn f(x: bf16[T, H] @ shard(0, ep), ids: i32[T, K] @ shard(0, ep), g: f32[T, K] @ shard(0, ep), w: bf16[E, H, N] @ shard(0, ep) @ shard(2, tp)) {
        dispatch(x, ids, capacity = 1024) -> grouped_gemm(w) -> combine(g)
    }
}

fn main() {}
